"""The Fourier neural operator (Li et al. 2021), the baseline every number stands beside.

    x ← σ( F⁻¹ R F x + W x )   four times, between a lifting and a projection

on the zero-padded grid where an axis is not periodic. One dimension or two. It gets the same scaled inputs, conditions
(as constant channels), targets, loss, optimiser and schedule as the operator model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ups.fields import Grid, TaskSpec
from ups.models.baselines.inputs import Inputs
from ups.models.interpolation import interpolate


class FNOBlock(nn.Module):
    """F⁻¹ R F x + W x: the lowest modes, corners of the spectrum for 2D and one band for 1D, times complex matrices.

    A mode's matrix is stored as [real part | imaginary part], as the operator model has its own: what Muon takes for a
    matrix is the same in both.
    """

    def __init__(self, width: int, modes: int, dimension: int) -> None:
        super().__init__()
        self.modes = (2 ** (dimension - 1), *(modes,) * dimension)
        self.spectral = nn.Parameter(torch.randn(math.prod(self.modes), width, 2 * width) / width)
        self.local = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
        return self.mix(x) + pointwise(self.local, x)

    def mix(self, x: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
        weight, m = torch.complex(*self.spectral.chunk(2, -1)).unflatten(0, self.modes), self.modes[-1]
        if x.dim() == 3:
            spectrum = torch.fft.rfft(x)
            kept = min(m, spectrum.shape[-1])
            out = torch.zeros_like(spectrum)
            out[..., :kept] = torch.einsum("bik,kio->bok", spectrum[..., :kept], weight[0, :kept])
            return torch.fft.irfft(out, n=x.shape[-1])
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        a, b = min(m, x.shape[-2] // 2), min(m, spectrum.shape[-1])  # what the grid has, each corner once
        out[:, :, :a, :b] = torch.einsum("bixy,xyio->boxy", spectrum[:, :, :a, :b], weight[0, :a, :b])
        out[:, :, -a:, :b] = torch.einsum("bixy,xyio->boxy", spectrum[:, :, -a:, :b], weight[1, :a, :b])
        return torch.fft.irfft2(out, s=x.shape[-2:])


def pointwise(layer: nn.Linear, x: Float[Tensor, "B C *space"]) -> Float[Tensor, "B D *space"]:
    """A linear layer at every point."""
    convolve = F.conv1d if x.dim() == 3 else F.conv2d
    return convolve(x, layer.weight.unflatten(1, (-1, *(1,) * (x.dim() - 2))), layer.bias)


class FNO(nn.Module):
    """One FNO for one task."""

    def __init__(
        self, task: TaskSpec, *, width: int = 32, modes: int = 16, depth: int = 4, padding: float = 0.125
    ) -> None:
        super().__init__()
        self.task, self.padding, self.inputs = task, padding, Inputs(task)
        convolution = nn.Conv1d if task.dimension == 1 else nn.Conv2d
        self.lift = convolution(self.inputs.count, width, 1)
        self.blocks = nn.ModuleList(FNOBlock(width, modes, task.dimension) for _ in range(depth))
        last = convolution(128, len(task.channels), 1, bias=False)
        nn.init.zeros_(last.weight)
        self.project = nn.Sequential(convolution(width, 128, 1), nn.GELU(), last)

    def forward(
        self,
        task: str,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        conditions: Mapping[str, Float[Tensor, " B"]],
        grid: Grid,
        query: Float[Tensor, "P dim"] | None = None,
    ) -> Tensor:
        spec, space = self.task, grid.shape
        x = self.lift(self.inputs(history, static, conditions, grid))
        # A share of the length, not a number of points: the padded domain must be the same on every grid.
        ends = [0 if wraps else round(self.padding * n) for wraps, n in zip(spec.boundary.periodic, space, strict=True)]
        x = F.pad(x, [p for end in reversed(ends) for p in (0, end)])
        for i, block in enumerate(self.blocks):
            x = block(x if i == 0 else F.gelu(x))
        for axis, n in enumerate(space):
            x = x.narrow(axis + 2, 0, n)
        out = self.project(x).movedim(1, -1)
        return out if query is None else interpolate(out, grid, spec.boundary.periodic, query, 3)
