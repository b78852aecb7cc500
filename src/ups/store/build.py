"""Writing a store: shard by shard, so that an interrupted build loses at most the shards it was writing.

Shards are independent of one another: any number of processes (`workers`) or ranks (`ranks.py`) write them, and the
bytes are the same. One process at a time claims a store, plans what is missing, and writes the index at the end.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ups.data.generate.workers import in_workers
from ups.durable import write
from ups.store import layout
from ups.store.claim import ArraySource, MissingShard, explained, finish, planned
from ups.store.layout import Index, Shard, StoreDamaged, anew, little_endian, read_index, row_bytes
from ups.track.tick import Tick


def build(
    path: Path,
    key: str,
    arrays: Mapping[str, ArraySource],
    progress: Tick | None = None,
    *,
    workers: int = 1,
) -> Index:
    """Write the arrays into a store at `path`, or finish what an earlier call began.

    `key` is a digest of everything the numbers depend on (data, statistics, dtype, codec). A complete store of this key
    is left as it is, apart from shards that are missing or have the wrong size; a store of another key is refused.
    While another process builds the store, this one waits, then finds it done or goes on where it was left.
    `progress(bytes done, bytes in all)` is called after each shard. With more than one worker, a script must call this
    under `if __name__ == "__main__"`.
    """
    progress = progress or (lambda done, total: None)
    with planned(path, key, arrays, progress) as todo:
        done, total, written = todo.done, todo.total, {}
        progress(done, total)
        for wanted, shard in write_shards(path, todo.missing, arrays, workers):
            written[wanted] = shard
            done += shard.bytes
            progress(done, total)
        return finish(path, todo, written)


def write_shards(
    path: Path, missing: Sequence[MissingShard], arrays: Mapping[str, ArraySource], workers: int = 1
) -> Iterator[tuple[MissingShard, Shard]]:
    """Write shards, in any order; each is whole under its name when it is given."""
    size = sum(
        wanted.rows * row_bytes(arrays[wanted.array].shape, arrays[wanted.array].dtype.name) for wanted in missing
    )
    workers = min(workers, -(-size // layout.SHARD_BYTES))  # small arrays are written before a process has started
    kept = f": finished shards are kept in {path}"
    return in_workers(partial(write_shard, path, arrays), missing, workers, kept)


def rewrite(path: Path, arrays: Mapping[str, ArraySource], damage: StoreDamaged) -> None:
    """Write the shard that was found damaged again, from its source.

    The whole file replaces the damaged one in one act, so that any number of processes may do it at once. Where the
    source no longer gives the bytes that were stored, the store is left as it is.
    """
    index = read_index(path)
    for name, array in index.arrays.items() if index else ():
        for number, shard in enumerate(array.shards):
            if shard.file == damage.file:
                again = write_shard(path, arrays, MissingShard(name, number, shard.first, shard.rows))
                if again != shard:
                    (path / again.file).unlink()
                    raise StoreDamaged(f"{damage.problem}, and its data have changed since", anew(path))
                return
    raise damage


def write_shard(path: Path, arrays: Mapping[str, ArraySource], wanted: MissingShard) -> Shard:
    """Make a shard's rows and write them: to a temporary name, synced, renamed."""
    source, first, rows = arrays[wanted.array], wanted.first, wanted.rows
    block = source.read(first, first + rows)
    if block.shape != (rows, *source.shape[1:]) or block.dtype != source.dtype:
        raise ValueError(
            f"array {wanted.array!r}: rows {first} to {first + rows} came as {block.dtype} {block.shape}, "
            f"but the source says {source.dtype} {(rows, *source.shape[1:])}"
        )
    block = np.ascontiguousarray(block, dtype=little_endian(block.dtype.name))
    content = block.reshape(-1).view(np.uint8).data
    crc = zlib.crc32(content)
    stem = f"{wanted.array}.{wanted.number:05d}"
    with explained(path):
        # Not the process's number alone: ranks in containers have the same ones.
        write(path / f"{stem}.{crc:08x}.bin", content, temporary=path / f"{stem}.{uuid.uuid4().hex[:12]}.tmp")
    return Shard(f"{stem}.{crc:08x}.bin", first, rows, len(content), crc)
