"""Writing a store: shard by shard, so that an interrupted build loses at most the shards it was writing.

Shards are independent of one another: any number of processes (`workers`) or ranks (`ranks.py`) write them, and the
bytes are the same. One process at a time claims a store, plans what is missing, and writes the index at the end.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Protocol

import numpy as np

from ups.data.generate.workers import worker_pool
from ups.durable import write
from ups.errors import UserError
from ups.store import layout
from ups.store.claim import Piece, explained, finish, planned
from ups.store.layout import Index, Shard, StoreDamaged, anew, little_endian, read_index, row_bytes
from ups.track.tick import Tick


class ArraySource(Protocol):
    """Where an array's rows come from; only the rows asked for are made. With workers, it travels to them by pickle."""

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
    progress: Tick | None = None,
    *,
    workers: int = 1,
    rebuild: bool = False,
) -> Index:
    """Write the arrays into a store at `path`, or finish what an earlier call began.

    `key` is a digest of everything the numbers depend on (data, statistics, dtype, codec). A complete store of this key
    is left as it is, apart from shards that are missing or have the wrong size; a store of another key is refused
    unless `rebuild`, which starts anew. While another process builds the store, this one waits, then finds it done or
    goes on where it was left. `progress(bytes done, bytes in all)` is called after each shard. With more than one
    worker, a script must call this under `if __name__ == "__main__"`.
    """
    progress = progress or (lambda done, total: None)
    with planned(path, key, arrays, progress, rebuild=rebuild) as todo:
        done, total, written = todo.done, todo.total, {}
        progress(done, total)
        for piece, shard in write_pieces(path, todo.missing, arrays, workers):
            written[piece] = shard
            done += shard.bytes
            progress(done, total)
        return finish(path, todo, written)


def write_pieces(
    path: Path, pieces: Sequence[Piece], arrays: Mapping[str, ArraySource], workers: int = 1
) -> Iterator[tuple[Piece, Shard]]:
    """Write shards, in any order; each is whole under its name when it is given."""
    size = sum(piece.rows * row_bytes(arrays[piece.array].shape, arrays[piece.array].dtype.name) for piece in pieces)
    workers = min(workers, -(-size // layout.SHARD_BYTES))  # small arrays are written before a process has started
    if workers <= 1:
        for piece in pieces:
            yield piece, write_shard(path, piece, arrays[piece.array])
        return
    pool = worker_pool(workers, _take_sources, arrays)
    try:
        futures = {pool.submit(_write_in_worker, path, piece): piece for piece in pieces}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise UserError(
            f"the store at {path}: a worker process was killed, perhaps for want of memory; start again with fewer "
            "workers: finished shards are kept"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def rewrite(path: Path, arrays: Mapping[str, ArraySource], damage: StoreDamaged) -> None:
    """Write the shard that was found damaged again, from its source.

    The whole file replaces the damaged one in one act, so that any number of processes may do it at once. Where the
    source no longer gives the bytes that were stored, the store is left as it is.
    """
    index = read_index(path)
    for name, array in index.arrays.items() if index else ():
        for number, shard in enumerate(array.shards):
            if shard.file == damage.file:
                again = write_shard(path, Piece(name, number, shard.first, shard.rows), arrays[name])
                if again != shard:
                    (path / again.file).unlink()
                    raise StoreDamaged(f"{damage.problem}, and its data have changed since", anew(path))
                return
    raise damage


def write_shard(path: Path, piece: Piece, source: ArraySource) -> Shard:
    """Make a shard's rows and write them: to a temporary name, synced, renamed."""
    first, rows = piece.first, piece.rows
    block = source.read(first, first + rows)
    if block.shape != (rows, *source.shape[1:]) or block.dtype != source.dtype:
        raise ValueError(
            f"array {piece.array!r}: rows {first} to {first + rows} came as {block.dtype} {block.shape}, "
            f"but the source says {source.dtype} {(rows, *source.shape[1:])}"
        )
    block = np.ascontiguousarray(block, dtype=little_endian(block.dtype.name))
    content = block.reshape(-1).view(np.uint8).data
    crc = zlib.crc32(content)
    stem = f"{piece.array}.{piece.number:05d}"
    with explained(path):
        # Not the process's number alone: ranks in containers have the same ones.
        write(path / f"{stem}.{crc:08x}.bin", content, temporary=path / f"{stem}.{uuid.uuid4().hex[:12]}.tmp")
    return Shard(f"{stem}.{crc:08x}.bin", first, rows, len(content), crc)


_sources: Mapping[str, ArraySource] = {}
"""In a worker process: what its shards are made from."""


def _take_sources(number: int, arrays: Mapping[str, ArraySource]) -> None:
    global _sources
    _sources = arrays


def _write_in_worker(path: Path, piece: Piece) -> Shard:
    return write_shard(path, piece, _sources[piece.array])
