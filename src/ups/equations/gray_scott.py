"""The Gray-Scott reaction-diffusion system in two and three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes.exponential import ETDRK4
from ups.equations.schemes.marching import in_rows, march
from ups.equations.schemes.periodic import cell_averages, random_fields, squared_waves
from ups.equations.schemes.repeated import repeat
from ups.equations.uniforms import uniforms

_DIFFUSION = (2e-5, 1e-5)
_INTERNAL_POINTS = 64
_STEP = 2.0
_CLUSTERS = 24
_FOURIER = 6
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
    file: ClassVar[str] = "gray_scott_reaction_diffusion_{pattern}_F_{F}_k_{k}.hdf5"
    named: ClassVar[tuple[str, ...]] = ("F", "k")
    layout: ClassVar[str] = "well"
    dimension: ClassVar[int] = 2
    interval: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("F", 0 < self.F <= 0.12, "give a rate above 0 and at most 0.12")
        self.require("k", 0 < self.k <= 0.08, "give a rate above 0 and at most 0.08")

    @property
    def length(self) -> float:
        return self.interval[1] - self.interval[0]

    @property
    def refinement(self) -> int:
        return max(1, math.ceil(_INTERNAL_POINTS * self.length / self.points))

    def _words(self) -> dict[str, Any]:
        return {**super()._words(), "pattern": _PATTERNS.get((self.F, self.k), "patterns")}

    def start(self, seed: int, ids: Sequence[int], n: int, device: Device = "cpu") -> Float[Tensor, "B *n 2"]:
        """The starts of the given trajectories at the centres of n cells an axis: the same functions on every grid."""
        draws = uniforms(seed, ids, 1 + (self.dimension + 1) * _CLUSTERS)
        largest = int(_FOURIER * self.length)

        def smooth(k: Float[Tensor, "*K"]) -> Float[Tensor, "*K"]:
            """Amplitudes of waves, Σ a² = 1 over half of them: a Gaussian half as wide as where it is cut."""
            total = (math.pi * (largest / 2) ** 2 / 2) ** (self.dimension / 2) / 2
            return torch.exp(-((k / (largest / 2)) ** 2)) * (k <= largest) / math.sqrt(total)

        series = random_fields(seed, ids, 1, largest, smooth, n, device, draws.shape[1], self.dimension)[:, 0]
        bumps = _bumps(draws[:, 1:].to(device), n, self.length, self.dimension)
        clustered: Bool[Tensor, "B *one"] = (draws[:, 0].to(device) < 0.5).view(-1, *(1,) * self.dimension)
        s = torch.where(clustered, bumps, 0.5 + 0.5 * torch.tanh(2 * series - 2.4))
        return torch.stack((1 - s / 2, s / 2), -1)

    def step(self, state: Float[Tensor, "B *n 2"], dt: float, steps: int = 1) -> Float[Tensor, "B *n 2"]:
        """Steps of ETDRK4 on the state's own grid; dt is taken as given."""
        space, axes = state.shape[1:-1], list(range(-self.dimension, 0))
        integrator, feed = _integrator(space, self.length, self.F, self.k, dt, state.device)

        def reaction(spectrum: Tensor) -> Tensor:
            a, b = torch.fft.irfftn(spectrum, s=space, dim=axes).unbind(1)
            made = torch.fft.rfftn(a * b * b, dim=axes)
            return torch.stack((feed - made, made), 1)

        def once(spectrum: Tensor) -> tuple[Tensor]:
            return (integrator.step(spectrum, reaction),)

        start = torch.fft.rfftn(state.movedim(-1, 1), dim=axes)
        (spectrum,) = repeat(once, (start,), steps, (self.name, space, self.F, self.k, dt))
        return torch.fft.irfftn(spectrum, s=space, dim=axes).movedim(1, -1)

    def advance(self, state: Float[Tensor, "B *n 2"], now: float, later: float) -> Float[Tensor, "B *n 2"]:
        steps = math.ceil(round((later - now) / _STEP, 9))
        return self.step(state, round((later - now) / steps, 12), steps)

    def rate(self, state: Float[Tensor, "B *n C"], static: Static) -> Float[Tensor, "B *n C"]:
        """Diffusive fluxes between neighbouring cells, and the reaction of the cells' averages."""
        a, b = state.unbind(-1)
        cells = (state.shape[1] / self.length) ** 2
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
        rows = None if self.dimension == 2 else 16 if start.is_cuda else 1  # a cube is as much as many squares
        return in_rows(frames, start, rows=rows), {}


@dataclass(frozen=True)
class GrayScott3D(GrayScott):
    """∂A/∂t = δ_A ∇²A − AB² + F(1 − A),  ∂B/∂t = δ_B ∇²B + AB² − (F + k)B on the periodic cube (−½, ½)³.

    The system of `gray_scott` in a cube of half the side: sheets, tubes and balls about 0.1 wide. Rates, solver and
    both kinds of start are the same, with 24 bumps too, and waves up to 6 (as long as those up to 12 in the plane).
    Starts live on under all the pairs (F, k) named there. 32 points an axis are as fine as 64 in the plane.

    Solved on at least 64 points an axis, where the waves that are missing cost 5·10⁻⁴ of the solution at t = 40. A step
    takes a core of a CPU a tenth of a second: 21 frames of a trajectory take 15 seconds.
    """

    points: int = 32
    frames: int = 21
    duration: float = 200.0

    name: ClassVar[str] = "gray_scott_3d"
    title: ClassVar[str] = "Gray-Scott reaction-diffusion in 3D"
    file: ClassVar[str] = "gray_scott_3d_{pattern}_F_{F}_k_{k}.hdf5"
    dimension: ClassVar[int] = 3
    interval: ClassVar[tuple[float, float]] = (-0.5, 0.5)


@lru_cache(maxsize=16)
def _integrator(
    space: tuple[int, ...], length: float, feed: float, kill: float, dt: float, device: torch.device
) -> tuple[ETDRK4, Float[Tensor, "*K"]]:
    """Coefficients; the feed F as a spectrum."""
    square = squared_waves(space[0], length, len(space), device)
    linear = torch.stack((-_DIFFUSION[0] * square - feed, -_DIFFUSION[1] * square - feed - kill))
    source = torch.zeros_like(square)
    source.view(-1)[0] = feed * math.prod(space)
    return ETDRK4.build(linear, dt), source


def _laplacian(u: Float[Tensor, "B *n"]) -> Float[Tensor, "B *n"]:
    near = -2 * (u.dim() - 1) * u
    for axis in range(1, u.dim()):
        near = near + (u.roll(1, axis) + u.roll(-1, axis))
    return near


def _bumps(draws: Float[Tensor, "B _"], n: int, length: float, dimension: int) -> Float[Tensor, "B *n"]:
    """1 − Π(1 − bump): periodic Gaussian bumps exp(−|x − xₘ|²/2w²), w ~ U(0.03, 0.1), that never exceed 1."""
    x = (torch.arange(n, dtype=torch.float64, device=draws.device) + 0.5) * (length / n)
    *centres, width = draws.unflatten(1, (dimension + 1, _CLUSTERS, 1)).unbind(1)
    width = 0.03 + 0.07 * width

    def touched(centres: Sequence[Tensor], width: Tensor) -> Tensor:
        """By any of one trajectory's bumps, each the product of its profiles along the axes."""
        bumps = torch.ones((), dtype=torch.float64, device=draws.device)
        for axis, centre in enumerate(centres):
            distance = (x - length * centre + length / 2) % length - length / 2
            profile = torch.exp(-(distance**2) / (2 * width**2))
            bumps = bumps[..., None] * profile.view(_CLUSTERS, *(1,) * axis, n)
        return 1 - (1 - bumps).prod(0)

    return torch.stack([touched(own, w) for *own, w in zip(*centres, width, strict=True)])
