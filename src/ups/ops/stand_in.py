"""Tasks as training will meet them, before there are data: their shapes are known, their numbers are made up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ups.data.inputs import Outline
from ups.data.prepare.statistics import Scale, Statistics
from ups.fields import Batch, Dataset, Header
from ups.models.saved import TrainedTask
from ups.store.fields import FieldStore
from ups.training.data import TaskData, lead_times


def stand_in_task(outline: Outline, strides: Collection[int]) -> TrainedTask:
    """The task with scales of one."""
    spec, header = outline.spec, outline.header
    differences = () if spec.steady else (1.0,)
    scale = Scale(0.0, 1.0, 1.0, differences, (-1.0, 3.0))
    static = {name: Scale(0.0, 1.0, 1.0, range=(-1.0, 3.0)) for name in (*spec.static, *spec.forcings)}
    channels = {name: scale for name in spec.channel_names}
    uneven = not spec.steady and spec.dt is None
    strides_of, leads_of = () if spec.steady or uneven else (1,), (1.0,) if uneven else ()
    scales = Statistics(spec.name, outline.trained, spec.dt, strides_of, channels, static, leads_of)
    fitting = [stride for stride in sorted(strides) if spec.history * stride < len(header.times)]
    leads = lead_times(spec, header, fitting)
    ranges = {name: (1.0, 1.0) for name in spec.parameters}
    return TrainedTask(spec, header.grid, scales, ranges, leads, header.given)


class Noise(Dataset):
    """Trajectories of a header's shapes, all numbers near 1."""

    def __init__(self, header: Header, names: Sequence[str], count: int) -> None:
        self.header, self.names, self.count = header, tuple(names), count

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        header, space, ids = self.header, self.header.grid.shape, torch.tensor(list(indices))
        times = header.times[frames]
        shape = (len(times), *space, len(header.channels))
        rows = [torch.Generator().manual_seed(index) for index in indices]
        return Batch(
            task=header.task,
            values=torch.stack([1 + 0.1 * torch.randn(shape, generator=row) for row in rows]),
            times=times.expand(len(ids), -1),
            grid=header.grid,
            boundary=header.boundary,
            parameters={name: torch.ones(len(ids), dtype=torch.float64) for name in self.names},
            static={n: torch.stack([1 + 0.1 * torch.randn(space, generator=r) for r in rows]) for n in header.static},
            ids=ids,
            forcings={
                name: torch.ones(len(ids), *(len(times),) * timed, *space) for name, timed in header.forcings.items()
            },
            mask=torch.ones(len(ids), *space, dtype=torch.bool) if header.masked else None,
        )


def stand_in_data(outline: Outline, learned: TrainedTask, share: float, folder: Path, frames: int) -> TaskData:
    """Four trajectories of `frames` frames, or as many as there are, to train and to validate on."""
    header, spec = outline.header, outline.spec
    times = header.times if spec.steady else header.times[: max(frames, header.given + 1)]
    header = replace(header, task=spec.name, times=times, static=spec.static, own_times=None)
    data = Noise(header, spec.parameters, 4)
    store = FieldStore.build(folder / spec.name, data, learned.normaliser)
    return TaskData(learned, store, learned.normaliser.batch(data.read(range(4), slice(None))), share)
