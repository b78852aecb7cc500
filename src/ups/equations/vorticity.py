"""Two-dimensional incompressible flow on a periodic square in vorticity form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Complex, Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes.exponential import ETDRK4
from ups.equations.schemes.marching import doublings, in_rows, march
from ups.equations.schemes.periodic import cell_averages, random_fields, waves
from ups.equations.schemes.repeated import repeat
from ups.errors import UserError

_LARGEST_WAVE = 20
COURANT = 0.8
_SLOWEST = 0.125
_LONGEST = 1.0  # between looks at the speeds
_MOST_POINTS = 1024


@dataclass(frozen=True)
class Vorticity(Equation):
    """∂ω/∂t + v·∇ω = ν ∇²ω + 0.1 (sin 2π(x + y) + cos 2π(x + y)), v = (∂ψ/∂y, −∂ψ/∂x), −∇²ψ = ω, periodic unit square.

    The data of the Fourier neural operator's paper: vortices of a smooth random start merge while a diagonal shear is
    pumped; smooth and slowly bending at ν = 10⁻³, ever finer as ν falls. The start is Gaussian with the covariance
    2·7³(−∇² + 49)^(−5/2), as the published data were drawn (the paper prints 7^(3/2)), of waves up to 20. Published are
    64² points, ν = 10⁻³ to t = 50, 10⁻⁴ to 30, 10⁻⁵ to 20, frames 1 apart. The mean of ω is zero and stays so.

    Fourier pseudo-spectral, de-aliased by the 2/3 rule, ETDRK4 with a Courant number of 0.8, on as many points as keep
    the waves at which viscosity ends the cascade, |k| ≈ 1.5 √(ω/ν); averages over the `points` cells are stored.
    That is 64 points for ν = 10⁻³, 128 for 10⁻⁴, 512 for 10⁻⁵; below 10⁻⁶ a thousand points are not enough.
    """

    points: int = 64
    nu: float = 1e-3
    frames: int = 51
    duration: float = 50.0

    name: ClassVar[str] = "vorticity"
    title: ClassVar[str] = "Navier-Stokes in vorticity"
    formula: ClassVar[str] = (
        "∂ω/∂t + v·∇ω = ν ∇²ω + 0.1 (sin 2π(x + y) + cos 2π(x + y)), v = (∂ψ/∂y, −∂ψ/∂x), −∇²ψ = ω, periodic"
    )
    method: ClassVar[str] = "pseudo-spectral ETDRK4 on {n} points an axis, 2/3 rule, cell averages"
    channels: ClassVar[tuple[str, ...]] = ("w",)
    named: ClassVar[tuple[str, ...]] = ("nu",)
    conserved: ClassVar[tuple[str, ...]] = ("w",)
    layout: ClassVar[str] = "well"
    dimension: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("nu", 0 < self.nu < math.inf, "give a positive viscosity")
        small = f"give at least 1e-6, {_MOST_POINTS} points are too few for smaller vortices"
        self.require("nu", points_needed(self.nu) <= max(_MOST_POINTS, self.points), small)

    @property
    def refinement(self) -> int:
        """To keep the waves of the flow and of its start."""
        return doublings(self.points, max(points_needed(self.nu), 3 * _LARGEST_WAVE))

    @property
    def published_name(self) -> str:
        nu = np.format_float_scientific(self.nu, trim="-", exp_digits=1)  # the shortest that reads back: 1e-3, 1.5e-3
        return f"ns_V{nu}_T{self.duration:g}.hdf5"

    def start(self, seed: int, ids: Sequence[int], n: int, device: Device = "cpu") -> Float[Tensor, "B n n"]:
        return random_fields(seed, ids, 1, _LARGEST_WAVE, _amplitude, n, device)[:, 0]

    def force(self, n: int, device: Device = "cpu") -> Float[Tensor, "n n"]:
        x = 2 * math.pi * (torch.arange(n, dtype=torch.float64, device=device) + 0.5) / n
        return 0.1 * (torch.sin(x[:, None] + x) + torch.cos(x[:, None] + x))

    def roll(
        self, w: Float[Tensor, "B X Y"], times: Float[Tensor, " T"], force: Float[Tensor, "X Y"] | None = None
    ) -> Float[Tensor, "B T X Y"]:
        """The solution started from w at t = 0, on its own grid, under the equation's own force or another."""
        force = self.force(w.shape[-1], w.device) if force is None else force
        return torch.stack(list(self._states(w, force, times)), 1)

    def _states(
        self, w: Float[Tensor, "B n n"], force: Float[Tensor, "n n"], times: Float[Tensor, " T"]
    ) -> Iterator[Float[Tensor, "B n n"]]:
        def march_on(state: Tensor, dt: float, steps: int) -> Tensor:
            return step(state, force, self.nu, dt, steps)

        def go_on(state: Tensor, now: float, later: float) -> Tensor:
            return advance(state, now, later, speeds, march_on, COURANT, _LONGEST)

        yield from march(self.name, w, times, go_on)

    def rate(self, state: Float[Tensor, "B X Y C"], static: Static) -> Float[Tensor, "B X Y C"]:
        """Central fluxes through the faces, with velocities from differences of ψ along them; it sums to zero."""
        w, n = state[..., 0], state.shape[1]
        x_face, y_face = face_velocities(torch.fft.rfft2(w), n)
        flux_x = x_face * (w + w.roll(-1, 1)) / 2 - self.nu * n * (w.roll(-1, 1) - w)
        flux_y = y_face * (w + w.roll(-1, 2)) / 2 - self.nu * n * (w.roll(-1, 2) - w)
        change = n * (flux_x.roll(1, 1) - flux_x + flux_y.roll(1, 2) - flux_y)
        return (change + self.force(n, w.device))[..., None]

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        n = self.points * self.refinement
        force = self.force(n, device)

        def frames(start: Tensor) -> Tensor:
            states = self._states(start, force, times)
            return torch.stack([cell_averages(w[:, None], self.points)[:, 0].to(torch.float32) for w in states], 1)

        return in_rows(frames, self.start(seed, ids, n, device))[..., None], {}


def points_needed(nu: float) -> float:
    """Points an axis that keep waves up to 1.5 √(ω/ν) for ω = 2, a third of which may be kept: 3 · 1.5 √(2/ν)/2π."""
    return 3 * 1.5 * math.sqrt(2 / nu) / (2 * math.pi)


def velocities(spectrum: Complex[Tensor, "B K L"], n: int) -> Float[Tensor, "B 2 n n"]:
    """v_x and v_y at the points, from the spectrum of the vorticity."""
    return torch.fft.irfft2(spectrum[:, None] * _operators(n, spectrum.device)[0][:2], s=(n, n))


def face_velocities(
    spectrum: Complex[Tensor, "B K L"], n: int
) -> tuple[Float[Tensor, "B n n"], Float[Tensor, "B n n"]]:
    """The mean normal velocity on every cell's upper x face and upper y face.

    Differences of ψ between the face's corners: what flows into a cell flows out, to rounding.
    """
    psi = n * torch.fft.irfft2(spectrum * _corner(n, spectrum.device), s=(n, n))
    return psi - psi.roll(1, -1), psi.roll(1, -2) - psi


def speeds(w: Float[Tensor, "B n n"]) -> Float[Tensor, " B"]:
    """Every flow's largest |v_x| + |v_y|."""
    return velocities(torch.fft.rfft2(w), w.shape[-1]).abs().sum(1).amax((-2, -1))


def step(
    w: Float[Tensor, "B n n"], force: Float[Tensor, "*B n n"], nu: float, dt: float, steps: int
) -> Float[Tensor, "B n n"]:
    """Steps of ETDRK4 on w's own grid; dt is taken as given. Waves that are not resolved are dropped."""
    n = w.shape[-1]
    fields, divergence = _operators(n, w.device)
    integrator, kept = _integrator(n, nu, dt, w.device), waves(n, 1.0, w.device).resolved

    def once(spectrum: Tensor, pumped: Tensor) -> tuple[Tensor, Tensor]:
        def convection(spectrum: Tensor) -> Tensor:
            values = torch.fft.irfft2(spectrum[:, None] * fields, s=(n, n))
            return (divergence * torch.fft.rfft2(values[:, :2] * values[:, 2:])).sum(1) + pumped

        return integrator.step(spectrum, convection), pumped

    start = torch.fft.rfft2(w) * kept, torch.fft.rfft2(force) * kept
    spectrum, _ = repeat(once, start, steps, ("vorticity", n, nu, dt))
    return torch.fft.irfft2(spectrum, s=(n, n))


def advance(
    state: Float[Tensor, "B *state"],
    now: float,
    later: float,
    speed: Callable[[Tensor], Float[Tensor, " B"]],
    march_on: Callable[[Tensor, float, int], Tensor],
    courant: float,
    longest: float,
) -> Float[Tensor, "B *state"]:
    """March over an interval in stable steps: `march_on(state, dt, steps)` with dt · n · speed ≤ `courant`.

    The step follows from each flow's own speed, rounded up to a power of 2. The whole batch marches with every step
    that one of it needs, so that no flow depends on what else is in it. Speeds are looked at again after `longest`,
    during which the force must change them little.
    """
    n = state.shape[-1]
    pieces = math.ceil(round((later - now) / longest, 9))
    piece = (later - now) / pieces
    for _ in range(pieces):
        level = (speed(state) / _SLOWEST).clamp_min(1.0).log2().ceil()
        if not level.isfinite().all():
            raise UserError("the flow is not finite; give a finite start and force")
        marched = state
        for value in level.unique().tolist():
            steps = math.ceil(piece * n * _SLOWEST * 2**value / courant)
            there = march_on(state, round(piece / steps, 12), steps)
            marched = torch.where((level == value).reshape(-1, *(1,) * (state.dim() - 1)), there, marched)
        state = marched
    return state


@lru_cache(maxsize=16)
def _integrator(n: int, nu: float, dt: float, device: torch.device) -> ETDRK4:
    return ETDRK4.build(-nu * waves(n, 1.0, device).square, dt)


@lru_cache(maxsize=16)
def _corner(n: int, device: torch.device) -> Complex[Tensor, "K L"]:
    """From vorticity at the centres to ψ at the cells' corners of larger x and y."""
    all_waves = waves(n, 1.0, device)
    shift = torch.exp(0.5j / n * (all_waves.x + all_waves.y))
    return shift * all_waves.resolved / all_waves.square.clamp_min(1.0)


@lru_cache(maxsize=16)
def _operators(n: int, device: torch.device) -> tuple[Complex[Tensor, "3 K L"], Complex[Tensor, "2 K L"]]:
    """From vorticity to (v_x, v_y, ω), and minus the divergence; both drop waves that are not resolved."""
    all_waves = waves(n, 1.0, device)
    kept = all_waves.resolved
    x, y = 1j * (all_waves.x * kept), 1j * (all_waves.y * kept)
    square = all_waves.square.clamp_min(1.0)  # only the mean's is below 1: it has no velocity
    return torch.stack((y / square, -x / square, kept + 0j)), -torch.stack((x, y))


def _amplitude(k: Float[Tensor, "K L"]) -> Float[Tensor, "K L"]:
    return 2 * 7**1.5 * (4 * math.pi**2 * k**2 + 49) ** -1.25
