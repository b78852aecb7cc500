"""A task's training fields in the array store: normalised, ready to gather."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.splits import content_hashes
from ups.data.sampler import TaskIndices
from ups.errors import UserError
from ups.fields import Batch, Dataset, TaskSpec
from ups.store.build import build, rewrite
from ups.store.layout import StoreDamaged
from ups.store.read import ArrayStore
from ups.track.tick import Tick

CODEC = 1
"""Counts the changes to how fields become stored numbers: stores of another count are refused, not misread."""


@dataclass(frozen=True)
class _Rows:
    """One array of the store (fields, static, forcings or parameters), made from the dataset row by row."""

    dataset: Dataset
    normaliser: Normaliser
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, lo: int, hi: int) -> np.ndarray:
        frames = slice(None) if self.name in ("fields", "forcings") else slice(0, 1)
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
        if self.name == "parameters":
            return torch.stack([batch.parameters[name] for name in self.normaliser.spec.parameters], -1)
        batch, columns = self.normaliser.batch(batch), Columns.of(self.normaliser.spec, self.dataset)
        if self.name == "fields":
            return batch.values
        if self.name == "forcings":
            return torch.stack([batch.forcings[name] for name in columns.timed], -1)
        fields = [*batch.static.values(), *(batch.forcings[name] for name in columns.constant)]
        return torch.stack(fields if batch.mask is None else [*fields, batch.mask.to(batch.values)], -1)


@dataclass(frozen=True)
class Columns:
    """What lies side by side in two of the store's arrays, in this order: in `static` the static fields, the forcings
    that do not depend on time and the mask; in `forcings`, with all frames, those that do.
    """

    static: tuple[str, ...]
    constant: tuple[str, ...]
    timed: tuple[str, ...]
    masked: bool

    @classmethod
    def of(cls, spec: TaskSpec, dataset: Dataset) -> Columns:
        timed = tuple(name for name in spec.forcings if dataset.header.forcings[name])
        constant = tuple(name for name in spec.forcings if name not in timed)
        return cls(spec.static, constant, timed, spec.masked)

    @property
    def count(self) -> int:
        """Of the columns of `static`."""
        return len(self.static) + len(self.constant) + self.masked

    def named(
        self, static: Float[Tensor, "B *space S"] | None, forcings: Float[Tensor, "B T *space F"] | None
    ) -> dict[str, Any]:
        """The fields of a batch that are in these columns."""
        parts = [] if static is None else list(static.unbind(-1))
        fields = dict(zip((*self.static, *self.constant), parts, strict=False))
        driven = {} if forcings is None else dict(zip(self.timed, forcings.unbind(-1), strict=True))
        return {
            "static": {name: fields[name] for name in self.static},
            "forcings": driven | {name: fields[name] for name in self.constant},
            "mask": parts[-1] > 0.5 if self.masked else None,
        }


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
        self.store, self.dataset = ArrayStore.open(path, key), dataset
        self._sources = field_arrays(dataset, normaliser, self.store["fields"].dtype)
        self._mended: set[str] = set()
        self.normaliser, self.grid, self.boundary = normaliser, dataset.grid, dataset.boundary
        own = dataset.header.own_times
        self.times = dataset.times if own is None else own
        self.columns = Columns.of(normaliser.spec, dataset)
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
        spec, columns = self.normaliser.spec, self.columns

        def windows(name: str) -> Tensor:
            return self._read(lambda: self.store[name].gather(part.ids, part.starts, part.frames, part.strides))

        static = self.rows("static", part.ids).float() if columns.count else None
        return Batch(
            task=spec.name,
            values=windows("fields"),
            times=times_of(self.times, part.ids, part.windows),
            grid=self.grid,
            boundary=self.boundary,
            parameters={name: self.parameters[part.ids, i] for i, name in enumerate(spec.parameters)},
            ids=part.ids,
            **columns.named(static, windows("forcings") if columns.timed else None),
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


def times_of(times: Float[Tensor, "*N T"], ids: Int[Tensor, " B"], frames: Int[Tensor, "B F"]) -> Float[Tensor, "B F"]:
    """The times of some frames of some trajectories, which have times in common or each its own."""
    return times[frames] if times.dim() == 1 else times[ids[:, None], frames]


def field_arrays(dataset: Dataset, normaliser: Normaliser, dtype: str = "float32") -> dict[str, _Rows]:
    """The arrays of a task's store, as the data give them."""
    spec, space = normaliser.spec, dataset.grid.shape
    n, frames = len(dataset), len(dataset.times)
    fields, single = np.dtype(dtype), np.dtype(np.float32)
    arrays: dict[str, tuple[tuple[int, ...], np.dtype]] = {"fields": ((n, frames, *space, len(spec.channels)), fields)}
    columns = Columns.of(spec, dataset)
    if columns.count:
        arrays["static"] = ((n, *space, columns.count), fields)
    if columns.timed:
        arrays["forcings"] = ((n, frames, *space, len(columns.timed)), fields)
    if spec.parameters:
        arrays["parameters"] = ((n, len(spec.parameters)), single)
    return {name: _Rows(dataset, normaliser, name, shape, kind) for name, (shape, kind) in arrays.items()}


def store_key(dataset: Dataset, normaliser: Normaliser, dtype: str = "float32", tick: Tick | None = None) -> str:
    """Data fingerprint, statistics and how they become numbers: the same numbers, or another key."""
    spec = normaliser.spec
    columns: list[Any] = [spec.parameters, spec.static]  # stored side by side, without their names
    if spec.forcings or spec.masked:
        columns.append(asdict(Columns.of(spec, dataset)))
    if (own := dataset.header.own_times) is not None:
        columns.append(own.tolist())
    codec = [CODEC, dtype, [(channel.name, channel.transform) for channel in spec.channels], columns]
    scales = normaliser.statistics.to_dict()
    for scale in (*scales["channels"].values(), *scales["static"].values()):
        del scale["range"]  # no stored number depends on it
    del scales["leads"]  # nor on these
    content = [content_hashes(dataset, tick), scales, codec]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
