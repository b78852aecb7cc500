"""Writing a store: shard by shard, so that an interrupted build loses at most the shard it was writing."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from ups.durable import crc32_of, seal, write
from ups.errors import UserError
from ups.store.layout import (
    INDEX,
    PARTIAL,
    ArrayLayout,
    Index,
    Shard,
    StoreDamaged,
    anew,
    check_array,
    content_problem,
    little_endian,
    plan,
    read_index,
    read_sealed,
    row_bytes,
    size_problem,
)


class ArraySource(Protocol):
    """Where an array's rows come from; only the rows asked for are made."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    def read(self, lo: int, hi: int) -> np.ndarray:
        """Rows lo … hi − 1, of shape (hi − lo, ...); the same bytes each time it is asked."""
        ...


def build(
    path: Path,
    key: str,
    arrays: Mapping[str, ArraySource],
    progress: Callable[[int, int], None] | None = None,
    *,
    rebuild: bool = False,
) -> Index:
    """Write the arrays into a store at `path`, or finish what an earlier call began.

    `key` is a digest of everything the numbers depend on (data, statistics, dtype, codec). A complete store of this key
    is left as it is, apart from shards that are missing or have the wrong size; a store of another key is refused
    unless `rebuild`, which starts anew. `progress(bytes done, bytes in all)` is called after each shard.
    """
    shapes = {name: (tuple(source.shape), np.dtype(source.dtype).name) for name, source in arrays.items()}
    for name, (shape, dtype) in shapes.items():
        check_array(name, shape, dtype)
    with _explained(path):
        path.mkdir(parents=True, exist_ok=True)
        if rebuild:  # without an index or a claim, the shards belong to nobody
            (path / INDEX).unlink(missing_ok=True)
            (path / PARTIAL).unlink(missing_ok=True)
        index = _claim(path, key, shapes)
        found = _shards_of(path, index) if index else _leftovers(path, shapes)
        total = sum(shape[0] * row_bytes(shape, dtype) for shape, dtype in shapes.values())
        done = sum(shard.bytes for shard, finished in found.values() if finished)
        _check_space(path, total - done)
    shards: dict[str, list[Shard]] = {name: [] for name in shapes}
    for (name, number), (shard, finished) in found.items():
        if not finished:
            shard = _write_shard(path, name, number, arrays[name], shard.first, shard.rows)
            done += shard.bytes
        shards[name].append(shard)
        if progress:
            progress(done, total)
    with _explained(path):
        built = Index(key, {n: ArrayLayout(dtype, shape, tuple(shards[n])) for n, (shape, dtype) in shapes.items()})
        if built != index:
            write(path / INDEX, built.sealed())
        _tidy(path, built)
    return built


def rewrite(path: Path, arrays: Mapping[str, ArraySource], damage: StoreDamaged) -> None:
    """Write the shard that was found damaged again, from its source.

    The whole file replaces the damaged one in one act, so that any number of processes may do it at once. Where the
    source no longer gives the bytes that were stored, the store is left as it is.
    """
    index = read_index(path)
    for name, array in index.arrays.items() if index else ():
        for number, shard in enumerate(array.shards):
            if shard.file == damage.file:
                again = _write_shard(path, name, number, arrays[name], shard.first, shard.rows)
                if again != shard:
                    (path / again.file).unlink()
                    raise StoreDamaged(f"{damage.problem}, and its data have changed since", anew(path))
                return
    raise damage


def _claim(path: Path, key: str, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> Index | None:
    """Make sure that what lies at `path` is ours, finished or not; the index if it is finished."""
    index = read_index(path)
    if index is not None:
        owner, what = index.key, "a store"
        held = {name: (array.shape, array.dtype) for name, array in index.arrays.items()}
    else:
        partial = read_sealed(path / PARTIAL)
        if partial is None:
            arrays = {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in shapes.items()}
            for file in _shard_files(path):  # of an unknown key: none of them may end up in this store
                file.unlink()
            write(path / PARTIAL, seal({"key": key, "arrays": arrays}))
            return None
        owner, what = partial["key"], "an unfinished store"
        held = {name: (tuple(array["shape"]), array["dtype"]) for name, array in partial["arrays"].items()}
    if owner != key:
        raise UserError(
            f"{path} holds {what} of other data or settings (key {owner}, wanted {key}); if it is of no more use, "
            f"{anew(path)}"
        )
    if held != dict(shapes):
        raise UserError(f"{path} holds {what} of the same key but other arrays or shapes; {anew(path)}")
    return index


# Every shard of the store by (array, number), and whether its file is finished.
_Found = dict[tuple[str, int], tuple[Shard, bool]]


def _shards_of(path: Path, index: Index) -> _Found:
    """The shards of a complete store; a file that is missing or has the wrong size is not finished."""
    return {
        (name, number): (shard, size_problem(path, shard) is None)
        for name, array in index.arrays.items()
        for number, shard in enumerate(array.shards)
    }


def _leftovers(path: Path, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> _Found:
    """The shards to be written, finished where an earlier build left one that matches the checksum in its name."""
    found: _Found = {}
    for name, (shape, dtype) in shapes.items():
        for number, (first, rows) in enumerate(plan(shape, dtype)):
            found[name, number] = (Shard("", first, rows, rows * row_bytes(shape, dtype), 0), False)
            for file in sorted(path.glob(f"{name}.{number:05d}.*.bin")):
                shard = replace(found[name, number][0], file=file.name, crc32=int(file.name.split(".")[2], 16))
                if size_problem(path, shard) is None and content_problem(path, shard, crc32_of(file)) is None:
                    found[name, number] = (shard, True)
                    break
    return found


def _write_shard(path: Path, name: str, number: int, source: ArraySource, first: int, rows: int) -> Shard:
    block = source.read(first, first + rows)
    if block.shape != (rows, *source.shape[1:]) or block.dtype != source.dtype:
        raise ValueError(
            f"array {name!r}: rows {first} to {first + rows} came as {block.dtype} {block.shape}, "
            f"but the source says {source.dtype} {(rows, *source.shape[1:])}"
        )
    block = np.ascontiguousarray(block, dtype=little_endian(block.dtype.name))
    content = block.reshape(-1).view(np.uint8).data
    crc = zlib.crc32(content)
    file = f"{name}.{number:05d}.{crc:08x}.bin"
    with _explained(path):
        write(path / file, content, temporary=path / f"{name}.{number:05d}.{os.getpid()}.tmp")
    return Shard(file, first, rows, len(content), crc)


def _check_space(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path).free
    if needed > free:
        raise UserError(
            f"{path} needs {needed / 2**30:.1f} GiB more and its disk has {free / 2**30:.1f} GiB free; "
            "make room or give the store another path"
        )


def _tidy(path: Path, index: Index) -> None:
    """Remove what killed builds left behind."""
    kept = {shard.file for array in index.arrays.values() for shard in array.shards}
    for file in [*_shard_files(path), path / PARTIAL]:
        if file.name not in kept:
            file.unlink(missing_ok=True)


def _shard_files(path: Path) -> list[Path]:
    return [*path.glob("*.[0-9][0-9][0-9][0-9][0-9].*.bin"), *path.glob("*.tmp")]


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say what to do when the disk refuses."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the store at {path} could not be written ({error.strerror or error}); mend that (space, permissions, "
            "path) and run the same command again: finished shards are kept"
        ) from error
