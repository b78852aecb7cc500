"""A task's training fields in the array store: normalised, ready to gather."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.splits import content_hashes
from ups.data.sampler import TaskIndices
from ups.errors import UserError
from ups.fields import Batch, Dataset
from ups.store.build import build, rewrite
from ups.store.layout import StoreDamaged
from ups.store.read import ArrayStore
from ups.track.tick import Tick

CODEC = 1
"""Counts the changes to how fields become stored numbers: stores of another count are refused, not misread."""


@dataclass(frozen=True)
class _Rows:
    """One array of the store (fields, static or parameters), made from the dataset row by row."""

    dataset: Dataset
    normaliser: Normaliser
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, lo: int, hi: int) -> np.ndarray:
        frames = slice(None) if self.name == "fields" else slice(0, 1)
        with _one_thread():
            numbers = self._convert(self.dataset.read(range(lo, hi), frames))
            found = numbers.to(getattr(torch, self.dtype.name))
            if found.dtype == torch.float16 and not bool(found.isfinite().all()):
                row = int((~found.isfinite()).flatten(1).any(1).nonzero()[0])
                raise UserError(
                    f"task {self.normaliser.spec.name!r}: the {self.name} of trajectory {lo + row} reach "
                    f"{float(numbers[row].abs().max()):.3g} in normalised units, half precision ends at 65504; "
                    "use data.store=float32"
                )
        return found.numpy()

    def _convert(self, batch: Batch) -> Tensor:
        if self.name == "fields":
            return self.normaliser.normalise(batch.values)
        if self.name == "static":
            return self.normaliser.static(batch.static, batch.values)
        return torch.stack([batch.parameters[name] for name in self.normaliser.spec.parameters], -1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Where a vectorised logarithm is split among threads can decide its last digit: the bytes must not follow the
    number of ranks, which share the cores out.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class FieldStore:
    """Windows of one task's normalised trajectories, as `Batch`es, from mapped pages.

    A shard that turns out to be damaged is written again from the data, with a warning, and training goes on.
    """

    def __init__(self, path: Path, dataset: Dataset, normaliser: Normaliser, key: str) -> None:
        self.store = ArrayStore.open(path, key)
        self._sources = field_arrays(dataset, normaliser, self.store["fields"].dtype)
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
        cls,
        path: Path,
        dataset: Dataset,
        normaliser: Normaliser,
        progress: Tick | None = None,
        *,
        dtype: str = "float32",
        workers: int = 1,
    ) -> FieldStore:
        """Write the store if it is not there (or finish it), then open it. Parameters are float32 whatever `dtype`."""
        key = store_key(dataset, normaliser, dtype)
        build(path, key, field_arrays(dataset, normaliser, dtype), progress, workers=workers)
        return cls(path, dataset, normaliser, key)

    @property
    def nbytes(self) -> int:
        arrays = (self.store[name] for name in self.store.names)
        return sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays)

    def rows(self, name: str, ids: Int[Tensor, " B"]) -> Float[Tensor, " B *rest"]:
        """Whole rows of one of the store's arrays."""
        return self._read(lambda: self.store[name].rows(ids))

    def gather(self, part: TaskIndices) -> Batch:
        spec = self.normaliser.spec
        values = self._read(lambda: self.store["fields"].gather(part.ids, part.starts, part.frames, part.strides))
        static = self.rows("static", part.ids).float().unbind(-1) if spec.static else ()
        return Batch(
            task=spec.name,
            values=values,
            times=self.times[part.windows],
            grid=self.grid,
            boundary=self.boundary,
            parameters={name: self.parameters[part.ids, i] for i, name in enumerate(spec.parameters)},
            static=dict(zip(spec.static, static, strict=True)),
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


def field_arrays(dataset: Dataset, normaliser: Normaliser, dtype: str = "float32") -> dict[str, _Rows]:
    """The arrays of a task's store, as the data give them."""
    spec, space = normaliser.spec, dataset.grid.shape
    n, frames = len(dataset), len(dataset.times)
    fields, single = np.dtype(dtype), np.dtype(np.float32)
    arrays: dict[str, tuple[tuple[int, ...], np.dtype]] = {"fields": ((n, frames, *space, len(spec.channels)), fields)}
    if spec.static:
        arrays["static"] = ((n, *space, len(spec.static)), fields)
    if spec.parameters:
        arrays["parameters"] = ((n, len(spec.parameters)), single)
    return {name: _Rows(dataset, normaliser, name, shape, kind) for name, (shape, kind) in arrays.items()}


def store_key(dataset: Dataset, normaliser: Normaliser, dtype: str = "float32", tick: Tick | None = None) -> str:
    """Data fingerprint, statistics and how they become numbers: the same numbers, or another key."""
    spec = normaliser.spec
    columns = [spec.parameters, spec.static]  # stored side by side, without their names
    codec = [CODEC, dtype, [(channel.name, channel.transform) for channel in spec.channels], columns]
    scales = normaliser.statistics.to_dict()
    for scale in (*scales["channels"].values(), *scales["static"].values()):
        del scale["range"]  # no stored number depends on it
    content = [content_hashes(dataset, tick), scales, codec]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
