"""The Kuramoto-Sivashinsky equation in one dimension."""

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
from ups.equations.schemes.exponential import ETDRK4
from ups.equations.schemes.marching import doublings
from ups.equations.uniforms import uniforms

_WAVES = 4
_FINE = 3.0
_DAMPED = 0.75
_STEP = 0.05
_LONGEST = 1024.0


@dataclass(frozen=True)
class KuramotoSivashinsky(Equation):
    """∂u/∂t + u ∂u/∂x + ∂²u/∂x² + ∂⁴u/∂x⁴ = 0 on the periodic interval (0, L).

    Waves longer than 2π grow at the rate k² − k⁴, steepen, and are damped as short ones: cells of length about 9 that
    drift, merge and split for ever, with |u| up to 3. Chaotic from L ≈ 22 on (at L = 64 errors grow e-fold in about 11
    time units), so trajectories can be compared over a few such times and statistics beyond. L ≤ 2π is refused: there
    every wave decays.

    The start is four waves of random order, amplitude and phase among those that grow, one of them the longest (so that
    no solution has a shorter period). They are let go for `warm_up` time units before the first stored frame: 100 lead
    to the attractor from L = 22 to 128. Fourier pseudo-spectral, de-aliased by the 2/3 rule, ETDRK4 in time, on at
    least 3 points a unit length; stored are values at the `points` cell centres, for which 2 a unit length are enough.
    The mean is zero, to rounding.
    """

    points: int = 128
    length: float = 64.0
    frames: int = 101
    duration: float = 50.0
    warm_up: float = 100.0

    name: ClassVar[str] = "kuramoto_sivashinsky"
    title: ClassVar[str] = "Kuramoto-Sivashinsky equation"
    formula: ClassVar[str] = "∂u/∂t + u ∂u/∂x + ∂²u/∂x² + ∂⁴u/∂x⁴ = 0, periodic"
    method: ClassVar[str] = "pseudo-spectral ETDRK4 on {n} points, after {warm_up} time units of warm-up"
    file: ClassVar[str] = "kuramoto_sivashinsky_L{length}.hdf5"
    conserved: ClassVar[tuple[str, ...]] = ("u",)
    layout: ClassVar[str] = "well"

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = f"give more than 2π = 6.28, below which every wave decays, and at most {_LONGEST:g}"
        self.require("length", 2 * math.pi < self.length <= _LONGEST, longest)
        self.require("warm_up", 0 <= self.warm_up < math.inf, "give a time of 0 or more")

    @property
    def refinement(self) -> int:
        return doublings(self.points, _FINE * self.length)

    @property
    def extent(self) -> tuple[tuple[float, float], ...]:
        return ((0.0, float(self.length)),)

    def start(
        self, seed: int, ids: Sequence[int], x: Float[Tensor, " n"], device: Device = "cpu"
    ) -> Float[Tensor, "B n"]:
        """Σ A cos(2π m x/L + φ) over four waves: m = 1, then m ~ U{1 … L/2π}; A ~ U(0, 1), φ ~ U(0, 2π)."""
        draws = uniforms(seed, ids, 3 * _WAVES).to(device)
        growing = math.ceil(self.length / (2 * math.pi)) - 1
        order = 1 + (draws[:, :_WAVES] * growing).floor()
        order[:, 0] = 1
        amplitude, phase = draws[:, _WAVES : 2 * _WAVES], draws[:, 2 * _WAVES :]
        u = torch.zeros(len(ids), len(x), dtype=torch.float64, device=device)
        for wave in range(_WAVES):
            angle = 2 * math.pi * (order[:, wave, None] * (x.to(device) / self.length) + phase[:, wave, None])
            u = u + amplitude[:, wave, None] * angle.cos()
        return u

    def step(self, u: Float[Tensor, "B X"], dt: float, steps: int = 1) -> Float[Tensor, "B X"]:
        """Steps on u's own grid, which must be fine enough to hold damped waves; dt is taken as given."""
        n = u.shape[-1]
        integrator, half_derivative = _integrator(n, float(self.length), dt, u.device)
        spectrum = torch.fft.rfft(u)[:, : len(half_derivative)]

        def convection(v: Tensor) -> Tensor:
            return half_derivative * torch.fft.rfft(torch.fft.irfft(v, n=n).square())[:, : len(half_derivative)]

        for _ in range(steps):
            spectrum = integrator.step(spectrum, convection)
        return torch.fft.irfft(spectrum, n=n)

    def roll(self, u0: Float[Tensor, "B X"], times: Float[Tensor, " T"]) -> Float[Tensor, "B T X"]:
        """The solution started from u0 at t = 0, at u0's own points.

        A grid of less than 0.75 points a unit length holds only waves that grow, and nothing would stop them: u0 is
        interpolated to the next one that holds damped waves.
        """
        factor = doublings(u0.shape[-1], _DAMPED * self.length)
        n = factor * u0.shape[-1]
        return super().roll(_interpolated(u0, n), times)[..., ::factor]

    def advance(self, u: Float[Tensor, "B X"], now: float, later: float) -> Float[Tensor, "B X"]:
        interval = round(later - now, 12)  # so that equal intervals share their coefficients
        steps = math.ceil(interval / _STEP)
        return self.step(u, interval / steps, steps)

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        n = self.points * self.refinement
        # Every stored point is an internal one.
        x = self.length * (0.5 / self.points + torch.arange(n, dtype=torch.float64) / n)
        u0 = self.start(seed, ids, x, device)
        if self.warm_up > 0:
            u0 = self.advance(u0, 0.0, self.warm_up)
        return self.roll(u0, times)[..., :: self.refinement, None], {}

    def rate(self, state: Float[Tensor, "B X C"], static: Static) -> Float[Tensor, "B X C"]:
        """−∂(u²/2)/∂x − ∂²u/∂x² − ∂⁴u/∂x⁴ in Fourier space, where it sums to zero.

        Differences would be too coarse: at 2 points a unit length they are wrong by 8 % of ∂⁴ of the fastest wave.
        """
        u = state[..., 0]
        wave = 2 * math.pi / self.length * torch.arange(u.shape[-1] // 2 + 1, dtype=u.dtype, device=u.device)
        slope = 0.5j * wave
        if u.shape[-1] % 2 == 0:  # a wave of two points has none
            slope[-1] = 0
        spectrum = (wave**2 - wave**4) * torch.fft.rfft(u) - slope * torch.fft.rfft(u.square())
        return torch.fft.irfft(spectrum, n=u.shape[-1])[..., None]


@lru_cache(maxsize=64)
def _integrator(n: int, length: float, dt: float, device: torch.device) -> tuple[ETDRK4, Complex[Tensor, " K"]]:
    """Coefficients, and −½ ∂/∂x, for the waves 0 … n/3 of n points: those into which products are not aliased."""
    wave = 2 * math.pi / length * torch.arange(n // 3 + 1, dtype=torch.float64, device=device)
    return ETDRK4.build(wave**2 - wave**4, dt), -0.5j * wave


def _interpolated(u: Float[Tensor, "B X"], n: int) -> Float[Tensor, "B n"]:
    """The trigonometric interpolant on n points, of which the old ones are every (n/X)-th."""
    return u if n == u.shape[-1] else torch.fft.irfft(torch.fft.rfft(u), n=n) * (n / u.shape[-1])
