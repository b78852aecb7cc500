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
        self._frame = math.prod(layout.shape[2:])
        self._mapped = Mapped(path, layout)
        self._bounds = np.array([*(shard.first for shard in layout.shards), self.shape[0]])
        self._views: dict[tuple[int, ...], np.ndarray] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def gather(
        self, rows: Int[Tensor, " B"], starts: Int[Tensor, " B"], frames: int, stride: int = 1
    ) -> Float[Tensor, " B T *rest"]:
        """Frames starts[b], starts[b] + stride, … of row rows[b], as float32: the batch a step trains on."""
        row, start = rows.long().numpy(), starts.long().numpy()
        span = (frames - 1) * stride
        # As an unsigned number, one below 0 is far above all others.
        if len(start) and int(start.view(np.uint64).max()) + span >= self.shape[1]:
            raise IndexError(f"frames {start.min()} to {start.max() + span} asked of rows of {self.shape[1]} frames")
        if stride == 1:
            return self._copied(row, start * self._frame, (frames, *self.shape[2:])).float()
        times = start[:, None] + stride * np.arange(frames)
        return self._copied(row[:, None], times * self._frame, self.shape[2:]).float()

    def rows(self, ids: Int[Tensor, " B"]) -> Float[Tensor, " B *rest"]:
        """Whole rows, in the precision they were stored with."""
        return self._copied(ids.long().numpy(), 0, self.shape[1:])

    def _copied(self, row: np.ndarray, offset: np.ndarray | int, shape: tuple[int, ...]) -> Tensor:
        """Stretches of this shape, each beginning so many numbers after its row does."""
        try:
            return torch.from_numpy(self._stretches(self._places(row) + offset, shape))
        except IndexError:  # rarely: the fast path asks nothing
            if row.min() < 0 or row.max() >= self.shape[0]:
                raise IndexError(f"rows {row.min()} to {row.max()} asked of {self.shape[0]} rows") from None
            self._mapped.need(self._bounds.searchsorted(row, side="right") - 1)
        return torch.from_numpy(self._stretches(self._places(row) + offset, shape))

    def _places(self, row: np.ndarray) -> np.ndarray:
        """Where each row's numbers begin: beyond all numbers, if its shard is not mapped or there is no such row."""
        shard = self._bounds.searchsorted(row, side="right") - 1
        return self._mapped.origins[shard] + row * (self.shape[1] * self._frame)

    def _stretches(self, begin: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        numbers, width = self._mapped.numbers, math.prod(shape)
        if width * numbers.itemsize > _WIDE:
            if begin.max(initial=0) > len(numbers) - width:
                raise IndexError
            out = np.empty((*begin.shape, *shape), numbers.dtype)
            for stretch, first in zip(out.reshape(-1, width), begin.ravel().tolist(), strict=True):
                stretch[:] = numbers[first : first + width]
            return out
        view = self._views.get(shape)
        if view is None:  # every stretch of this shape, wherever it begins: NumPy copies those asked for in one call
            first = numbers[:width].reshape(shape)
            everywhere, strides = (len(numbers) - width + 1, *shape), (numbers.itemsize, *first.strides)
            view = self._views[shape] = np.ndarray(everywhere, numbers.dtype, numbers, 0, strides)
        return view[begin]
