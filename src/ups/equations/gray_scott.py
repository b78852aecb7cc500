"""The Gray-Scott reaction-diffusion system in two dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes.exponential import ETDRK4
from ups.equations.schemes.marching import in_rows, march
from ups.equations.schemes.periodic import cell_averages, random_fields, waves
from ups.equations.schemes.repeated import repeat
from ups.equations.uniforms import uniforms

_LENGTH = 2.0
_DIFFUSION = (2e-5, 1e-5)
_INTERNAL_POINTS = 128
_STEP = 2.0
_CLUSTERS = 24
_FOURIER = 12
_PATTERNS = {
    (0.014, 0.054): "gliders",
    (0.098, 0.057): "bubbles",
    (0.029, 0.057): "maze",
    (0.058, 0.065): "worms",
    (0.018, 0.051): "spirals",
    (0.03, 0.062): "spots",
}


@dataclass(frozen=True)
class GrayScott(Equation):
    """∂A/∂t = δ_A ∇²A − AB² + F(1 − A),  ∂B/∂t = δ_B ∇²B + AB² − (F + k)B on the periodic square (−1, 1)².

    A feeds B, which copies itself, and is itself fed at the rate F; B is removed at F + k. From small seeds of B,
    patterns about 0.1 wide spread over the square in hundreds to thousands of time units, and then rest, crawl or
    boil, as F and k have it. δ_A = 2·10⁻⁵, δ_B = 10⁻⁵. Published pairs (F, k): gliders (.014, .054), bubbles
    (.098, .057), maze (.029, .057), worms (.058, .065), spirals (.018, .051), spots (.03, .062); 1001 frames to
    t = 10,000 (here 101 to t = 1000 unless told otherwise: the same time between frames). Rates outside 0 < F ≤ 0.12,
    0 < k ≤ 0.08, where patterns are not to be expected, are refused. Nothing is conserved.

    Fourier pseudo-spectral and ETDRK4, as published, on at least 128 points an axis; averages over the `points` cells
    are stored. All waves are kept: cutting a third of them to avoid aliasing costs ten times the error that aliasing
    makes (2·10⁻⁴ of the solution at t = 50 on 128 points, 4·10⁻⁸ on 256).

    Starts: A = 1 − s/2, B = s/2 with 0 ≤ s ≤ 1, in one half of the samples 24 Gaussian bumps of width 0.03 to 0.1, in
    the other ½ + ½ tanh(2f − 2.4) of a random Fourier series f of waves up to 12 and variance 1. The published starts
    are of these two kinds, their numbers are not published; these live on under every published pair, where larger
    blots, which use up their A, or less B die out in some.
    """

    points: int = 128
    F: float = 0.029
    k: float = 0.057
    frames: int = 101
    duration: float = 1000.0

    name: ClassVar[str] = "gray_scott"
    title: ClassVar[str] = "Gray-Scott reaction-diffusion"
    formula: ClassVar[str] = "∂A/∂t = δ_A ∇²A − AB² + F(1 − A), ∂B/∂t = δ_B ∇²B + AB² − (F + k)B, periodic"
    channels: ClassVar[tuple[str, ...]] = ("A", "B")
    method: ClassVar[str] = f"pseudo-spectral ETDRK4 on {{n}} points an axis, dt <= {_STEP}, cell averages"
    named: ClassVar[tuple[str, ...]] = ("F", "k")
    layout: ClassVar[str] = "well"
    dimension: ClassVar[int] = 2
    interval: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("F", 0 < self.F <= 0.12, "give a rate above 0 and at most 0.12")
        self.require("k", 0 < self.k <= 0.08, "give a rate above 0 and at most 0.08")

    @property
    def refinement(self) -> int:
        return max(1, math.ceil(_INTERNAL_POINTS / self.points))

    @property
    def published_name(self) -> str:
        pattern = _PATTERNS.get((self.F, self.k), "patterns")
        return f"gray_scott_reaction_diffusion_{pattern}_F_{self.F}_k_{self.k}.hdf5"

    def start(self, seed: int, ids: Sequence[int], n: int, device: Device = "cpu") -> Float[Tensor, "B n n 2"]:
        """The starts of the given trajectories at the centres of n × n cells: the same functions on every grid."""
        draws = uniforms(seed, ids, 1 + 3 * _CLUSTERS)
        series = random_fields(seed, ids, 1, _FOURIER, _smooth, n, device, skip=draws.shape[1])[:, 0]
        bumps = _bumps(draws[:, 1:].to(device), n)
        clustered: Bool[Tensor, "B 1 1"] = draws[:, 0, None, None].to(device) < 0.5
        s = torch.where(clustered, bumps, 0.5 + 0.5 * torch.tanh(2 * series - 2.4))
        return torch.stack((1 - s / 2, s / 2), -1)

    def step(self, state: Float[Tensor, "B X Y 2"], dt: float, steps: int = 1) -> Float[Tensor, "B X Y 2"]:
        """Steps of ETDRK4 on the state's own grid; dt is taken as given."""
        n = state.shape[1]
        integrator, feed = _integrator(n, self.F, self.k, dt, state.device)

        def reaction(spectrum: Tensor) -> Tensor:
            a, b = torch.fft.irfft2(spectrum, s=(n, n)).unbind(1)
            made = torch.fft.rfft2(a * b * b)
            return torch.stack((feed - made, made), 1)

        def once(spectrum: Tensor) -> tuple[Tensor]:
            return (integrator.step(spectrum, reaction),)

        start = torch.fft.rfft2(state.movedim(-1, 1))
        (spectrum,) = repeat(once, (start,), steps, ("gray_scott", n, self.F, self.k, dt))
        return torch.fft.irfft2(spectrum, s=(n, n)).movedim(1, -1)

    def advance(self, state: Float[Tensor, "B X Y 2"], now: float, later: float) -> Float[Tensor, "B X Y 2"]:
        steps = math.ceil(round((later - now) / _STEP, 9))
        return self.step(state, round((later - now) / steps, 12), steps)

    def rate(self, state: Float[Tensor, "B X Y C"], static: Static) -> Float[Tensor, "B X Y C"]:
        """Five-point diffusive fluxes, and the reaction of the cells' averages."""
        a, b = state.unbind(-1)
        cells = (state.shape[1] / _LENGTH) ** 2
        made = a * b * b
        return torch.stack(
            (
                _DIFFUSION[0] * cells * _laplacian(a) - made + self.F * (1 - a),
                _DIFFUSION[1] * cells * _laplacian(b) + made - (self.F + self.k) * b,
            ),
            -1,
        )

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        def frames(start: Tensor) -> Tensor:
            stored = [
                cell_averages(state.movedim(-1, 1), self.points).to(torch.float32)
                for state in march(self.name, start, times, self.advance)
            ]
            return torch.stack(stored, 1).movedim(2, -1)

        start = self.start(seed, ids, self.points * self.refinement, device)
        return in_rows(frames, start), {}


@lru_cache(maxsize=16)
def _integrator(
    n: int, feed: float, kill: float, dt: float, device: torch.device
) -> tuple[ETDRK4, Float[Tensor, "K L"]]:
    """Coefficients; the feed F as a spectrum."""
    all_waves = waves(n, _LENGTH, device)
    linear = torch.stack((-_DIFFUSION[0] * all_waves.square - feed, -_DIFFUSION[1] * all_waves.square - feed - kill))
    source = torch.zeros_like(all_waves.square)
    source[0, 0] = feed * n**2
    return ETDRK4.build(linear, dt), source


def _laplacian(u: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
    return u.roll(1, 1) + u.roll(-1, 1) + u.roll(1, 2) + u.roll(-1, 2) - 4 * u


def _smooth(k: Float[Tensor, "K L"]) -> Float[Tensor, "K L"]:
    """Amplitudes of waves, Σ a² = 1 over half the plane: a Gaussian of width 6, cut at 12."""
    return torch.exp(-((k / 6) ** 2)) * (k <= _FOURIER) / math.sqrt(9 * math.pi)


def _bumps(draws: Float[Tensor, "B 72"], n: int) -> Float[Tensor, "B n n"]:
    """1 − Π(1 − bump): periodic Gaussian bumps exp(−|x − xₘ|²/2w²), w ~ U(0.03, 0.1), that never exceed 1."""
    x = (torch.arange(n, dtype=torch.float64, device=draws.device) + 0.5) * (_LENGTH / n)
    centre_x, centre_y, width = draws.unflatten(1, (3, _CLUSTERS, 1)).unbind(1)
    width = 0.03 + 0.07 * width

    def along(centre: Tensor) -> Tensor:
        distance = (x - _LENGTH * centre + _LENGTH / 2) % _LENGTH - _LENGTH / 2
        return torch.exp(-(distance**2) / (2 * width**2))

    return 1 - (1 - along(centre_x)[..., :, None] * along(centre_y)[..., None, :]).prod(1)
