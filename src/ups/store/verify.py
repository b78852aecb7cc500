"""Reading every byte of stores to find damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ups.errors import UserError
from ups.store.layout import INDEX, PARTIAL, SHARDS, Index, read_index, shard_problem
from ups.track.tick import Tick

MEND = (
    "remove the damaged files and run the command that built the store again (`ups store build CONFIG`, `ups train`): "
    "it writes these files alone"
)


@dataclass(frozen=True)
class CheckedArray:
    """An array that was read whole; `problems` has one sentence a damaged shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: int
    bytes: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class CheckedStore:
    """A store that was read whole; `problem` says why it could not be, as when it is not complete."""

    path: str
    arrays: tuple[CheckedArray, ...]
    problem: str | None = None

    @property
    def problems(self) -> list[str]:
        """All that is wrong, one sentence a file."""
        found = [problem for array in self.arrays for problem in array.problems]
        return found if self.problem is None else [self.problem, *found]


def verify(path: Path) -> list[str]:
    """What is wrong with the store at `path`, one sentence a file; empty when every byte is as it was written."""
    index, problem = _opened(path)
    return _checked(path, index, lambda size: None).problems if index else [str(problem)]


def verify_all(path: Path, progress: Tick | None = None) -> list[CheckedStore]:
    """Read the store at `path`, or all stores of a run. `progress(bytes done, bytes in all)` follows each shard."""
    opened = {store: _opened(store) for store in _stores_under(path)}
    total = sum(s.bytes for index, _ in opened.values() if index for a in index.arrays.values() for s in a.shards)
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(done, total)

    return [
        _checked(store, index, count) if index else CheckedStore(str(store), (), problem)
        for store, (index, problem) in opened.items()
    ]


def described(stores: Sequence[CheckedStore]) -> str:
    """One line an array, then what is damaged and what to do."""
    lines = []
    for store in stores:
        for array in store.arrays:
            shape = " × ".join(map(str, array.shape))
            bad = len(array.problems)
            state = f"{bad} of {array.shards} shards damaged" if bad else "every byte as written"
            shards = f"{array.shards} shard{'s' if array.shards > 1 else ''}"
            what = f"{array.dtype} {shape}, {shards}, {array.bytes / 1e6:.3g} MB"
            lines.append(f"{Path(store.path).name} {array.name}: {what}: {state}")
        lines += [f"damaged: {problem}" for problem in store.problems]
    if any(array.problems for store in stores for array in store.arrays):
        lines.append(MEND)
    return "\n".join(lines)


def _stores_under(path: Path) -> list[Path]:
    """The store at `path`, or those of a run, or those beside one another in a folder; complete or not."""
    inside = path / "store" if (path / "store").is_dir() else path
    found = [
        folder
        for folder in (path, *sorted(inside.glob("*")))
        if any(os.path.lexists(folder / name) for name in (INDEX, PARTIAL)) or any(folder.glob(SHARDS))
    ]
    if not found:
        raise UserError(f"{path} holds no store; name a store or a run, or build one with `ups store build CONFIG`")
    return found


def _opened(path: Path) -> tuple[Index | None, str | None]:
    """A store's index, or why there is none."""
    try:
        index = read_index(path)
    except UserError as error:
        return None, str(error)
    if index is None and not (path / PARTIAL).exists():
        return None, f"{path} has lost its {INDEX}; run the command that builds it again, which writes it anew"
    return index, None if index else f"{path} holds no complete store; run the command that builds it again"


def _checked(path: Path, index: Index, count: Callable[[int], None]) -> CheckedStore:
    arrays = []
    for name, array in index.arrays.items():
        problems = []
        for shard in array.shards:
            if problem := shard_problem(path, shard):
                problems.append(problem)
            count(shard.bytes)
        size = sum(shard.bytes for shard in array.shards)
        arrays.append(CheckedArray(name, array.dtype, array.shape, len(array.shards), size, tuple(problems)))
    return CheckedStore(str(path), tuple(arrays))
