"""Who may write a store, and what of it is missing: one process at a time claims it, plans, and writes the index.

A store that is complete is not claimed and nothing in its folder is touched.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from ups.durable import check_space, seal, write
from ups.errors import UserError
from ups.locks import held
from ups.store import layout
from ups.track.tick import Tick

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of every array."""
_INTERVAL = 0.1  # seconds between two looks at a store that another process builds


class ArraySource(Protocol):
    """Where an array's rows come from; only the rows asked for are made. With workers, it travels to them by pickle."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def read(self, lo: int, hi: int) -> np.ndarray:
        """Rows lo … hi − 1, of shape (hi − lo, ...); the same bytes each time it is asked."""
        ...


@dataclass(frozen=True)
class MissingShard:
    """A shard that is still to be written: rows `first` … `first + rows − 1` of an array."""

    array: str
    number: int
    first: int
    rows: int


@dataclass(frozen=True)
class BuildPlan:
    """What a claimed build has to do. `finished` are the shards that are there already, by array and number."""

    key: str
    shapes: Shapes
    finished: Mapping[tuple[str, int], layout.Shard]
    missing: tuple[MissingShard, ...]

    @property
    def done(self) -> int:
        return sum(shard.bytes for shard in self.finished.values())

    @property
    def total(self) -> int:
        return _total(self.shapes)


@contextmanager
def planned(path: Path, key: str, arrays: Mapping[str, ArraySource], progress: Tick) -> Iterator[BuildPlan]:
    """What is to be done to complete the store at `path`, which is ours alone meanwhile if it is anything."""
    shapes = {name: (tuple(source.shape), np.dtype(source.dtype).name) for name, source in arrays.items()}
    if index := _ours(path, key, shapes):
        todo = _plan(key, shapes, _shards_of(path, index))
        if not todo.missing:  # nothing is written, so that a store can be used where nothing may be
            yield todo
            return
    with explained(path):
        path.mkdir(parents=True, exist_ok=True)
    with _alone(path, lambda: progress(*_seen(path, shapes))):
        with explained(path):
            index = _ours(path, key, shapes)
            if index is None and not (path / layout.PARTIAL).exists():
                for file in _shard_files(path):  # of an unknown key: none of them may end up in this store
                    file.unlink()
                described = {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in shapes.items()}
                write(path / layout.PARTIAL, seal({"key": key, "arrays": described}))
            todo = _plan(key, shapes, _shards_of(path, index) if index else _leftovers(path, shapes))
            check_space(path, todo.total - todo.done)
        yield todo


def finish(path: Path, todo: BuildPlan, written: Mapping[MissingShard, layout.Shard]) -> layout.Index:
    """Write the index: from now on there is a store."""
    shards = {**todo.finished, **{(wanted.array, wanted.number): shard for wanted, shard in written.items()}}
    arrays = {
        name: layout.ArrayLayout(dtype, shape, tuple(shards[place] for place in sorted(shards) if place[0] == name))
        for name, (shape, dtype) in todo.shapes.items()
    }
    index = layout.Index(todo.key, arrays)
    if written or not (path / layout.INDEX).exists():
        with explained(path):
            if index != layout.read_index(path):
                write(path / layout.INDEX, index.sealed())
            kept = {shard.file for array in arrays.values() for shard in array.shards}
            for file in [*_shard_files(path), path / layout.PARTIAL]:  # what killed builds left behind
                if file.name not in kept:
                    file.unlink(missing_ok=True)
    return index


def _ours(path: Path, key: str, shapes: Shapes) -> layout.Index | None:
    """The index if there is one; what lies at `path` but is of another key or shape is refused, finished or not."""
    index = layout.read_index(path)
    if index is not None:
        owner, what = index.key, "a store"
        held = {name: (array.shape, array.dtype) for name, array in index.arrays.items()}
    else:
        partial = layout.read_sealed(path / layout.PARTIAL)
        if partial is None:
            return None
        with layout.understood(path / layout.PARTIAL):
            owner, what = partial["key"], "an unfinished store"
            held = {name: (tuple(array["shape"]), array["dtype"]) for name, array in partial["arrays"].items()}
    if owner != key:
        raise UserError(
            f"{path} holds {what} of other data or settings (key {owner}, wanted {key}); if it is of no more use, "
            f"{layout.anew(path)}"
        )
    if held != dict(shapes):
        raise UserError(f"{path} holds {what} of the same key but other arrays or shapes; {layout.anew(path)}")
    return index


# Every shard of the store by (array, number), and whether its file is finished.
_Found = dict[tuple[str, int], tuple[layout.Shard, bool]]


def _plan(key: str, shapes: Shapes, found: _Found) -> BuildPlan:
    finished = {place: shard for place, (shard, there) in found.items() if there}
    missing = (MissingShard(*place, shard.first, shard.rows) for place, (shard, there) in found.items() if not there)
    return BuildPlan(key, shapes, finished, tuple(missing))


def _shards_of(path: Path, index: layout.Index) -> _Found:
    """The shards of a complete store; a file that is missing or has the wrong size is not finished."""
    return {
        (name, number): (shard, layout.size_problem(path, shard) is None)
        for name, array in index.arrays.items()
        for number, shard in enumerate(array.shards)
    }


def _leftovers(path: Path, shapes: Shapes) -> _Found:
    """The shards to be written, finished where an earlier build left one that matches the checksum in its name."""
    found: _Found = {}
    for name, (shape, dtype) in shapes.items():
        for number, (first, rows) in enumerate(layout.plan(shape, dtype)):
            found[name, number] = (layout.Shard("", first, rows, rows * layout.row_bytes(shape, dtype), 0), False)
            for file in sorted(path.glob(f"{name}.{number:05d}.{'[0-9a-f]' * 8}.bin")):
                shard = replace(found[name, number][0], file=file.name, crc32=int(file.name.split(".")[2], 16))
                if layout.shard_problem(path, shard) is None:
                    found[name, number] = (shard, True)
                    break
    return found


def _total(shapes: Shapes) -> int:
    return sum(shape[0] * layout.row_bytes(shape, dtype) for shape, dtype in shapes.values())


def _seen(path: Path, shapes: Shapes) -> tuple[int, int]:
    """Bytes that another process has written so far, and bytes in all."""
    written = 0
    for file in path.glob("*.bin"):
        with suppress(FileNotFoundError):  # removed since it was listed
            written += file.stat().st_size
    return min(_total(shapes), written), _total(shapes)


def _shard_files(path: Path) -> Iterable[Path]:
    return [*path.glob(layout.SHARDS), *path.glob("*.tmp")]


@contextmanager
def _alone(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """One process at a time builds a store; the others wait, and call `waiting` now and then."""
    file, warned = path / layout.LOCK, False
    while True:
        with explained(path):
            lock = file.open("a")
        with lock:
            if held(lock, file):
                try:
                    yield
                finally:
                    file.unlink()
                return
        if not warned:
            warnings.warn(f"{path} is being built by another process; waiting for it", stacklevel=4)
            warned = True
        waiting()
        time.sleep(_INTERVAL)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say what to do when the disk refuses."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the store at {path} could not be written ({error.strerror or error}); mend that (space, permissions, "
            "path) and run the same command again: finished shards are kept"
        ) from error
