"""The U-Net (Ronneberger et al. 2015), the second baseline: what convolutions alone can do.

    x₀ = C₀(inputs),  x_l = C_l(↓ x_{l−1}),  y_l = D_l([x_l, ↑ y_{l+1}])

Each level halves the points and doubles the channels; C and D are two convolutions of three points, each with group
normalisation and GELU. Beyond the domain a periodic axis wraps, a prescribed value is zero, and all else repeats the
edge. One dimension or two. A grid that cannot be halved three times has fewer levels. Unlike the operator and the FNO
it knows points, not lengths: on a grid of another spacing it is another map. Inputs, targets, loss and schedule are
those of the FNO.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ups.config.settings import Positive, Strict
from ups.errors import UserError
from ups.fields import AXES, Boundary, Grid, TaskSpec
from ups.models.baselines.inputs import InputChannels
from ups.models.network import CONDITIONS, Architecture

if TYPE_CHECKING:
    from ups.models.saved import TrainedTask


def padded(x: Float[Tensor, "B C *space"], boundary: Boundary) -> Float[Tensor, "B C *wider"]:
    """One point more on every side, as the boundary has it."""
    for axis, (lower, upper) in enumerate(boundary.sides):
        dim = axis + 2
        first, last = x.narrow(dim, 0, 1), x.narrow(dim, x.shape[dim] - 1, 1)
        if lower.kind == "periodic":
            below, above = last, first
        else:
            below = torch.zeros_like(first) if lower.kind == "value" else first
            above = torch.zeros_like(last) if upper.kind == "value" else last
        x = torch.cat([below, x, above], dim)
    return x


class Pair(nn.Module):
    """Two convolutions, each normalised and bent."""

    def __init__(self, channels: int, width: int, boundary: Boundary) -> None:
        super().__init__()
        convolution = nn.Conv1d if len(boundary.sides) == 1 else nn.Conv2d
        self.boundary = boundary
        self.convolutions = nn.ModuleList(convolution(n, width, 3, bias=False) for n in (channels, width))
        self.norms = nn.ModuleList(nn.GroupNorm(math.gcd(8, width), width) for _ in range(2))

    def forward(self, x: Float[Tensor, "B C *space"]) -> Float[Tensor, "B W *space"]:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.gelu(norm(convolution(padded(x, self.boundary))))
        return x


class UNetSettings(Strict):
    width: Positive = Field(default=32, description="channels of the finest level; each coarser one has twice as many")
    levels: Positive = 4


class UNet(nn.Module):
    """One U-Net for one task, whose own grid has the shape `points`."""

    def __init__(self, task: TaskSpec, points: Sequence[int], *, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        halvings = next(k for k in range(levels - 1, -1, -1) if not any(n % 2**k for n in points))
        self.task, self.inputs, self.cell = task, InputChannels(task), 2**halvings
        flat = task.dimension == 1
        convolution, rise = (nn.Conv1d, nn.ConvTranspose1d) if flat else (nn.Conv2d, nn.ConvTranspose2d)
        self.pool = F.avg_pool1d if flat else F.avg_pool2d
        widths = [width * 2**level for level in range(halvings + 1)]
        before = [self.inputs.count, *widths[:-1]]
        self.down = nn.ModuleList(Pair(n, w, task.boundary) for n, w in zip(before, widths, strict=True))
        self.rise = nn.ModuleList(rise(2 * w, w, 2, stride=2) for w in widths[:-1])
        self.up = nn.ModuleList(Pair(2 * w, w, task.boundary) for w in widths[:-1])
        self.last = convolution(width, len(task.channels), 1, bias=False)
        nn.init.zeros_(self.last.weight)

    def forward(
        self,
        task: str,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        conditions: Mapping[str, Float[Tensor, " B"]],
        grid: Grid,
    ) -> Float[Tensor, "B *space C"]:
        for axis, n in enumerate(grid.shape):
            if n % self.cell:
                raise UserError(
                    f"the U-Net halves its grid to 1/{self.cell}, but there are {n} points along {AXES[axis]}; "
                    f"give it a multiple of {self.cell}"
                )
        x = self.down[0](self.inputs(history, static, conditions, grid))
        skipped: list[Tensor] = []
        for down in self.down[1:]:
            skipped.append(x)
            x = down(self.pool(x, 2))
        for rise, up in zip(reversed(self.rise), reversed(self.up), strict=True):
            x = up(torch.cat([skipped.pop(), rise(x)], 1))
        return self.last(x).movedim(1, -1)


def _build(tasks: Sequence[TrainedTask], settings: UNetSettings) -> UNet:
    return UNet(tasks[0].spec, tasks[0].grid.shape, **settings.model_dump())


UNET_ARCHITECTURE = Architecture("unet", UNetSettings, _build, joint=False, takes=CONDITIONS)
