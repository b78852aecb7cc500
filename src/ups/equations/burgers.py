"""The viscous Burgers equation in one dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.initial import RandomWaves
from ups.equations.schemes import finite_volume
from ups.equations.schemes.exponential import ETDRK4
from ups.equations.schemes.marching import doublings

_INTERNAL_POINTS = 1024
_CELLS_PER_NU = 10
_SPECTRAL_COURANT = 3.0
_SLOWEST = 2**-6
_LEAST_NU = 1e-5


@dataclass(frozen=True)
class Burgers(Equation):
    """∂u/∂t + ∂(u²/2)/∂x = (ν/π) ∂²u/∂x² on the periodic interval (0, 1). Note the viscosity: ν/π.

    Waves steepen into shocks of width about 4ν/(πΔu) within t ≈ 0.1, the shocks run into each other and decay. Two
    methods, chosen by whether the grid of n points resolves the shocks of the published family (n ν ≥ 10):

    - it does: Fourier pseudo-spectral, de-aliased by the 2/3 rule, ETDRK4 in time, in the frame moving with the mean;
    - it does not: limited finite volumes (`finite_volume.py`), which hold an unresolved shock within two or three cells
      and make no new extrema.

    `solve` works on at least the points that resolve the shocks, up to 1024 (or `points`, if more), and stores averages
    over the `points` cells for both methods: point values of a shock thinner than a cell do not keep their mean,
    averages do to rounding. Published values of ν: 0.001, 0.002, 0.004, 0.01, ... 4. Below ν = 0.001 the shock
    is one cell thick even on 1024 points, and ν no longer matters to the answer; below 10⁻⁵, where that holds on any
    grid one would store, it is refused.
    """

    points: int = 128
    nu: float = 0.01
    frames: int = 41
    duration: float = 2.0

    name: ClassVar[str] = "burgers"
    title: ClassVar[str] = "Burgers' equation"
    formula: ClassVar[str] = "∂u/∂t + ∂(u²/2)/∂x = (ν/π) ∂²u/∂x², periodic"
    file: ClassVar[str] = "1D_Burgers_Sols_Nu{nu}.hdf5"
    named: ClassVar[tuple[str, ...]] = ("nu",)
    conserved: ClassVar[tuple[str, ...]] = ("u",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("nu", _LEAST_NU <= self.nu < math.inf, f"give a viscosity of at least {_LEAST_NU:g}")

    @property
    def viscosity(self) -> float:
        return self.nu / math.pi

    @property
    def refinement(self) -> int:
        return doublings(self.points, min(_CELLS_PER_NU / self.nu, _INTERNAL_POINTS))

    def resolved_on(self, n: int) -> bool:
        """Whether n points resolve the shocks, so that the spectral method applies."""
        return n * self.nu >= _CELLS_PER_NU

    @property
    def solver(self) -> str:
        internal = self.points * self.refinement
        method = "pseudo-spectral ETDRK4" if self.resolved_on(internal) else "MUSCL finite volume, SSP-RK2"
        return f"{method} on {internal} points, cell averages"

    def step(self, u: Float[Tensor, "B X"], dt: float, steps: int = 1) -> Float[Tensor, "B X"]:
        """Steps of the method that fits u's own number of points; dt is taken as given.

        The spectral method steps in the frame moving with the mean, u = ū + v(x − ūt, t): v is slower than u, so
        longer steps do, and the shift is exact in Fourier space.
        """
        n = u.shape[-1]
        if not self.resolved_on(n):
            return finite_volume.burgers_march(u, dt * steps, 1 / n, self.viscosity, torch.full((len(u),), steps))
        mean = u.mean(-1, keepdim=True)
        integrator, half_derivative = _integrator(n, self.viscosity, dt, u.device)
        spectrum = torch.fft.rfft(u - mean)[:, : len(half_derivative)]

        def convection(v: Tensor) -> Tensor:
            return half_derivative * torch.fft.rfft(torch.fft.irfft(v, n=n).square())[:, : len(half_derivative)]

        for _ in range(steps):
            spectrum = integrator.step(spectrum, convection)
        shift = torch.exp(2 * half_derivative * mean * (dt * steps))
        return mean + torch.fft.irfft(spectrum * shift, n=n)

    def advance(self, u: Float[Tensor, "B X"], now: float, later: float) -> Float[Tensor, "B X"]:
        """March over an interval in equal stable steps.

        The step follows from each trajectory's own largest speed, which never grows, rounded up to a power of 2 so
        that trajectories can march together: it does not depend on what else is in the batch.
        """
        interval = round(later - now, 12)  # so that equal intervals share their coefficients
        n = u.shape[-1]
        spectral = self.resolved_on(n)
        speed = (u - u.mean(-1, keepdim=True) if spectral else u).abs().amax(-1)
        level = speed.clamp_min(_SLOWEST).log2().ceil()
        if not spectral:
            levels, which = level.cpu().unique(return_inverse=True)
            longest = (finite_volume.stable_step(2**value, 1 / n, self.viscosity) for value in levels.tolist())
            steps = torch.tensor([math.ceil(interval / dt) for dt in longest])[which]
            return finite_volume.burgers_march(u, interval, 1 / n, self.viscosity, steps)
        advanced = torch.empty_like(u)
        for value in level.unique().tolist():
            steps = math.ceil(interval * n * 2**value / _SPECTRAL_COURANT)
            rows = (level == value).nonzero()[:, 0]
            advanced[rows] = self.step(u[rows], interval / steps, steps)
        return advanced

    def rate(self, state: Float[Tensor, "B X C"], static: Static) -> Float[Tensor, "B X C"]:
        """−∂(u²/2)/∂x + (ν/π) ∂²u/∂x² by second-order fluxes through the faces: it sums to zero."""
        u, n = state[..., 0], state.shape[1]
        after = u.roll(-1, -1)
        flux = (u.square() + u * after + after.square()) / 6 - self.viscosity * n * (after - u)
        return (n * (flux.roll(1, -1) - flux))[..., None]

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        factor = self.refinement
        n = self.points * factor
        spectral = self.resolved_on(n)
        # A stored cell's centre is an internal point of the spectral grid, and a face between two internal cells.
        first = 0.5 / (self.points if spectral else n)
        x = first + torch.arange(n, dtype=torch.float64, device=device) / n
        rolled = self.roll(RandomWaves.draw(seed, ids, device)(x), times)
        if spectral:
            averages = _windowed_means(rolled, self.points)[..., ::factor]
        else:
            averages = rolled.unflatten(-1, (self.points, factor)).mean(-1)
        return averages[..., None], {}


@lru_cache(maxsize=64)
def _integrator(n: int, viscosity: float, dt: float, device: torch.device) -> tuple[ETDRK4, Complex[Tensor, " K"]]:
    """Coefficients, and −½ ∂/∂x, for the waves 0 … n/3 of n points: those into which products are not aliased."""
    wave = 2 * math.pi * torch.arange(n // 3 + 1, dtype=torch.float64, device=device)
    return ETDRK4.build(-viscosity * wave**2, dt), -0.5j * wave


def _windowed_means(u: Float[Tensor, "B T X"], cells: int) -> Float[Tensor, "B T X"]:
    """The average of the trigonometric interpolant over a width 1/cells around each point."""
    n = u.shape[-1]
    wave = torch.arange(n // 2 + 1, dtype=torch.float64, device=u.device)
    return torch.fft.irfft(torch.fft.rfft(u) * torch.sinc(wave / cells), n=n)
