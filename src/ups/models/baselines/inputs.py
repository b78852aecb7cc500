"""What every baseline is given: the operator model's scaled fields and conditions, as channels of an image.

History, static fields, forcings, the mask, the points' coordinates (scaled down where one is beyond 1: as kilometres
they would drown the fields), and each condition (parameters, lead time) as a constant channel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Grid, TaskSpec
from ups.models.conditions import signed_log


class InputChannels:
    """One task's inputs as `count` channels."""

    def __init__(self, task: TaskSpec) -> None:
        self.constants = [f"parameter_{p}" for p in task.parameters]
        self.constants += [] if task.steady else ["lead"]
        self.count = len(task.channels) * task.history + len(task.given) + task.dimension + len(self.constants)
        self._coordinates: dict[tuple, Tensor] = {}

    def coordinates(self, grid: Grid, like: Tensor) -> Float[Tensor, "dim *space"]:
        """The points' positions, brought to the device on first use: a copy in every pass could not be captured."""
        key = (tuple(tuple(p.tolist()) for p in grid.positions), like.device, like.dtype)
        if key not in self._coordinates:
            positions = torch.stack(torch.meshgrid(*grid.positions, indexing="ij"))
            self._coordinates[key] = (positions / positions.abs().max().clamp_min(1)).to(like)
        return self._coordinates[key]

    def __call__(
        self,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        conditions: Mapping[str, Float[Tensor, " B"]],
        grid: Grid,
    ) -> Float[Tensor, "B I *space"]:
        batch, space = history.shape[0], grid.shape
        coordinates = self.coordinates(grid, history)
        constants = (
            signed_log(conditions[name]).view(batch, 1, *(1,) * len(space)).expand(batch, 1, *space) / 4
            for name in self.constants
        )
        fields = history.movedim(-1, 2).flatten(1, 2), static.movedim(-1, 1)
        return torch.cat([*fields, coordinates.expand(batch, *coordinates.shape), *constants], 1)
