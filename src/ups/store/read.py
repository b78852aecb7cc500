"""Reading a store: windows of many trajectories in one gather, straight from the page cache.

Any number of processes map the same pages. There are no worker processes and no shared-memory segments: a gather of
mapped rows is faster than a loader's queues.
"""

from __future__ import annotations

import resource
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.errors import UserError
from ups.store.layout import (
    ArrayLayout,
    Index,
    Shard,
    StoreDamaged,
    anew,
    content_problem,
    little_endian,
    read_index,
    size_problem,
)

REWRITE = "run the same command again, which writes this file anew and no other"


class ArrayStore:
    """A complete store: `store["fields"].gather(rows, starts, frames=8, stride=1)`."""

    def __init__(self, path: Path, index: Index) -> None:
        self.path = path
        self.key = index.key
        maps = _Maps(path)
        self._arrays = {name: StoredArray(layout, maps) for name, layout in index.arrays.items()}

    @classmethod
    def open(cls, path: Path, key: str | None = None) -> ArrayStore:
        """Open the store at `path`, refusing one made from something else than `key`, or with files of a wrong size."""
        index = read_index(path)
        if index is None:
            raise UserError(f"{path} holds no complete store; build it first")
        if key is not None and index.key != key:
            raise UserError(
                f"{path} was built from other data or settings (key {index.key}, wanted {key}); {anew(path)}"
            )
        for array in index.arrays.values():
            for shard in array.shards:
                problem = size_problem(path, shard)
                if problem:
                    raise StoreDamaged(problem, REWRITE, shard.file)
        return cls(path, index)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._arrays)

    def __getitem__(self, name: str) -> StoredArray:
        if name not in self._arrays:
            raise UserError(f"the store at {self.path} has no array {name!r}; it has {', '.join(self._arrays)}")
        return self._arrays[name]


class StoredArray:
    """N rows of equal shape, on disk."""

    def __init__(self, layout: ArrayLayout, maps: _Maps) -> None:
        self.shape = layout.shape
        self.dtype = layout.dtype
        self._shards = layout.shards
        self._firsts = np.array([shard.first for shard in layout.shards])
        self._maps = maps

    def __len__(self) -> int:
        return self.shape[0]

    def gather(
        self, rows: Int[Tensor, " B"], starts: Int[Tensor, " B"], frames: int, stride: int = 1
    ) -> Float[Tensor, " B T *rest"]:
        """Frames starts[b], starts[b] + stride, … of row rows[b], as float32: the batch a step trains on."""
        row, start = rows.numpy(), starts.numpy()
        times = start[:, None] + stride * np.arange(frames)
        if times.size and (times.min() < 0 or times.max() >= self.shape[1]):
            raise IndexError(f"frames {times.min()} to {times.max()} asked of rows of {self.shape[1]} frames")
        out = torch.empty((len(row), frames, *self.shape[2:]), dtype=torch.float32)
        view = out.numpy()
        for mapped, local, where in self._by_shard(row):
            view[where] = mapped[local[:, None], times[where]]
        return out

    def rows(self, ids: Int[Tensor, " B"]) -> Float[Tensor, " B *rest"]:
        """Whole rows, in the precision they were stored with."""
        row = ids.numpy()
        out = torch.empty((len(row), *self.shape[1:]), dtype=getattr(torch, self.dtype))
        view = out.numpy()
        for mapped, local, where in self._by_shard(row):
            view[where] = mapped[local]
        return out

    def _by_shard(self, row: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | slice]]:
        """For each shard that holds some of the rows: its numbers, the rows' places in it, and in the batch."""
        if row.size and (row.min() < 0 or row.max() >= self.shape[0]):
            raise IndexError(f"rows {row.min()} to {row.max()} asked of {self.shape[0]} rows")
        owner = np.searchsorted(self._firsts, row, side="right") - 1
        for number in np.unique(owner):
            shard = self._shards[number]
            where = np.flatnonzero(owner == number)
            mapped = self._maps.get(shard, self.dtype, self.shape)
            # A slice spares copies of the index arrays when one shard has the whole batch, as in small sets.
            yield mapped, row[where] - shard.first, slice(None) if len(where) == len(row) else where


class _Maps:
    """The mapped shards of a store, the most recently used ones.

    A mapping holds one file descriptor, and some machines allow 256 of them: a quarter of what is allowed is used.
    Each shard's checksum is verified when it is first mapped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: OrderedDict[str, np.ndarray] = OrderedDict()
        self._verified: set[str] = set()
        self._lock = threading.Lock()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = 4096 if soft == resource.RLIM_INFINITY else min(4096, max(8, soft // 4))

    def get(self, shard: Shard, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        with self._lock:
            mapped = self._open.pop(shard.file, None)
            if mapped is None:
                mapped = self._map(shard, dtype, shape)
            self._open[shard.file] = mapped
            if len(self._open) > self._most:
                self._open.popitem(last=False)
        return mapped

    def _map(self, shard: Shard, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        problem = size_problem(self._path, shard)
        if problem:
            raise StoreDamaged(problem, REWRITE, shard.file)
        kind = little_endian(dtype)
        mapped = np.asarray(np.memmap(self._path / shard.file, dtype=kind, mode="r", shape=(shard.rows, *shape[1:])))
        if shard.file not in self._verified:
            problem = content_problem(self._path, shard, zlib.crc32(mapped.reshape(-1).view(np.uint8).data))
            if problem:
                raise StoreDamaged(problem, f"remove this file and {REWRITE}", shard.file)
            self._verified.add(shard.file)
        return mapped
