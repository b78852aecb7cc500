"""Linear advection in one dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.initial import RandomWaves
from ups.errors import UserError
from ups.fields import Invariant

_FARTHEST = 1e6


@dataclass(frozen=True)
class Advection(Equation):
    """∂u/∂t + β ∂u/∂x = 0 on the periodic interval (0, 1).

    Every wave travels at speed β and keeps its shape, so the solution is the initial function at x − βt, and that is
    what is stored: point values at the cell centres, exact to rounding, at any resolution and time. (An FFT shift would
    ring at the windows' steep sides.) Published values of β: 0.1, 0.2, 0.4, 0.7, 1, 2, 4, 7; |β| times the duration may
    be 10⁶, where x − βt still has ten digits.
    """

    points: int = 128
    beta: float = 0.4
    frames: int = 41
    duration: float = 2.0

    name: ClassVar[str] = "advection"
    title: ClassVar[str] = "Advection"
    formula: ClassVar[str] = "∂u/∂t + β ∂u/∂x = 0, periodic"
    method: ClassVar[str] = "exact: initial function at x - beta t, point values at cell centres"
    file: ClassVar[str] = "1D_Advection_Sols_beta{beta}.hdf5"
    named: ClassVar[tuple[str, ...]] = ("beta",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("beta", math.isfinite(self.beta), "give a finite speed")
        if abs(self.beta) * self.duration > _FARTHEST:
            raise UserError(
                f"advection: beta is {self.beta} and duration {self.duration}, which is more than {_FARTHEST:g} times "
                "around the interval and leaves x − βt too few digits; give a smaller product"
            )

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        """The mean of point values is not quite constant: a kink of slope change J (where u₀ = |·|) moves it by up to
        J dx²/8 as it crosses a cell, and the worst draw has 16 kinks of J = 32π. Divided by the rms of 0.79: 254 dx².
        """
        return (Invariant("u", tolerance=254 / self.points**2),)

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        waves = RandomWaves.draw(seed, ids, device)
        positions = (self.grid.positions[0] - self.beta * times[:, None]).to(device)
        u = waves(positions.flatten()).reshape(len(ids), len(times), self.points, 1)
        return u, {}

    def rate(self, state: Float[Tensor, "B X C"], static: Static) -> Float[Tensor, "B X C"]:
        """−β ∂u/∂x by central differences: it sums to zero."""
        return (self.beta * state.shape[1] / 2) * (state.roll(1, 1) - state.roll(-1, 1))

    def roll(self, u0: Float[Tensor, "B X"], times: Float[Tensor, " T"]) -> Float[Tensor, "B T X"]:
        """The sampled start, shifted by βt. `solve` knows the function; this, as any solver, only samples of it."""
        spectrum = torch.fft.rfft(u0)
        k = torch.arange(spectrum.shape[-1], dtype=torch.float64, device=u0.device)
        angle = -2 * torch.pi * self.beta * times.to(u0.device)[:, None] * k
        shift = torch.polar(torch.ones_like(angle), angle)
        if u0.shape[-1] % 2 == 0:  # a wave of two points has no sine
            shift[:, -1] = shift[:, -1].real.clone()
        return torch.fft.irfft(spectrum[:, None] * shift, n=u0.shape[-1])
