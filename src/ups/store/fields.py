"""A task's training fields in the array store: normalised, ready to gather."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ups.data.normalise import Normaliser
from ups.data.sampler import TaskIndices
from ups.data.splits import content_hashes
from ups.fields import Batch, Dataset
from ups.store.build import build
from ups.store.read import ArrayStore


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
    """Windows of one task's normalised trajectories, as `Batch`es, from mapped pages."""

    def __init__(self, path: Path, dataset: Dataset, normaliser: Normaliser, key: str) -> None:
        self.store = ArrayStore.open(path, key)
        self.normaliser, self.grid, self.boundary = normaliser, dataset.grid, dataset.boundary
        self.times = dataset.times
        self.frames, self.trajectories = len(dataset.times), len(dataset)
        spec = normaliser.spec
        self.parameters = (
            self.store["parameters"].rows(torch.arange(len(dataset))).float() if spec.parameters else torch.zeros(0, 0)
        )

    @classmethod
    def build(
        cls, path: Path, dataset: Dataset, normaliser: Normaliser, progress: Callable[[int, int], None] | None = None
    ) -> FieldStore:
        """Write the store if it is not there (or finish it), then open it."""
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
        key = store_key(dataset, normaliser)
        build(path, key, arrays, progress)
        return cls(path, dataset, normaliser, key)

    def gather(self, part: TaskIndices) -> Batch:
        """The windows of one micro-batch, normalised."""
        spec = self.normaliser.spec
        values = self.store["fields"].gather(part.ids, part.starts, part.frames, part.stride)
        frames = part.starts[:, None] + part.stride * torch.arange(part.frames)
        static = (
            self.store["static"].rows(part.ids) if spec.static else values.new_zeros(*values[:, 0, ..., 0].shape, 0)
        )
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


def store_key(dataset: Dataset, normaliser: Normaliser) -> str:
    """Data fingerprint, statistics and dtype: the same numbers, or another key."""
    content = [content_hashes(dataset), normaliser.statistics.to_dict(), "float32"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
