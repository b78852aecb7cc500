"""A run directory belongs to one set of tasks, and to one command at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ups.config.load import save_config
from ups.config.settings import decisive
from ups.distributed.launch.claim import LOCK, claimed
from ups.errors import UserError

_WORK = ("data", "store", "stages")
"""What a run has once its configuration led to something."""
_FILES = ("config.yaml", "metrics.json", "report.html", "events.jsonl", "outcome.json", "env.json")
"""What a run writes beside its folders: where there has been no run, they are the user's own."""
_TRAINED = {"stages", "compare", "training", "plugins", "evaluation", "gates", "name"}
"""What may change in a run: each stage compares its own settings with those it was trained with."""


@contextmanager
def claimed_run(
    directory: Path, config: BaseModel, before: BaseModel | None, rendezvous: str | None = None
) -> Iterator[None]:
    """The run directory, ours alone while we work in it, with this configuration; `before`, if any, is what it has.

    Other tasks, data or seeds are refused. A configuration that led to nothing, such as a wrong path of the data, gives
    way to its correction; not to another node's.
    """
    refuse_foreign(directory)
    with claimed(directory, rendezvous):
        if before is not None and (begun(directory) or rendezvous is not None):
            refuse_other(directory, config, before)
        save_config(config, directory / "config.yaml")
        yield


def refuse_foreign(directory: Path) -> None:
    """Refuse a directory that holds files of a run's names but has never been a run."""
    if not (directory / LOCK).exists() and not any(directory.glob("stages/*/checkpoints")):
        for name in _FILES:
            if (directory / name).exists():
                raise UserError(
                    f"{directory} holds a {name} that is no run's and would be replaced; give another name= or --runs"
                )


def refuse_other(directory: Path, config: BaseModel, before: BaseModel) -> None:
    """Refuse a run of other tasks, data or seeds."""
    ours, theirs = ({k: v for k, v in decisive(c).items() if k not in _TRAINED} for c in (config, before))
    refuse_differences(str(directory), ours, theirs)


def begun(directory: Path) -> bool:
    """Whether there is a run that has data, or more."""
    return (directory / "config.yaml").exists() and any((directory / name).exists() for name in _WORK)


def refuse_differences(where: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """A sentence that names what differs, if anything does."""
    new, old = leaves(ours), leaves(theirs)
    different = [key for key in sorted({*new, *old}) if new.get(key) != old.get(key)]
    if different:
        raise UserError(
            f"{where} belongs to another configuration ({', '.join(different[:3])} differ"
            f"{'s' if len(different) == 1 else ''}); give this one another name=..., or remove that directory"
        )


def leaves(value: Any, at: str = "") -> dict[str, Any]:
    """A nested mapping as {dotted key: value}."""
    if not isinstance(value, dict) or not value:
        return {at: value}
    return {k: v for key, inner in value.items() for k, v in leaves(inner, f"{at}.{key}" if at else key).items()}
