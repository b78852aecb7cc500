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
    """A complete store: `store["fields"].gather(rows, starts, frames=8)`."""

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
    """N rows of equal shape, on disk.

    A gather asks little before it copies, because at a thousand numbers a window the questions cost as much as the
    copying: it looks places up in tables, which end where the data do; what is not mapped yet lies beyond all numbers.
    NumPy refuses both, and only then is it found out why.
    """

    def __init__(self, path: Path, layout: ArrayLayout) -> None:
        self.shape = layout.shape
        self.dtype = layout.dtype
        self._frame = math.prod(layout.shape[2:])
        self._mapped = Mapped(path, layout)
        self._offsets: dict[int, np.ndarray] = {}
        self._stretches: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self.shape[0]

    def gather(
        self, rows: Int[Tensor, " B"], starts: Int[Tensor, " B"], frames: int, strides: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, " B T *rest"]:
        """Frames starts[b], starts[b] + strides[b], … of row rows[b], as float32: the batch a step trains on. Without
        strides, frames that follow one another.
        """
        return self._read(rows, starts, frames, strides).float()

    def rows(self, ids: Int[Tensor, " B"]) -> Float[Tensor, " B *rest"]:
        """Whole rows, in the precision they were stored with."""
        return self._read(ids, torch.zeros_like(ids), self.shape[1])

    def _read(self, rows: Tensor, starts: Tensor, frames: int, strides: Tensor | None = None) -> Tensor:
        row, start = rows.long().numpy(), starts.long().numpy()
        stride = None if strides is None or bool((strides == 1).all()) else strides.long().numpy()
        try:
            found = self._windows(row, start, frames, stride)
        except IndexError:
            last = start + (frames - 1) * (1 if stride is None else stride)
            if row.min() < 0 or row.max() >= self.shape[0]:
                raise IndexError(f"rows {row.min()} to {row.max()} asked of {self.shape[0]} rows") from None
            if start.min() < 0 or last.min() < 0 or last.max() >= self.shape[1]:
                asked = f"{min(start.min(), last.min())} to {last.max()}"
                raise IndexError(f"frames {asked} asked of rows of {self.shape[1]} frames") from None
            self._mapped.need(row)
            found = self._windows(row, start, frames, stride)
        return torch.from_numpy(found.reshape(len(row), frames, *self.shape[2:]))

    def _windows(self, row: np.ndarray, start: np.ndarray, frames: int, stride: np.ndarray | None) -> np.ndarray:
        """The numbers of the windows; an IndexError if any is not there. `stride` is None where all are 1: then a
        window is one stretch.
        """
        signs = row | start if stride is None else row | start | stride
        if len(row) and np.minimum.reduce(signs) < 0:  # that of one is that of all
            raise IndexError
        span = frames - 1 if stride is None else 0
        if span not in self._offsets:
            self._offsets[span] = self._frame * np.arange(self.shape[1] - span)
        if stride is None:
            return self._copied(self._mapped.places[row] + self._offsets[span][start], frames * self._frame)
        each = start[:, None] + stride[:, None] * np.arange(frames)
        return self._copied(self._mapped.places[row][:, None] + self._offsets[span][each], self._frame)

    def _copied(self, begin: np.ndarray, width: int) -> np.ndarray:
        numbers = self._mapped.numbers
        if width * numbers.itemsize > _WIDE:
            if begin.max(initial=0) > len(numbers) - width:
                raise IndexError
            out = np.empty((*begin.shape, width), numbers.dtype)
            for stretch, first in zip(out.reshape(-1, width), begin.ravel().tolist(), strict=True):
                stretch[:] = numbers[first : first + width]
            return out
        view = self._stretches.get(width)
        if view is None:  # all stretches of this width: NumPy copies those asked for in one call
            strides = (numbers.itemsize, numbers.itemsize)
            view = np.ndarray((len(numbers) - width + 1, width), numbers.dtype, numbers, 0, strides)
            self._stretches[width] = view
        return view[begin]
