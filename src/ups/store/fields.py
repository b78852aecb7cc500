"""A task's training fields in the array store: normalised, ready to gather."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.normalise import Normaliser
from ups.data.sampler import TaskIndices
from ups.data.splits import content_hashes
from ups.fields import Batch, Dataset
from ups.store.build import build, rewrite
from ups.store.layout import StoreDamaged
from ups.store.read import ArrayStore

CODEC = 1
"""Counts the changes to how fields become stored numbers: stores of another count are refused, not misread."""


@dataclass(frozen=True)
class _Rows:
    """One array of the store, made from the dataset row by row."""

    dataset: Dataset
    shape: tuple[int, ...]
    convert: Callable[[Batch], Tensor]

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def read(self, lo: int, hi: int) -> np.ndarray:
        return self.convert(self.dataset.read(range(lo, hi), slice(None))).numpy().astype(self.dtype)


class FieldStore:
    """Windows of one task's normalised trajectories, as `Batch`es, from mapped pages.

    A shard that turns out to be damaged is written again from the data, with a warning, and training goes on.
    """

    def __init__(self, path: Path, dataset: Dataset, normaliser: Normaliser, key: str) -> None:
        self.store = ArrayStore.open(path, key)
        self._sources = _sources(dataset, normaliser)
        self._mended: set[str] = set()
        self.normaliser, self.grid, self.boundary = normaliser, dataset.grid, dataset.boundary
        self.times = dataset.times
        self.frames, self.trajectories = len(dataset.times), len(dataset)
        spec = normaliser.spec
        self.parameters = (
            self.rows("parameters", torch.arange(len(dataset))).float() if spec.parameters else torch.zeros(0, 0)
        )

    @classmethod
    def build(
        cls, path: Path, dataset: Dataset, normaliser: Normaliser, progress: Callable[[int, int], None] | None = None
    ) -> FieldStore:
        """Write the store if it is not there (or finish it), then open it."""
        key = store_key(dataset, normaliser)
        build(path, key, _sources(dataset, normaliser), progress)
        return cls(path, dataset, normaliser, key)

    @property
    def nbytes(self) -> int:
        """What all numbers of the store take."""
        arrays = (self.store[name] for name in self.store.names)
        return sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays)

    def rows(self, name: str, ids: Int[Tensor, " B"]) -> Float[Tensor, " B *rest"]:
        """Whole rows of one of the store's arrays."""
        return self._read(lambda: self.store[name].rows(ids))

    def gather(self, part: TaskIndices) -> Batch:
        """The windows of one micro-batch, normalised."""
        spec = self.normaliser.spec
        values = self._read(lambda: self.store["fields"].gather(part.ids, part.starts, part.frames, part.stride))
        frames = part.starts[:, None] + part.stride * torch.arange(part.frames)
        static = self.rows("static", part.ids) if spec.static else values.new_zeros(*values[:, 0, ..., 0].shape, 0)
        return Batch(
            task=spec.name,
            values=values,
            times=self.times[frames],
            grid=self.grid,
            boundary=self.boundary,
            parameters={name: self.parameters[part.ids, i] for i, name in enumerate(spec.parameters)},
            static={name: static[..., i] for i, name in enumerate(spec.static)},
            ids=part.ids,
        )

    def _read(self, read: Callable[[], Tensor]) -> Tensor:
        """What `read` gives, once the damaged shards it meets are mended: each once, or the disk is to blame."""
        while True:
            try:
                return read()
            except StoreDamaged as damage:
                if damage.file is None or damage.file in self._mended:
                    raise
                self._mended.add(damage.file)
                warnings.warn(f"{damage.problem}; it is written again from the data", stacklevel=3)
                rewrite(self.store.path, self._sources, damage)


def _sources(dataset: Dataset, normaliser: Normaliser) -> dict[str, _Rows]:
    """The arrays of a task's store, as the data give them."""
    spec, space = normaliser.spec, dataset.grid.shape
    n, frames = len(dataset), len(dataset.times)
    arrays = {
        "fields": _Rows(dataset, (n, frames, *space, len(spec.channels)), lambda b: normaliser.normalise(b.values))
    }
    if spec.static:
        arrays["static"] = _Rows(
            dataset, (n, *space, len(spec.static)), lambda b: normaliser.static(b.static, b.values)
        )
    if spec.parameters:
        arrays["parameters"] = _Rows(
            dataset,
            (n, len(spec.parameters)),
            lambda b: torch.stack([b.parameters[p] for p in spec.parameters], -1),
        )
    return arrays


def store_key(dataset: Dataset, normaliser: Normaliser) -> str:
    """Data fingerprint, statistics and how they become numbers: the same numbers, or another key."""
    codec = [CODEC, "float32", [(channel.name, channel.transform) for channel in normaliser.spec.channels]]
    content = [content_hashes(dataset), normaliser.statistics.to_dict(), codec]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
