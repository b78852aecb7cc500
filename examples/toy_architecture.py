"""An architecture of one's own: a learned stencil, in as many dimensions as a task has.

    plugins: [toy_architecture.py]
    stages:
      operator: {architecture: toy, width: 32}
    compare: {toy: {reach: 1}}

The change at a point follows from the fields at the point and at `reach` neighbours to each side along each axis.
Neighbours beyond an end are those at the other end, so it is for periodic tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

import ups
from ups.config.settings import Positive, Strict
from ups.fields import Grid
from ups.models.baselines.inputs import InputChannels
from ups.models.network import Architecture, matrices_of
from ups.models.saved import TrainedTask


class ToySettings(Strict):
    width: Positive = 32
    depth: Positive = Field(default=1, description="hidden layers that all tasks share")
    reach: Positive = Field(default=2, description="neighbours to each side along each axis")


class Toy(nn.Module):
    """Each task has its own first and last layer; what lies between is shared."""

    def __init__(self, tasks: Sequence[TrainedTask], settings: ToySettings) -> None:
        super().__init__()
        self.shifts = [shift for n in range(1, settings.reach + 1) for shift in (-n, n)]
        self.inputs = {task.spec.name: InputChannels(task.spec) for task in tasks}
        first, last = {}, {}
        for task in tasks:
            name, spec = task.spec.name, task.spec
            points = 1 + len(self.shifts) * spec.dimension
            first[name] = nn.Linear(self.inputs[name].count * points, settings.width)
            last[name] = nn.Linear(settings.width, len(spec.channels), bias=False)
            nn.init.zeros_(last[name].weight)  # persistence before training
        self.first, self.last = nn.ModuleDict(first), nn.ModuleDict(last)
        self.inner = nn.ModuleList(nn.Linear(settings.width, settings.width) for _ in range(settings.depth))

    def layers(self) -> list[nn.Module]:
        return list(self.inner)

    def matrices(self) -> list[nn.Parameter]:
        return matrices_of(self.layers())

    def forward(
        self,
        task: str,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        conditions: Mapping[str, Float[Tensor, " B"]],
        grid: Grid,
    ) -> Float[Tensor, "B *space C"]:
        fields = self.inputs[task](history, static, conditions, grid).movedim(1, -1)
        axes = range(1, fields.dim() - 1)
        stencil = [fields, *(fields.roll(shift, axis) for axis in axes for shift in self.shifts)]
        hidden = F.gelu(self.first[task](torch.cat(stencil, -1)))
        for layer in self.inner:
            hidden = F.gelu(layer(hidden))
        return self.last[task](hidden)


ups.register_architecture(Architecture("toy", ToySettings, Toy))
