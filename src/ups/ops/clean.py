"""What of runs may go: what a run does not need any more, or makes again by itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ups import checkpoint
from ups.config.load import read_mapping
from ups.distributed.launch.claim import claimed, is_claimed
from ups.durable import damaged
from ups.errors import UserError
from ups.ops.runs import is_run, state_of


@dataclass(frozen=True)
class Leftover:
    path: Path
    why: str
    bytes: int


def leftovers(runs: Path) -> list[Leftover]:
    """Of all runs in a folder, or of one run; nothing of one that is at work, or among others damaged."""
    directories = [runs] if is_run(runs) else sorted(path for path in runs.glob("*") if is_run(path))
    found: list[Leftover] = []
    for directory in directories:
        try:
            found += [Leftover(*left, _size(left[0])) for left in _of(directory)] if not is_claimed(directory) else []
        except UserError:
            if directory == runs:
                raise
    return found


def remove(found: list[Leftover], runs: Path) -> int:
    """The bytes that are free now. A run that has begun to work meanwhile keeps what it has."""
    freed = 0
    for left in found:
        directory = runs if is_run(runs) else runs / left.path.relative_to(runs).parts[0]
        if is_claimed(directory):
            continue
        with claimed(directory):
            if left.path.is_dir():
                shutil.rmtree(left.path)
            else:
                left.path.unlink(missing_ok=True)
        freed += left.bytes
    return freed


def _of(directory: Path) -> Iterator[tuple[Path, str]]:
    for pattern in ("**/*.tmp", "**/.*.tmp"):
        yield from ((path, "half written") for path in sorted(directory.glob(pattern)))
    yield from ((path, "a damaged checkpoint, set aside") for path in sorted(directory.glob("**/checkpoints/*.bad")))
    if state_of(directory).state != "finished":
        return
    for folder in sorted(directory.glob("**/checkpoints")):
        kept = {checkpoint.find(folder, name) for name in ("best", "latest")}
        for step in checkpoint.steps(folder):
            path = folder / checkpoint.name_of(step)
            if path not in kept:
                yield path, "neither the best nor the last"
    if (directory / "store").is_dir():
        yield directory / "store", "written again when the run is trained or evaluated again"
    config = read_mapping(directory / "config.yaml")
    try:
        made = all(task.get("make") for task in config["tasks"].values()) and not config["data"].get("root")
    except (KeyError, TypeError, AttributeError):
        raise damaged(directory / "config.yaml") from None
    if made and (directory / "data").is_dir():
        yield directory / "data", "made again, the same, when the run needs it"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
