"""What the documentation site has beside docs/: the reference, generated from the code, and pages that lie elsewhere.

A hook of mkdocs (mkdocs.yml). Links are those that a reader of the repository follows; here they become the site's.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

import ups
from ups.cli.main import app
from ups.data.settings import DataConfig, FilesConfig, MakeConfig, SamplingConfig, TaskConfig
from ups.distributed.runtime.settings import RuntimeConfig, WandbConfig
from ups.evaluation.settings import EvaluationConfig
from ups.models.architectures import ARCHITECTURES
from ups.ops.gates import GateConfig
from ups.pipeline.config import ComparedConfig, RunConfig, StageConfig
from ups.rollout.result import Comparison, Rollout
from ups.training.kinds import STAGES
from ups.training.settings import PhysicsConfig, TrainingConfig

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "SECURITY.md": "security.md",
}
"""Pages of the site by files of the repository."""
UNLISTED = {"conduct.md", "security.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, place in ELSEWHERE.items():
        text = "---\nhide: [navigation]\n---\n" if place in UNLISTED else ""
        files.append(File.generated(config, place, content=text + (ROOT / source).read_text(encoding="utf-8")))
    for name, write in {"python": python, "commands": commands, "configuration": configuration}.items():
        files.append(File.generated(config, f"reference/{name}.md", content="\n".join(write())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the repository become links to pages; to what has no page, words."""
    sources = {place: source for source, place in ELSEWHERE.items()}
    here = posixpath.dirname(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def relinked(link: re.Match[str]) -> str:
        picture, words, target, anchor = link.groups()
        place = posixpath.normpath(posixpath.join(here, target))
        there = ELSEWHERE.get(place, place.removeprefix("docs/") if place.startswith("docs/") else None)
        if there is None:
            return f"{picture}{words}"
        return f"{picture}[{words}]({posixpath.relpath(there, posixpath.dirname(page.file.src_uri))}{anchor or ''})"

    return LINK.sub(relinked, markdown)


def python() -> Iterator[str]:
    yield "# Python\n\nWhat `import ups` offers. Arrays are NumPy's or torch's, channels last.\n"
    for name in ups.__all__:
        if name != "__version__":
            yield from documented(getattr(ups, name), f"ups.{name}", "##")
    yield "## What a rollout gives\n"
    for returned in (Rollout, Comparison):
        yield from documented(returned, returned.__name__, "###")


def documented(what: Any, name: str, level: str) -> Iterator[str]:
    """Signature and docstring, and those of a class's public methods."""
    yield f"{level} {name}\n"
    yield f"```python\n{signature(what, name)}\n```\n"
    if what.__doc__ and not what.__doc__.startswith(f"{name.split('.')[-1]}("):  # what a dataclass says of itself
        yield inspect.cleandoc(what.__doc__) + "\n"
    if inspect.isclass(what):
        for method, value in vars(what).items():
            value = getattr(value, "func", getattr(value, "fget", value))
            if not method.startswith("_") and inspect.isfunction(value):
                yield from documented(value, f"{name.split('.')[-1]}.{method}", level + "#")


def signature(what: Any, name: str) -> str:
    found = inspect.signature(what)
    if "." in name and name[0].isupper():
        found = found.replace(parameters=[each for each in found.parameters.values() if each.name != "self"])
    text = f"{name}{found}".replace("'", "")
    if len(text) <= 100:
        return text
    listed = [str(each).replace("'", "") for each in found.parameters.values()]
    named = [each.kind is each.KEYWORD_ONLY for each in found.parameters.values()]
    if any(named):
        listed.insert(named.index(True), "*")
    inner = ",\n    ".join(listed)
    gives = found.return_annotation
    return f"{name}(\n    {inner},\n)" + (f" -> {gives}" if isinstance(gives, str) else "")


def commands() -> Iterator[str]:
    yield "# Commands\n\nWhat `--help` says of each.\n"
    yield from helped(typer.main.get_command(app), "ups", None)


def helped(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True)
    yield f"## {name}\n\n```text\n{command.get_help(context)}\n```\n"
    for inner in getattr(command, "commands", {}):
        yield from helped(command.commands[inner], f"{name} {inner}", context)


def configuration() -> Iterator[str]:
    yield (
        "# Configuration\n\nEvery key, as it stands in a YAML file; on the command line they are dotted, "
        "`training.steps=6000`. `tasks` alone is a whole configuration: what is left open is chosen, and "
        "`ups explain CONFIG` says what.\n"
    )
    yield from section("The run", RunConfig, skip=("stages", "compare"))
    yield from section("tasks.NAME", TaskConfig)
    yield from section("tasks.NAME.make", MakeConfig)
    yield from section("tasks.NAME.files", FilesConfig)
    yield from section("data", DataConfig)
    yield from section("training", TrainingConfig)
    yield from section("training.sampling", SamplingConfig)
    yield from section("training.physics.TASK", PhysicsConfig)
    yield from section("stages.NAME", StageConfig)
    for name in STAGES:
        own = STAGES[name].settings({})
        skip = tuple(ARCHITECTURES["spectral"].settings.model_fields) if name == "operator" else ()
        yield from section(f"stages.NAME, kind {name}", own, skip, level="###")
    for name in ARCHITECTURES:
        yield from section(
            f"stages.NAME or compare.NAME, architecture {name}", ARCHITECTURES[name].settings, level="###"
        )
    yield from section("compare.NAME", ComparedConfig)
    yield from section("evaluation", EvaluationConfig)
    yield from section("gates.NAME", GateConfig)
    yield from section("runtime", RuntimeConfig)
    yield from section("runtime.wandb", WandbConfig)


def section(title: str, model: type[BaseModel], skip: Iterable[str] = (), level: str = "##") -> Iterator[str]:
    yield f"{level} {title}\n"
    if "__doc__" in vars(model) and model.__doc__ and title != "The run":
        yield inspect.cleandoc(model.__doc__) + "\n"
    schema = model.model_json_schema()
    yield "| key | | default | |\n|---|---|---|---|"
    for name, said in schema["properties"].items():
        if name not in skip:
            default = "needed" if name in schema.get("required", ()) else shown(model, name)
            meaning = said.get("description", "") if model.model_fields[name].description else ""
            yield f"| `{name}` | {words(said)} | {default} | {meaning.replace('|', chr(92) + '|')} |"
    yield ""


def shown(model: type[BaseModel], name: str) -> str:
    default = model.model_fields[name].get_default(call_default_factory=True)
    if default is None or isinstance(default, BaseModel):
        return ""
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return f"`{text}`" if text else ""


def words(said: dict[str, Any]) -> str:
    """What a value may be, from its JSON schema."""
    if "anyOf" in said:
        return " or ".join(words(each) for each in said["anyOf"] if each.get("type") != "null")
    if "enum" in said or "const" in said:
        return ", ".join(f"`{each}`" for each in said.get("enum", [said.get("const")]))
    limits = {"exclusiveMinimum": "> ", "minimum": "≥ ", "exclusiveMaximum": "< ", "maximum": "≤ "}
    within = ", ".join(f"{sign}{said[key]}" for key, sign in limits.items() if key in said)
    names = {
        "integer": "whole number",
        "number": "number",
        "string": "text",
        "boolean": "true, false",
        "array": "list",
        "object": "mapping",
    }
    kind = names.get(said.get("type", ""), "mapping" if "$ref" in said else "")
    return f"{kind} {within}".strip()
