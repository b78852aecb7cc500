"""Forced incompressible flow between walls that carries particles, in two dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations import vorticity
from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes import staggered
from ups.equations.schemes.marching import block_means, doublings, in_rows, march
from ups.equations.schemes.periodic import cell_averages, random_fields
from ups.fields import Batch, Kind

_LARGEST_WAVE = 16
_NUMBERS = 2 * (2 * _LARGEST_WAVE + 1) * (_LARGEST_WAVE + 1)  # that a random field takes
_COURANT = 0.4
_MOST_POINTS = 1024
_LONGEST = 0.1  # between looks at the speeds: the force, three standard deviations of it, changes them by 0.12 in that


@dataclass(frozen=True)
class Incompressible(Equation):
    """∂V/∂t + V·∇V = −∇p + ν ∇²V + f,  ∇·V = 0,  ∂m/∂t + ∇·(mV) = 0 on the unit square, V = 0 on its walls.

    A static random force f(x, y) stirs a flow V, and V stretches a density m of passive particles into ever thinner
    filaments. Along the walls V falls to zero within a layer of about √(νt), and m stays what it was. V and f are drawn
    like PDEBench's as remembered, not checked against it: Gaussian random fields with spectral densities |k|⁻³ and
    |k|⁻¹ and standard deviations 0.15 and 0.4 in each component. Of the V drawn, the part with a divergence or through
    the walls is taken off, and a layer of 1/8 brings the rest to zero on them; a third of its energy is left. That
    layer, waves up to 16 at most, and the particles' start, ½ + ½ tanh(2g) with a random field g like V's, of variance
    1, are ours: do not take these data for statistically equal to the published ones, which have ν = 0.01 and 1000
    frames on 512².

    The mean of m is conserved. The flow is solved on a staggered grid (`staggered.py`): central differences of second
    order, viscosity by sine transforms, a pressure that leaves no divergence but rounding. m is carried by limited
    finite volumes through the same faces with Heun's method, so no cell gains particles, none pass the walls and no new
    extremum appears. Filaments thinner than a cell are smeared over about three: there m depends on the grid, V does
    not. At ν = 0.01 64 points give V to 0.7 % and 128 to 0.2 %; below ν = 1e-4 a thousand points are not enough.
    """

    points: int = 128
    nu: float = 0.01
    frames: int = 51
    duration: float = 5.0

    name: ClassVar[str] = "incompressible"
    title: ClassVar[str] = "Incompressible flow with particles"
    formula: ClassVar[str] = "∂V/∂t + V·∇V = −∇p + ν ∇²V + f, ∇·V = 0, ∂m/∂t + ∇·(mV) = 0, V = 0 on the walls"
    method: ClassVar[str] = (
        "staggered grid, projection, limited finite volumes for particles, {n} points an axis, no slip, "
        f"steps chosen every {_LONGEST}"
    )
    file: ClassVar[str] = "ns_incom_inhom_2d_{points}-0.h5"
    sides: ClassVar[Kind] = "value"
    wall: ClassVar[tuple[float, ...]] = (0.0, 0.0)  # of Vx and Vy
    named: ClassVar[tuple[str, ...]] = ("nu",)
    conserved: ClassVar[tuple[str, ...]] = ("particles",)
    channels: ClassVar[tuple[str, ...]] = ("Vx", "Vy", "particles")
    static: ClassVar[tuple[str, ...]] = ("force_x", "force_y")
    layout: ClassVar[str] = "pdebench-incompressible"
    vectors: ClassVar[Mapping[str, str]] = {"Vx": "V", "Vy": "V"}
    dimension: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("nu", 0 < self.nu < math.inf, "give a positive viscosity")
        thin = f"give at least 1e-4, {_MOST_POINTS} points are too few for thinner boundary layers"
        self.require("nu", _points_needed(self.nu) <= max(_MOST_POINTS, self.points), thin)

    @property
    def refinement(self) -> int:
        return doublings(self.points, _points_needed(self.nu))

    def force(self, seed: int, ids: Sequence[int], n: int, device: Device = "cpu") -> Tensor:
        """f of the given trajectories at the centres of n × n cells: (B, 2, n, n)."""
        return random_fields(seed, ids, 2, _LARGEST_WAVE, _power_law(-1, 0.4), n, device)

    def start(self, seed: int, ids: Sequence[int], n: int, device: Device = "cpu") -> Tensor:
        """V on the upper faces and particles in the middle of n × n cells at t = 0: (B, 3, n, n)."""
        v = random_fields(seed, ids, 2, _LARGEST_WAVE, _power_law(-3, 0.15), n, device, skip=2 * _NUMBERS)
        g = random_fields(seed, ids, 1, _LARGEST_WAVE, _power_law(-3, 1.0), n, device, skip=4 * _NUMBERS)
        return torch.cat(
            (in_rows(lambda drawn: staggered.at_rest_on_walls(_flow(drawn)), v), 0.5 + 0.5 * torch.tanh(2 * g)), 1
        )

    def _states(
        self, state: Float[Tensor, "B 3 n n"], force: Float[Tensor, "B 2 n n"], times: Float[Tensor, " T"]
    ) -> Iterator[Float[Tensor, "B 3 n n"]]:
        """V on the upper faces and particles at the times."""
        force = staggered.at_faces(force)

        def march_on(state: Tensor, dt: float, steps: int) -> Tensor:
            v, m = state[:, :2], state[:, 2]
            for after in staggered.march(v, force, self.nu, dt, steps):
                euler = m + dt * _transport(m, v)
                m = 0.5 * (m + euler + dt * _transport(euler, after))
                v = after
            return torch.cat((v, m[:, None]), 1)

        def go_on(state: Tensor, now: float, later: float) -> Tensor:
            return vorticity.advance(
                state, now, later, lambda s: staggered.speeds(s[:, :2]), march_on, _COURANT, _LONGEST
            )

        yield from march(self.name, state, times, go_on)

    def roll_under(
        self, start: Float[Tensor, "B 3 n n"], force: Float[Tensor, "B 2 n n"], times: Float[Tensor, " T"]
    ) -> Float[Tensor, "B T n n 3"]:
        """Vx, Vy and particles in the cells, on the start's own grid.

        The start is V on the upper faces, without divergence, and particles; the force is given at the centres.
        """
        return torch.stack([_in_cells(state) for state in self._states(start, force, times)], 1).movedim(2, -1)

    def rate(self, state: Float[Tensor, "B X Y C"], static: Static) -> Float[Tensor, "B X Y C"]:
        """Central fluxes through the faces, none through the walls, of what is free of divergence in V and its change.

        From the centres to the faces and back are two averages: of second order, and less at the walls.
        """
        values, n = state.movedim(-1, 1), state.shape[1]
        v, m = _flow(values[:, :2]), values[:, 2]
        force = staggered.at_faces(torch.stack((static["force_x"], static["force_y"]), 1).to(v))
        change = staggered.projected(force - staggered.convection(v) + self.nu * staggered.laplacian(v))[0]
        flux_x, flux_y = (one * (m + m.roll(-1, axis)) / 2 for one, axis in zip(v.unbind(1), (-2, -1), strict=True))
        carried = n * (flux_x.roll(1, -2) - flux_x + flux_y.roll(1, -1) - flux_y)
        return torch.cat((staggered.at_centres(change), carried[:, None]), 1).movedim(1, -1)

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T X Y C"]:
        """The same trajectories from their first frame and force averaged to fewer points."""
        first = batch.values[:, 0].movedim(-1, 1)
        fields = torch.cat((first, batch.static["force_x"][:, None], batch.static["force_y"][:, None]), 1).double()
        fields = block_means(self.name, fields, points, (2, 3))
        start = torch.cat((_flow(fields[:, :2]), fields[:, 2:3]), 1)
        return self.roll_under(start, fields[:, 3:], batch.times[0] - batch.times[0, 0])

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        n = self.points * self.refinement

        def frames(start: Tensor, force: Tensor) -> Tensor:
            states = self._states(start, force, times)
            stored = [block_means(self.name, _in_cells(s), self.points, (2, 3)).to(torch.float32) for s in states]
            return torch.stack(stored, 1).movedim(2, -1)

        force = self.force(seed, ids, n, device)
        values = in_rows(frames, self.start(seed, ids, n, device), force)
        force_x, force_y = in_rows(lambda f: cell_averages(f, self.points), force).unbind(1)
        return values, {"force_x": force_x, "force_y": force_y}


def _points_needed(nu: float) -> float:
    """Points an axis for two cells in a layer of √(ν/ω), with the vorticity ω = 10 that walls shed."""
    return 2 * math.sqrt(10 / nu)


def _flow(centres: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B 2 n n"]:
    """V on the faces, without divergence, of velocities in the cells."""
    return staggered.projected(staggered.at_faces(centres))[0]


def _in_cells(state: Float[Tensor, "B 3 n n"]) -> Float[Tensor, "B 3 n n"]:
    return torch.cat((staggered.at_centres(state[:, :2]), state[:, 2:]), 1)


def _transport(m: Float[Tensor, "B n n"], v: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B n n"]:
    """−∇·(mV) of cell averages, by upwind states with van Leer's slopes at the upper faces of every cell.

    Across a wall m is taken as even, so that cells beside it have no slope towards it; nothing flows there.
    """
    change = torch.zeros_like(m)
    for axis, speed in zip((-2, -1), v.unbind(1), strict=True):
        jump = m.roll(-1, axis) - m
        jump.narrow(axis, m.shape[axis] - 1, 1).zero_()
        product = jump * jump.roll(1, axis)
        slope = torch.where(product > 0, product / (jump + jump.roll(1, axis)), 0.0)
        flux = speed.clamp_min(0.0) * (m + slope) + speed.clamp_max(0.0) * (m - slope).roll(-1, axis)
        change += flux.roll(1, axis) - flux
    return m.shape[-1] * change


def _power_law(exponent: float, rms: float) -> Callable[[Tensor], Tensor]:
    """Amplitudes of a field with spectral density |k|^exponent up to the largest wave, and of that rms."""

    def amplitude(k: Float[Tensor, "K L"]) -> Float[Tensor, "K L"]:
        weight = torch.where((k > 0) & (k <= _LARGEST_WAVE), k.clamp_min(1.0) ** (exponent / 2), 0.0)
        variance = weight[:, 1:].square().sum() + weight[:, 0].square().sum() / 2  # k_y = 0 holds each wave twice
        return rms * weight / variance.sqrt()

    return amplitude
