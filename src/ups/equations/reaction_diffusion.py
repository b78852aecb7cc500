"""Reaction and diffusion in one dimension: the Fisher-KPP equation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.initial import RandomWaves
from ups.equations.schemes.marching import growing_steps
from ups.errors import UserError

_LATTICE = 4096
_POINTS_IN_A_FRONT = 2.0
_GROWTH = 0.05
_LAYER = 1e-6
_REACTION = 0.05
_MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class ReactionDiffusion(Equation):
    """∂u/∂t = ν ∂²u/∂x² + ρ u (1 − u) on the periodic interval (0, 1), from random waves stretched to [0, 1].

    Waves decay within t ≈ 1/(4π²ν), then u is uniform and grows to 1 as a logistic curve. Where ν is small (below
    about ρ/1000) fronts of width √(6ν/ρ) run into the regions with u = 0 at the speed 5√(νρ/6) or less, and meet.
    Published values: ν ∈ {0.5, 1, 2, 5}, ρ ∈ {1, 2, 5, 10}; a mean of 0.5 and ρ = 5 reach 0.99 at t = 0.92.

    Strang splitting of two exact parts: the logistic curve at each point and the heat kernel in Fourier space. Steps
    grow with the time passed, since a start as rough as these decays on all scales from 10⁻⁶/ν on; where u is uniform
    the splitting is exact. The stored values are those at the cell centres, of a solution on at least 1024 points.
    Fronts thinner than that grid resolves (2 points in √(ν/ρ)) are refused, and so is a ρ of more than 50,000 growth
    times, each of which takes 20 steps.
    """

    points: int = 128
    nu: float = 0.5
    rho: float = 1.0
    frames: int = 101
    duration: float = 1.0

    name: ClassVar[str] = "reaction_diffusion"
    title: ClassVar[str] = "Reaction-diffusion (Fisher-KPP)"
    formula: ClassVar[str] = "∂u/∂t = ν ∂²u/∂x² + ρu(1 − u), periodic"
    method: ClassVar[str] = "Strang splitting, exact logistic and spectral heat steps on {n} points"
    file: ClassVar[str] = "ReacDiff_Nu{nu}_Rho{rho}.hdf5"
    fewest: ClassVar[int] = 1024
    named: ClassVar[tuple[str, ...]] = ("nu", "rho")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("nu", 0 < self.nu < math.inf, "give a positive diffusivity")
        self.require("rho", 0 <= self.rho < math.inf, "give a growth rate of 0 or more")
        if self.rho * self.duration > _MOST_STEPS * _REACTION:
            raise UserError(
                f"reaction_diffusion: rho is {self.rho} and duration {self.duration}, which would take more than "
                f"{_MOST_STEPS:,} steps; give a product of at most {_MOST_STEPS * _REACTION:g}, u is 1 long before"
            )
        n = self.points * self.refinement
        thinnest = self.rho * (_POINTS_IN_A_FRONT / n) ** 2
        if self.nu < thinnest:
            raise UserError(
                f"reaction_diffusion: nu is {self.nu}, and with rho = {self.rho} fronts are too thin for {n} points; "
                f"give nu of at least {thinnest:.2g} or more points"
            )

    def start(
        self, seed: int, ids: Sequence[int], x: Float[Tensor, " n"], device: Device = "cpu"
    ) -> Float[Tensor, "B n"]:
        """u₀ = (w − min w)/(max w − min w) of the random waves w, in [0, 1] at every x.

        The extrema are those on a fixed lattice, so that a draw is the same function on every grid; what lies between
        lattice points and exceeds them, by 2·10⁻⁵ or at a kink 6·10⁻³, is cut.
        """
        waves = RandomWaves.draw(seed, ids, device)
        lattice = waves(torch.arange(_LATTICE, dtype=torch.float64, device=device) / _LATTICE)
        lowest, highest = lattice.aminmax(dim=-1, keepdim=True)
        return ((waves(x.to(device)) - lowest) / (highest - lowest)).clamp(0.0, 1.0)

    def step(self, u: Float[Tensor, "B X"], dt: float) -> Float[Tensor, "B X"]:
        """Half a step of growth, one of diffusion, half a step of growth: of second order in dt."""
        n = u.shape[-1]
        decay = (-self.nu * dt * _squared_waves(n, u.device)).exp()
        grown = self._grow(u, dt / 2)
        return self._grow(torch.fft.irfft(torch.fft.rfft(grown) * decay, n=n), dt / 2)

    def _grow(self, u: Float[Tensor, "B X"], dt: float) -> Float[Tensor, "B X"]:
        """The logistic curve through u, after dt."""
        return u / (u + (1 - u) * math.exp(-self.rho * dt))

    def advance(self, u: Float[Tensor, "B X"], now: float, later: float) -> Float[Tensor, "B X"]:
        longest = _REACTION / self.rho if self.rho > 0 else math.inf
        for dt in growing_steps(now, later, lambda t: min(_GROWTH * (t + _LAYER / self.nu), longest)):
            u = self.step(u, dt)
        return u

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        n = self.points * self.refinement
        x = 0.5 / self.points + torch.arange(n, dtype=torch.float64) / n  # every stored point is an internal one
        rolled = self.roll(self.start(seed, ids, x, device), times)
        return rolled[..., :: self.refinement, None], {}

    def rate(self, state: Float[Tensor, "B X C"], static: Static) -> Float[Tensor, "B X C"]:
        """ν ∂²u/∂x² by second-order fluxes through the faces, and ρ u (1 − u)."""
        diffusion = self.nu * state.shape[1] ** 2 * (state.roll(1, 1) + state.roll(-1, 1) - 2 * state)
        return diffusion + self.rho * state * (1 - state)


@lru_cache(maxsize=16)
def _squared_waves(n: int, device: torch.device) -> Float[Tensor, " K"]:
    return (2 * math.pi * torch.arange(n // 2 + 1, dtype=torch.float64, device=device)).square()
