"""The Fourier neural operator (Li et al. 2021), the baseline every number stands beside.

    x ← σ( F⁻¹ R F x + W x )   four times, between a lifting and a projection

on the zero-padded grid where an axis is not periodic. One dimension or two. It gets the same scaled inputs, conditions
(as constant channels), targets, loss, optimiser and schedule as the operator model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from einops import rearrange
from jaxtyping import Complex, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from ups.config.settings import Positive, Share, Strict
from ups.fields import Grid, TaskSpec
from ups.models.baselines.inputs import InputChannels
from ups.models.network import CONDITIONS, Architecture, matrices_of

if TYPE_CHECKING:
    from ups.models.saved import TrainedTask
from ups.models.operator.spectral import complex_as_real


class FNOBlock(nn.Module):
    """F⁻¹ R F x + W x: the lowest modes, corners of the spectrum for 2D and one band for 1D, times complex matrices.

    The matrix A − iB of a mode is stored as [A | B], as the operator model has its own: what Muon takes for a matrix is
    the same in both.
    """

    real: Tensor

    def __init__(self, width: int, modes: int, dimension: int) -> None:
        super().__init__()
        self.modes = (2 ** (dimension - 1), *(modes,) * dimension)
        real = torch.ones(modes, 2)
        real[0, 1] = 0.0
        self.register_buffer("real", real, persistent=False)
        self.spectral = nn.Parameter(torch.randn(math.prod(self.modes), width, 2 * width) / width)
        self.local = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
        return self.mix(x) + pointwise(self.local, x)

    def mix(self, x: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
        """Only kept modes, of less than n/2 waves, are transformed along further axes, and mixed."""
        weight = self.spectral.unflatten(0, self.modes)
        spectrum = torch.fft.rfft(x)[..., : min(self.modes[-1], (x.shape[-1] + 1) // 2)]
        if x.dim() == 3:
            return self.signal(times(spectrum, weight[0, : spectrum.shape[-1]]), x.shape[-1])
        n, kept = x.shape[-2], min(self.modes[-2], x.shape[-2] // 2)  # each corner once
        spectrum = torch.fft.fft(spectrum, dim=-2)
        corners = torch.cat((spectrum[..., :kept, :], spectrum[..., n - kept :, :]), -2)
        mixed = times(corners, weight[:, :kept, : corners.shape[-1]].flatten(0, 1))
        low, high = mixed.split(kept, -2)
        mixed = torch.cat((low, mixed.new_zeros(*low.shape[:2], n - 2 * kept, low.shape[-1]), high), -2)
        return self.signal(torch.fft.ifft(mixed, dim=-2), x.shape[-1])

    def signal(self, spectrum: Complex[Tensor, "*B K"], n: int) -> Float[Tensor, "*B n"]:
        """`irfft`, which fills up with zeros, of a spectrum whose zero frequency need not be real.

        No real signal has that imaginary part. A CPU ignores it, and so does every derivative; cuFFT adds it as a
        sawtooth at some lengths (pytorch/pytorch 154496), of which no gradient tells. So it is made zero.
        """
        parts = torch.view_as_real(spectrum) * self.real[: spectrum.shape[-1]]
        return torch.fft.irfft(torch.view_as_complex(parts), n=n)


def times(
    spectrum: Complex[Tensor, "B C *modes"], weight: Float[Tensor, "*modes C two_D"]
) -> Complex[Tensor, "B D *modes"]:
    """Each mode's coefficients by its own matrix; as real numbers, because complex products are slow on a CPU."""
    modes = spectrum.shape[2:]
    rows = rearrange(torch.view_as_real(spectrum.flatten(2)), "b c k two -> k b (two c)")
    mixed = torch.bmm(rows, complex_as_real(weight.flatten(0, -3)))
    return torch.view_as_complex(rearrange(mixed, "k b (two d) -> b d k two", two=2).contiguous()).unflatten(2, modes)


def pointwise(layer: nn.Linear, x: Float[Tensor, "B C *space"]) -> Float[Tensor, "B D *space"]:
    """A linear layer at every point: as one product a sample, up to twice as fast as a convolution."""
    weight = layer.weight.expand(x.shape[0], -1, -1)
    if layer.bias is None:
        return torch.bmm(weight, x.flatten(2)).unflatten(2, x.shape[2:])
    return torch.baddbmm(layer.bias[:, None], weight, x.flatten(2)).unflatten(2, x.shape[2:])


class FNOSettings(Strict):
    width: Positive = 32
    modes: Positive = Field(default=16, description="kept along each axis")
    depth: Positive = 4
    padding: Share = Field(default=0.125, description="zeros beyond a wall, as a share of the axis")


class FNO(nn.Module):
    """One FNO for one task."""

    def __init__(
        self, task: TaskSpec, *, width: int = 32, modes: int = 16, depth: int = 4, padding: float = 0.125
    ) -> None:
        super().__init__()
        self.task, self.padding, self.inputs = task, padding, InputChannels(task)
        self.lift = nn.Linear(self.inputs.count, width)
        self.blocks = nn.ModuleList(FNOBlock(width, modes, task.dimension) for _ in range(depth))
        self.inner, self.outer = nn.Linear(width, 128), nn.Linear(128, len(task.channels), bias=False)
        nn.init.zeros_(self.outer.weight)

    def layers(self) -> list[nn.Module]:
        return list(self.blocks)

    def matrices(self) -> list[nn.Parameter]:
        return matrices_of(self.blocks)

    def forward(
        self,
        task: str,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        conditions: Mapping[str, Float[Tensor, " B"]],
        grid: Grid,
    ) -> Float[Tensor, "B *space C"]:
        spec, space = self.task, grid.shape
        x = pointwise(self.lift, self.inputs(history, static, conditions, grid))
        # A share of the length, not a number of points: the padded domain must be the same on every grid.
        ends = [0 if wraps else round(self.padding * n) for wraps, n in zip(spec.boundary.periodic, space, strict=True)]
        x = F.pad(x, [p for end in reversed(ends) for p in (0, end)])
        for i, block in enumerate(self.blocks):
            x = block(x if i == 0 else F.gelu(x))
        for axis, n in enumerate(space):
            x = x.narrow(axis + 2, 0, n)
        return pointwise(self.outer, F.gelu(pointwise(self.inner, x))).movedim(1, -1)


def _build(tasks: Sequence[TrainedTask], settings: FNOSettings) -> FNO:
    return FNO(tasks[0].spec, **settings.model_dump())


FNO_ARCHITECTURE = Architecture("fno", FNOSettings, _build, joint=False, takes=CONDITIONS)
