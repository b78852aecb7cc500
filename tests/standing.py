"""Standing waves u = a cos(ωt + φ) sin 2πx: one frame does not say whether they rise or fall, two say all,

    u(t + Δ) = 2 cos(ωΔ) u(t) − u(t − Δ).

So a model that knows this is without error from two frames, and from one it is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ups.data.prepare.statistics import Scale, Statistics
from ups.fields import Batch, Boundary, Channel, Dataset, Grid, Header, TaskSpec
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask

DT, OMEGA, GRID = 0.1, 5.0, Grid.cell_centred((16,))
TASK = TaskSpec("standing", 1, (Channel("u"),), Boundary.all("periodic", 1), dt=DT, history=2)


class Standing(Dataset):
    """So many of them, float64, as a dataset that gives its first frames."""

    def __init__(self, count: int = 5, frames: int = 8, given: int = 1) -> None:
        times = DT * torch.arange(frames, dtype=torch.float64)
        self.header = Header("standing", ("u",), GRID, times, TASK.boundary, dtype=torch.float64, given=given)
        phase = 1.0 + torch.arange(count, dtype=torch.float64)
        u = torch.cos(OMEGA * times + phase[:, None])[..., None] * torch.sin(2 * math.pi * GRID.positions[0])
        self.values = u[..., None]

    def __len__(self) -> int:
        return len(self.values)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        values, times = self.values[list(indices)][:, frames], self.header.times[frames]
        ids = torch.tensor(list(indices))
        return Batch("standing", values, times.expand(len(values), -1), GRID, TASK.boundary, {}, {}, ids)


def learned(given: int = 1) -> TrainedTask:
    """Normalised and physical units are the same, and the scale of a step is one."""
    scales = Statistics("standing", 1, DT, (1,), {"u": Scale(0.0, 1.0, 1.0, (1.0,))})
    return TrainedTask(TASK, GRID, scales, {}, (DT,), given)


class Recurrence(nn.Module):
    """The exact change, from two frames."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, task: str, history: Tensor, static: Tensor, conditions: dict, grid: Grid) -> Tensor:
        return self.unit * ((2 * math.cos(OMEGA * DT) - 1) * history[:, -1] - history[:, -2])


def exact_model() -> Propagator:
    return (
        Propagator(Recurrence(), [TASK], {"standing": learned().normaliser.step_scales()})
        .double()
        .requires_grad_(False)
    )


def window(count: int, frames: int = 1) -> Batch:
    """A training window: the history and `frames` targets."""
    batch = Standing(count, 2 + frames).read(range(count), slice(None))
    return replace(batch, values=learned().normaliser.normalise(batch.values))
