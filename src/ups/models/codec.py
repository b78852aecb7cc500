"""A compressing autoencoder of fields on grids: one for all tasks, in normalised units, frame by frame.

    z = E(u)      stem → blocks at the points → every cell of points into D numbers
    û = D(z)      every cell's numbers back to its points → blocks → values

E and D are made of the operator's own parts: rows by field name, spectral mixing along each axis that knows walls from
periodic ends, experts that tasks share. A cell's D numbers are its points' values over the compression, so a latent has
8 to 64 times fewer numbers than the field. Between grid points a decoded field is read by cubics, as all fields are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from einops import rearrange
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ups.config.settings import Positive
from ups.errors import UserError
from ups.fields import Grid, TaskSpec
from ups.models.geometry import Frame
from ups.models.operator.model import patchify
from ups.models.saved import TrainedTask
from ups.models.trunk import Trunk, TrunkSettings


class CodecSettings(TrunkSettings):
    """Of encoder and decoder each."""

    compression: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="numbers of a field over its latent's; 8, or as many as a cell has, if not given"
    )
    cell: Positive = Field(default=8, description="points of a latent cell along each axis, at most")


def cell_shape(grid: Grid, cell: int) -> tuple[int, ...]:
    """Points of a latent cell: at most `cell` along each axis, as many as divide the grid."""
    return tuple(max(n for n in range(1, cell + 1) if points % n == 0) for points in grid.shape)


def numbers_of_cell(spec: TaskSpec, grid: Grid, settings: CodecSettings) -> int:
    """Of a task's latent; a compression that its cells do not allow is refused."""
    cell = cell_shape(grid, settings.cell)
    values = math.prod(cell) * len(spec.channels)
    compression = settings.compression or min(8, values)
    if compression > values or values == 1:
        points = " x ".join(map(str, grid.shape))
        allowed = "no more than one number" if values == 1 else f"{values} numbers, compressed at most {values} times"
        raise UserError(
            f"task {spec.name!r} cannot be compressed {compression:g} times: a codec's cell of "
            f"{' x '.join(map(str, cell))} of its {points} points has {allowed}; give a lower compression, a larger "
            "cell, or a grid that divides by more"
        )
    return int(values / compression)


def unpatchify(cells: Float[Tensor, "B *latent CP"], patch: tuple[int, ...]) -> Float[Tensor, "B *space C"]:
    """What `patchify` undoes: the channels of every cell to its points."""
    axes = range(len(patch))
    whole, parts = (" ".join(f"{s}{i}" for i in axes) for s in "np")
    merged = " ".join(f"(n{i} p{i})" for i in axes)
    return rearrange(cells, f"b {whole} (c {parts}) -> b {merged} c", **{f"p{i}": n for i, n in enumerate(patch)})


class Codec(nn.Module):
    """`encode` and `decode`; `numbers[task]` are those of a latent cell."""

    computed_by = ("encode", "decode")

    def __init__(self, tasks: Sequence[TrainedTask], settings: CodecSettings) -> None:
        super().__init__()
        self.tasks: dict[str, TaskSpec] = {t.spec.name: replace(t.spec, history=1, static=()) for t in tasks}
        points = {t.spec.name: Frame(t.grid, t.spec.boundary, (1,) * t.spec.dimension) for t in tasks}
        self.frames = {t.spec.name: Frame(t.grid, t.spec.boundary, cell_shape(t.grid, settings.cell)) for t in tasks}
        self.numbers = {t.spec.name: numbers_of_cell(t.spec, t.grid, settings) for t in tasks}
        self.encoder = Trunk(self.tasks, points, settings)
        self.decoder = Trunk(self.tasks, points, settings, stem=False)
        self.down, self.up, self.values = nn.ParameterDict(), nn.ParameterDict(), nn.ParameterDict()
        self.inner = nn.Linear(settings.width, settings.width)
        for name, spec in self.tasks.items():
            for channel in spec.channel_names:
                if (key := f"field_{channel}") not in self.values:
                    self.values[key] = nn.Parameter(torch.randn(settings.width, 1) / math.sqrt(settings.width))
            rows, count = math.prod(self.frames[name].patch) * settings.width, self.numbers[name]
            if (key := self._key(name)) not in self.down:
                self.down[key] = nn.Parameter(torch.randn(rows, count) / math.sqrt(rows))
                self.up[key] = nn.Parameter(torch.randn(count, rows) / math.sqrt(count))

    def _key(self, task: str) -> str:
        return f"{'x'.join(map(str, self.frames[task].patch))}_to_{self.numbers[task]}"

    def layers(self) -> list[nn.Module]:
        return [*self.encoder.layers(), *self.decoder.layers()]

    def matrices(self) -> list[nn.Parameter]:
        return [*self.encoder.matrices(), *self.decoder.matrices()]

    def encode(self, task: str, fields: Float[Tensor, "B *space C"]) -> Float[Tensor, "B *latent D"]:
        x = self.encoder(task, fields, {})
        return patchify(x, self.frames[task].patch) @ self.down[self._key(task)]

    def decode(self, task: str, latent: Float[Tensor, "B *latent D"]) -> Float[Tensor, "B *space C"]:
        x = unpatchify(latent @ self.up[self._key(task)], self.frames[task].patch)
        x = F.silu(self.inner(self.decoder(task, x, {})))
        return x @ torch.cat([self.values[f"field_{c}"] for c in self.tasks[task].channel_names], -1)
