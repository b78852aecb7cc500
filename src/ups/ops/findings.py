"""What a check found: green (as it should be), amber (work for it, or worth knowing), red (the run would fail)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.text import Text

from ups.errors import UserError

Level = Literal["green", "amber", "red"]


@dataclass(frozen=True)
class Finding:
    level: Level
    about: str
    says: str


def guarded(about: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What `look` finds; what it refuses, in the same words that the run would end with, is red."""
    try:
        yield from look()
    except UserError as error:
        yield Finding("red", about, str(error))


def line(finding: Finding) -> Text:
    words = {"green": "ok", "amber": "note", "red": "FAILS"}[finding.level]
    return Text.assemble((f"{words:5}", f"bold {_COLOURS[finding.level]}"), f"  {finding.about}: {finding.says}")


def summary(findings: list[Finding]) -> str:
    counts = {level: sum(f.level == level for f in findings) for level in _COLOURS}
    verdict = "would fail" if counts["red"] else "is ready"
    return f"the run {verdict}: {counts['green']} ok, {counts['amber']} notes, {counts['red']} that fail"


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def as_plain(findings: list[Finding]) -> dict[str, Any]:
    return {"ready": not any(f.level == "red" for f in findings), "findings": [asdict(f) for f in findings]}


_COLOURS = {"green": "green", "amber": "yellow", "red": "red"}
