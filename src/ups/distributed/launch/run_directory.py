"""A run directory belongs to one configuration, and to one command at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ups.config.load import load_config, save_config
from ups.config.schema import RunConfig
from ups.distributed.launch.claim import claimed
from ups.errors import UserError

_WORK = ("data", "store", "checkpoints")
"""What a run has once its configuration led to something."""


@contextmanager
def claimed_run(directory: Path, config: RunConfig, rendezvous: str | None = None) -> Iterator[None]:
    """The run directory, ours alone while we work in it, with this configuration.

    One that led to nothing, such as a wrong path of the data, gives way to its correction; not to another node's.
    """
    with claimed(directory, rendezvous):
        if begun(directory) or (rendezvous is not None and (directory / "config.yaml").exists()):
            check_same(directory, config)
        else:
            save_config(config, directory / "config.yaml")
        yield


def begun(directory: Path) -> bool:
    """Whether there is a run that has data, or more."""
    return (directory / "config.yaml").exists() and any((directory / name).exists() for name in _WORK)


def check_same(directory: Path, config: RunConfig) -> None:
    """Refuse another configuration; how it is computed (`runtime`) may differ, because the result does not."""
    ours, theirs = (_leaves(c.model_dump(mode="json", exclude={"runtime"})) for c in (config, config_of(directory)))
    if ours == theirs:
        return
    different = [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]
    raise UserError(
        f"{directory} belongs to another configuration ({', '.join(different[:3])} differ"
        f"{'s' if len(different) == 1 else ''}); give this one another name=..., or remove that directory"
    )


def _leaves(value: Any, at: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {at: value}
    return {k: v for key, inner in value.items() for k, v in _leaves(inner, f"{at}.{key}" if at else key).items()}


def config_of(directory: Path) -> RunConfig:
    path = directory / "config.yaml"
    if not path.is_file():
        raise UserError(f"{directory} is not a run (it has no config.yaml); name a directory that `ups run` made")
    return load_config(path, [], RunConfig)
