"""A task made ready to train on: measured, stored, its validation trajectories read."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ups.data.generate.workers import all_cores
from ups.data.joined import end_to_end
from ups.data.prepare.cached import cached
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.row_ranges import batches, in_steps, spread, total_bytes
from ups.data.prepare.statistics import check_changes, statistics
from ups.data.sources import Source
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Batch, Dataset, Header, TaskSpec
from ups.models.saved import TrainedTask
from ups.store.fields import CODEC, FieldStore, field_arrays, store_key
from ups.store.ranks import build_on_ranks
from ups.track.tick import Report, Tick

VALIDATION, VALIDATION_BYTES = 48, 1 << 30
"""At most so many validation trajectories a task, and of so many bytes, are rolled out to choose a checkpoint."""
PIECE_BYTES = 1 << 26
"""Of those that are read at once."""


@dataclass(frozen=True, eq=False)
class TaskData:
    """What the model is told of a task, its store, its validation trajectories (normalised), its share of a batch."""

    learned: TrainedTask
    store: FieldStore
    validation: Batch
    share: float


def prepare(
    runtime: Runtime,
    source: Source,
    share: float,
    strides: Collection[int],
    folder: Path,
    dtype: str = "float32",
    workers: int | None = None,
    measured: Report = lambda task, done, total: None,
    stored: Report = lambda task, done, total: None,
) -> TaskData:
    """Statistics of the training split, the store of its normalised fields, and the ranges the model will have seen.

    Rank 0 computes, or finds what it computed for the same data; all ranks, or the worker processes of a single one,
    build; every rank maps the same files. Large data are read by several processes, one for each gigabyte, `workers` or
    all cores at most; the result does not depend on it. `measured` is told the task and its trajectories done and in
    all, `stored` the same in bytes.
    """
    spec = source.spec
    path = folder / spec.name
    readers = max(1, min(workers or all_cores(), total_bytes(source.train) // 10**9))

    def built(done: int, total: int) -> None:
        runtime.heartbeat.mark("data")
        stored(spec.name, done, total)
        runtime.check_stop(f"{done} of {total} bytes of the store of {spec.name} are kept in {folder}")

    def read(done: int, total: int) -> None:
        runtime.heartbeat.mark("data")
        measured(spec.name, done, total)
        runtime.check_stop(f"the statistics of {spec.name} will be computed from the first trajectory on")

    def learn() -> list[Any]:
        frames = len(source.train.times)
        fitting = [stride for stride in sorted(strides) if spec.history * stride < frames]
        scales = statistics(source.train, spec, read, readers)
        check_changes(scales)
        learned = TrainedTask(
            spec=spec,
            grid=source.train.grid,
            statistics=scales,
            ranges=parameter_ranges(source.train, spec.parameters, read),
            leads=lead_times(spec, source.train.header, fitting),
        )
        return [learned.to_dict(), store_key(source.train, learned.normaliser, dtype, read)]

    asked = [repr(spec), sorted(strides), dtype, CODEC]

    if runtime.size > runtime.ranks.local_size:
        _agree_on_content(runtime, source, folder, read)
    described, key = runtime.from_first(
        f"prepare {spec.name}",
        lambda: cached(folder / f"{spec.name}.learned.json", [source.train], asked, learn),
    )
    given = source.validation.header.given  # not what was measured, so not part of what is kept of it
    learned = replace(TrainedTask.from_dict(described), given=given)
    arrays = field_arrays(source.train, learned.normaliser, dtype)
    build_on_ranks(runtime, path, key, arrays, built, workers or readers)
    store = FieldStore(path, source.train, learned.normaliser, key)
    validation, fingerprint = held(source.validation, learned.normaliser)
    runtime.agree(f"validation data of {spec.name}", fingerprint, "give every node the same data files")
    return TaskData(learned, store, validation, share)


def held(dataset: Dataset, normaliser: Normaliser) -> tuple[Batch, str]:
    """The trajectories that validation rolls out, normalised, and a fingerprint of them as they were; read a few at a
    time.
    """
    places, crc, parts = spread(dataset, VALIDATION, VALIDATION_BYTES), 0, []
    for some in in_steps(len(places), max(1, PIECE_BYTES * len(dataset) // total_bytes(dataset))):
        part = dataset.read(places[some.start : some.stop], slice(None))
        crc = zlib.crc32(part.values.numpy().tobytes(), crc)
        parts.append(normaliser.batch(part))
    return end_to_end(parts), f"{crc:08x}"


def _agree_on_content(runtime: Runtime, source: Source, folder: Path, tick: Tick) -> None:
    """Refuse nodes whose data differ: each may have files of its own."""
    name, data, node = source.spec.name, [source.train, source.validation], runtime.rank // runtime.ranks.local_size

    def content(check_others: Callable[[], None]) -> str | None:
        if runtime.ranks.local_rank:
            return None
        return cached(folder / f"{name}.content{node}.json", data, "content", lambda: _crc(data, tick))

    if len(set(runtime.together(f"content of {name}", content)) - {None}) > 1:
        raise UserError(f"nodes have different data of {name}; give every node the same data files")


def _crc(data: Sequence[Dataset], tick: Tick) -> str:
    """Of all that is read of some datasets."""
    crc = 0
    for batch in itertools.chain(*(batches(dataset, len(dataset.times), tick) for dataset in data)):
        given = (*batch.static.values(), *batch.forcings.values(), *batch.parameters.values())
        for part in (batch.values, batch.times, *given, *(() if batch.mask is None else (batch.mask,))):
            crc = zlib.crc32(part.contiguous().numpy().tobytes(), crc)
    return f"{crc:08x}"


def lead_times(spec: TaskSpec, header: Header, strides: Sequence[int]) -> tuple[float, ...]:
    """The lead times that training steps over, or the shortest and the longest where each step has its own."""
    if spec.steady:
        return ()
    if spec.dt is not None:
        return tuple(stride * spec.dt for stride in strides)
    times = header.times[None] if header.own_times is None else header.own_times
    steps = [times[:, stride:] - times[:, :-stride] for stride in strides]
    return min(float(step.min()) for step in steps), max(float(step.max()) for step in steps)


def parameter_ranges(
    dataset: Dataset, names: Sequence[str], tick: Tick | None = None
) -> dict[str, tuple[float, float]]:
    """The smallest and largest value of each parameter."""
    found: dict[str, tuple[float, float]] = {name: (math.inf, -math.inf) for name in names}
    for batch in batches(dataset, 1, tick) if names else ():
        seen = batch.parameters
        found = {n: (min(lo, float(seen[n].min())), max(hi, float(seen[n].max()))) for n, (lo, hi) in found.items()}
    return found
