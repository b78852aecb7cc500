"""Reading a store: windows of many trajectories in one gather, straight from the page cache.

Any number of processes map the same pages. There are no worker processes and no shared-memory segments: a gather of
mapped rows is as fast as one from memory, and faster than a loader's queues.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.errors import UserError
from ups.store.layout import REWRITE, ArrayLayout, Index, StoreDamaged, anew, read_index, size_problem
from ups.store.mapped import Mapped

_WIDE = 2**20
"""Bytes of a stretch from which on one copy each costs nothing beside the copying, and the view below would be of more
bytes than NumPy can count.
"""


class ArrayStore:
    """A complete store: `store["fields"].gather(rows, starts, frames=8, stride=1)`."""

    def __init__(self, path: Path, index: Index) -> None:
        self.path = path
        self.key = index.key
        self._arrays = {name: StoredArray(path, layout) for name, layout in index.arrays.items()}

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

    def __init__(self, path: Path, layout: ArrayLayout) -> None:
        self.shape = layout.shape
        self.dtype = layout.dtype
        self._firsts = np.array([shard.first for shard in layout.shards])
        self._frame = math.prod(layout.shape[2:])
        self._mapped = Mapped(path, layout)

    def __len__(self) -> int:
        return self.shape[0]

    def gather(
        self, rows: Int[Tensor, " B"], starts: Int[Tensor, " B"], frames: int, stride: int = 1
    ) -> Float[Tensor, " B T *rest"]:
        """Frames starts[b], starts[b] + stride, … of row rows[b], as float32: the batch a step trains on."""
        row, start = _int64(rows), _int64(starts)
        last = self.shape[1] - 1 - (frames - 1) * stride
        if (start.view(np.uint64) > max(last, 0)).any() or (last < 0 and start.size):  # below 0 is far above as uint64
            beyond = start.max() + (frames - 1) * stride
            raise IndexError(f"frames {start.min()} to {beyond} asked of rows of {self.shape[1]} frames")
        begin = self._places(row) + start * self._frame
        if stride == 1 or frames == 1:
            found = self._copied(begin, frames * self._frame)
        else:
            found = self._copied((begin[:, None] + stride * self._frame * np.arange(frames)).ravel(), self._frame)
        return found.view(len(row), frames, *self.shape[2:]).float()

    def rows(self, ids: Int[Tensor, " B"]) -> Float[Tensor, " B *rest"]:
        """Whole rows, in the precision they were stored with."""
        row = _int64(ids)
        return self._copied(self._places(row), self.shape[1] * self._frame).view(len(row), *self.shape[1:])

    def _places(self, row: np.ndarray) -> np.ndarray:
        """Where each row's numbers begin, their shards being there."""
        if (row.view(np.uint64) >= self.shape[0]).any():
            raise IndexError(f"rows {row.min()} to {row.max()} asked of {self.shape[0]} rows")
        shard = np.searchsorted(self._firsts, row, side="right") - 1
        self._mapped.need(shard)
        return self._mapped.starts[shard] + (row - self._firsts[shard]) * (self.shape[1] * self._frame)

    def _copied(self, begin: np.ndarray, width: int) -> Float[Tensor, "..."]:
        """`width` numbers from each of these places on."""
        numbers = self._mapped.numbers
        step = numbers.itemsize
        if width * step > _WIDE:
            out = np.empty((len(begin), width), numbers.dtype)
            for stretch, first in zip(out, begin.tolist(), strict=True):
                stretch[:] = numbers[first : first + width]
            return torch.from_numpy(out)
        # Every stretch of that width is a row of this view, so that NumPy copies all of them in one call.
        stretches = np.ndarray((len(numbers) - width + 1, width), numbers.dtype, numbers, 0, (step, step))
        return torch.from_numpy(stretches[begin])


def _int64(indices: Int[Tensor, " B"]) -> np.ndarray:
    return indices.numpy().astype(np.int64, copy=False)
