"""The documentation as tests see it: its pages, their links, and their blocks of code."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted((ROOT / "docs").glob("*.md"))
PROGRAMS = ("ups", "make", "python", "torchrun", "srun", "git", "pip", "scripts", "timeout", "source")
LANGUAGES = {"bash": "commands", "python": "python", "yaml": "yaml", "text": "text"}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """`kind` is python, commands, yaml or text. An indented block may mix statements and commands: it is two blocks."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    lines, number = page.read_text(encoding="utf-8").split("\n"), 0
    while number < len(lines):
        first, line = number, lines[number]
        number += 1
        if line.startswith("```"):
            while lines[number] != "```":
                number += 1
            language = line[3:].split()[0] if line[3:] else "text"
            yield Block(page, first + 1, LANGUAGES[language], "\n".join(lines[first + 1 : number]))
            number += 1
        elif line.startswith("    ") and not lines[first - 1].strip():
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            yield from _indented(page, first + 1, [each[4:] for each in lines[first:number]])


def _indented(page: Path, line: int, lines: list[str]) -> Iterator[Block]:
    spoken = [n for n, text in enumerate(lines) if _program(text) or (n and lines[n - 1].endswith("\\"))]
    rest = "\n".join("" if n in spoken else text for n, text in enumerate(lines)).rstrip()
    if spoken:
        yield Block(page, line, "commands", "\n".join(lines[n] for n in spoken))
    if rest.strip():
        yield Block(page, line, "python" if _is_python(rest) else "text", rest)


def _program(line: str) -> str | None:
    words = [word for word in line.split() if "=" not in word or word.startswith(("-", "'"))]
    name = words[0].removeprefix(".venv/bin/") if words else ""
    return name if name.split("/")[0] in PROGRAMS and not line.startswith(" ") else None


def _is_python(text: str) -> bool:
    """Statements, and not a picture or a table that happens to parse."""
    try:
        parsed = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(parsed))


def commands(block: Block) -> list[list[str]]:
    """Each as its words, without what introduces it (a variable, `srun`) and what follows (a comment, a pipe)."""
    found: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").split("\n"):
        for part in re.split(r" \| | && ", re.sub(r"(^|\s)#.*", "", re.sub(r'"?\$\([^)]*\)[^\s"]*"?', "VALUE", line))):
            words = shlex.split(part)
            while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] == "srun"):
                words = words[1:] if words[0] != "srun" else words[words.index("ups") :]
            if words:
                found.append([words[0].removeprefix(".venv/bin/"), *words[1:]])
    return found


def links(page: Path) -> Iterator[str]:
    """Outside of code."""
    text = re.sub(r"^```.*?^```|^    .*?$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return iter(LINK.findall(text))


def anchors(page: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
