"""Compressible flow of an ideal gas in one and two dimensions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations import flow_states
from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes.euler import GAMMA, Gas, conserved, primitive
from ups.equations.schemes.marching import block_means
from ups.equations.schemes.muscl import states
from ups.fields import Batch, Boundary, Invariant

_MOST_VISCOUS = 10.0
_SLOWEST, _FASTEST = 0.01, 5.0


@dataclass(frozen=True)
class _Compressible(Equation):
    """What both dimensions share; the equations are those of `euler.Gas`."""

    points: int = 128
    eta: float = 0.01
    zeta: float = 0.01
    initial: str = "random"
    boundary_kind: str = "periodic"
    frames: int = 21
    duration: float = 1.0

    formula: ClassVar[str] = (
        "∂ρ/∂t + ∇·(ρv) = 0, ∂(ρv)/∂t + ∇·(ρvv + p) = ∇·τ, ∂E/∂t + ∇·((E + p)v) = ∇·(v·τ), "
        "τ = η(∇v + ∇vᵀ − ⅔ ∇·v) + ζ ∇·v"
    )
    method: ClassVar[str] = "HLLC, MUSCL (monotonised central, primitive variables), SSP-RK2 on {n} cells an axis"
    conserved: ClassVar[tuple[str, ...]] = ("density",)
    named: ClassVar[tuple[str, ...]] = ("eta", "zeta")
    positive: ClassVar[tuple[str, ...]] = ("density", "pressure")
    vectors: ClassVar[Mapping[str, str]] = {"Vx": "velocity", "Vy": "velocity"}
    layout: ClassVar[str] = "pdebench-cfd"
    initials: ClassVar[Mapping[str, str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        for viscosity in ("eta", "zeta"):
            fine = 0 <= getattr(self, viscosity) <= _MOST_VISCOUS
            self.require(viscosity, fine, f"give a viscosity from 0 to {_MOST_VISCOUS:g}")
        self.require("initial", self.initial in self.initials, f"use {' or '.join(self.initials)}")
        self.require("boundary_kind", self.boundary_kind in ("periodic", "open"), "use periodic or open")

    @property
    def _ends(self) -> str:
        """What published names call the sides."""
        return "periodic" if self.boundary_kind == "periodic" else "trans"

    @property
    def boundary(self) -> Boundary:
        return Boundary.all("periodic" if self.boundary_kind == "periodic" else "open", self.dimension)

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        """Density's mean is kept where the domain is periodic (as are those of ρv and of the energy, which are not
        stored channels)."""
        return super().invariants if self.boundary_kind == "periodic" else ()

    def gas(self, space: Sequence[int]) -> Gas:
        """The discrete equations on a grid of that many cells along each axis."""
        spacing = tuple((b - a) / n for (a, b), n in zip(self.extent, space, strict=True))
        return Gas(self.name, spacing, self.boundary_kind, self.eta, self.zeta)

    def roll(self, w0: Float[Tensor, "B C *space"], times: Float[Tensor, " T"]) -> Float[Tensor, "B T C *space"]:
        """Density, pressure, velocity at `times`, started from w0 at t = 0, on w0's own grid."""
        return torch.stack(list(self._states(w0, times)), 1)

    def _states(
        self, w0: Float[Tensor, "B C *space"], times: Float[Tensor, " T"]
    ) -> Iterator[Float[Tensor, "B C *space"]]:
        refusal = "a start has density or pressure that is not positive; give positive ones"
        return map(primitive, states(self.gas(w0.shape[2:]), conserved(w0), times, refusal))

    def rate(self, state: Float[Tensor, "B *space C"], static: Static) -> Float[Tensor, "B *space C"]:
        """∂/∂t of density, pressure and velocity, from central fluxes of ρ, E and ρv: density's sums to zero.

        ∂v/∂t = (∂(ρv)/∂t − v ∂ρ/∂t)/ρ,   ∂p/∂t = (γ − 1)(∂E/∂t − v·∂(ρv)/∂t + ½|v|² ∂ρ/∂t)
        """
        w = state.movedim(-1, 1)
        change = self.gas(w.shape[2:]).smooth_rate(w)
        density, energy, momentum = change[:, :1], change[:, 1:2], change[:, 2:]
        v = w[:, 2:]
        work = (v * momentum).sum(1, keepdim=True) - v.square().sum(1, keepdim=True) * density / 2
        return torch.cat((density, (GAMMA - 1) * (energy - work), (momentum - v * density) / w[:, :1]), 1).movedim(
            1, -1
        )

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T *space C"]:
        """The same trajectories from their first frame on fewer points: conserved fields averaged over larger cells."""
        u = conserved(batch.values[:, 0].double().movedim(-1, 1))
        u = block_means(self.name, u, points, range(2, u.dim()))
        return self.roll(primitive(u), batch.times[0] - batch.times[0, 0]).movedim(2, -1)

    @abstractmethod
    def start(self, seed: int, ids: Sequence[int], device: Device = "cpu") -> Float[Tensor, "B C *space"]:
        """The initial states of the given trajectories; each depends on (seed, index) alone."""

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        rolled = self._states(self.start(seed, ids, device), times)
        frames = torch.stack([w.to(torch.float32) for w in rolled], 1)
        return frames.movedim(2, -1), {}


@dataclass(frozen=True)
class Compressible1D(_Compressible):
    """Viscous gas on (−1, 1): ∂ρ/∂t + ∂(ρv)/∂x = 0 and the balances of ρv and E (`euler.Gas`), γ = 5/3.

    `initial="random"`: sound waves steepen into shocks within a crossing and run around the interval several times by
    t = 1 (`flow_states.random_lines`). `initial="shock"`: a Riemann problem (`flow_states.shock_lines`), which has an
    exact solution while its waves are inside; it needs `boundary_kind="open"`. The published ranges (ρ in [1, 10], p in
    [10, 100]) are kept; how waves fill them and how fast the gas moves is not published in full and is ours.

    HLLC fluxes of limited states in primitive variables, SSP-RK2, Courant number 0.3: shocks are two or three cells
    wide, contacts spread slowly. Published: 1024 points, 101 frames, η = ζ = 0.1, 0.01 or 10⁻⁸ ("inviscid"). Where
    η is far below ρc dx the scheme's own diffusion at shocks is the larger one. A step that would leave density or
    pressure not positive is taken at first order around those cells, and refused if that does not help.
    """

    name: ClassVar[str] = "compressible_1d"
    title: ClassVar[str] = "Compressible flow, 1D"
    channels: ClassVar[tuple[str, ...]] = ("density", "pressure", "Vx")
    initials: ClassVar[Mapping[str, str]] = {"random": "Rand", "shock": "Shock"}
    interval: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.initial != "shock" or self.boundary_kind == "open"
        self.require("initial", fits, "give boundary_kind='open' with it, its ends have different states")

    @property
    def published_name(self) -> str:
        eta, zeta = (_short(value) for value in (self.eta, self.zeta))
        return f"1D_CFD_{self.initials[self.initial]}_Eta{eta}_Zeta{zeta}_{self._ends}_Train.hdf5"

    def start(self, seed: int, ids: Sequence[int], device: Device = "cpu") -> Float[Tensor, "B C X"]:
        lines = flow_states.random_lines if self.initial == "random" else flow_states.shock_lines
        return lines(seed, ids, self.points, device)


@dataclass(frozen=True)
class Compressible2D(_Compressible):
    """Viscous gas on the unit square: ∂ρ/∂t + ∇·(ρv) = 0 and the balances of ρv and E (`euler.Gas`), γ = 5/3.

    `initial="random"`: density, pressure and velocity of Mach number `M` (`flow_states.random_planes`); sound
    crosses the square up to four times by t = 1, and steepens into weak shocks at M = 1.
    `initial="turbulent"`: a solenoidal velocity in a uniform gas (`flow_states.turbulent_planes`); vortices roll up and
    merge within a few times 1.

    The scheme is that of one dimension, axis by axis in one step. Published: 128² points, M 0.1 or 1, η = ζ = 0.1 or
    0.01; 512² points with η = ζ = 10⁻⁸. η is the dynamic viscosity (not multiplied by ρ): with ρ₀ down to 0.1 the
    kinematic one is up to ten times as large. Strong viscosity takes stages of its own (3 to 19 a half step
    at η = 0.1), not shorter steps. Below M = 0.01 sound would take most of the work, and the scheme's
    diffusion most of the flow: refused.
    """

    M: float = 0.1

    name: ClassVar[str] = "compressible_2d"
    title: ClassVar[str] = "Compressible flow, 2D"
    channels: ClassVar[tuple[str, ...]] = ("density", "pressure", "Vx", "Vy")
    initials: ClassVar[Mapping[str, str]] = {"random": "Rand", "turbulent": "Turb"}
    dimension: ClassVar[int] = 2
    named: ClassVar[tuple[str, ...]] = ("eta", "zeta", "M")

    def __post_init__(self) -> None:
        super().__post_init__()
        fine = _SLOWEST <= self.M <= _FASTEST
        self.require("M", fine, f"give a Mach number from {_SLOWEST} to {_FASTEST}")

    @property
    def published_name(self) -> str:
        flow = f"{self.initials[self.initial]}_M{float(self.M)}_Eta{self.eta:g}_Zeta{self.zeta:g}"
        return f"2D_CFD_{flow}_{self._ends}_{self.points}_Train.hdf5"

    def start(self, seed: int, ids: Sequence[int], device: Device = "cpu") -> Float[Tensor, "B C X Y"]:
        planes = flow_states.random_planes if self.initial == "random" else flow_states.turbulent_planes
        return planes(seed, ids, self.points, self.M, device)


def _short(value: float) -> str:
    """0.1 as "0.1" and 10⁻⁸ as "1.e-8": how one-dimensional files are named."""
    if value == 0 or value >= 1e-4:
        return f"{value:g}"
    exponent = math.floor(math.log10(value))
    digits = f"{value / 10.0**exponent:g}"
    return f"{digits}{'' if '.' in digits else '.'}e{exponent}"
