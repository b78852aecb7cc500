"""The compressible Navier-Stokes equations of an ideal gas as a finite volume scheme, one code for every dimension.

Primitive fields are (ρ, p, v₁ … v_d), conserved ones (ρ, E, ρv₁ … ρv_d): `(B, 2 + d, *space)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations.schemes.fused import fused
from ups.equations.schemes.muscl import (
    MOST_STAGES,
    Balance,
    attempt_heun,
    face_states,
    heun,
    longest_step,
    padded,
    per_row,
    with_inflow,
)
from ups.errors import UserError

GAMMA = 5 / 3
_STIFF = 0.5
_LARGEST = torch.finfo(torch.float64).max


def conserved(w: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
    """(ρ, p, v) → (ρ, E, ρv) with E = p/(γ − 1) + ½ρ|v|²."""
    density, velocity = w[:, :1], w[:, 2:]
    energy = w[:, 1:2] / (GAMMA - 1) + density * velocity.square().sum(1, keepdim=True) / 2
    return torch.cat((density, energy, density * velocity), 1)


def primitive(u: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
    """(ρ, E, ρv) → (ρ, p, v)."""
    return torch.stack(_primitive(*u.unbind(1)), 1)


@fused
def _primitive(density: Tensor, energy: Tensor, *momentum: Tensor) -> list[Tensor]:
    velocity = [q / density for q in momentum]
    pressure = (GAMMA - 1) * (energy - density * _sum_of_squares(velocity) / 2)
    return [density, pressure, *velocity]


@fused
def _positive(density: Tensor, energy: Tensor, *momentum: Tensor) -> list[Tensor]:
    """1 where density and pressure are, and finite: momentum is finite where the energy is larger than the motion's."""
    thermal = density * energy > _sum_of_squares(momentum) / 2
    return [torch.where((density > 0) & thermal & (density <= _LARGEST) & (energy <= _LARGEST), 1.0, 0.0)]


@fused
def _wave_speeds(density: Tensor, energy: Tensor, *momentum: Tensor) -> list[Tensor]:
    """|v| + c along each axis."""
    thermal = energy - _sum_of_squares(momentum) / density / 2
    sound = (GAMMA * (GAMMA - 1) * thermal / density).sqrt()
    return [q.abs() / density + sound for q in momentum]


@fused
def _hllc(*sides: Tensor, axis: int) -> list[Tensor]:
    """The flux of (ρ, E, ρv) through faces across `axis`: three waves, with contacts and shear held exactly.

    Outer speeds are the extremes of the gas's own and of Einfeldt's mean, S_L = min(u_L − c_L, û − ĉ), with which the
    states between the waves are positive where those beside them are. `sides` are (ρ, p, v₁ … v_d) on the left and on
    the right.
    """
    n, left, right = 2 + axis, sides[: len(sides) // 2], sides[len(sides) // 2 :]
    u_l, u_r = left[n], right[n]
    square_l, square_r = (GAMMA * w[1] / w[0] for w in (left, right))
    root_l, root_r = left[0].sqrt(), right[0].sqrt()
    share = root_l / (root_l + root_r)
    mean = share * u_l + (1 - share) * u_r
    spread = (share * square_l + (1 - share) * square_r + share * (1 - share) * (u_r - u_l).square() / 2).sqrt()
    slow = torch.minimum(u_l - square_l.sqrt(), mean - spread)
    fast = torch.maximum(u_r + square_r.sqrt(), mean + spread)
    mass_l, mass_r = left[0] * (slow - u_l), right[0] * (fast - u_r)
    contact = (right[1] - left[1] + mass_l * u_l - mass_r * u_r) / (mass_l - mass_r)

    on_left = contact >= 0
    w = [torch.where(on_left, *both) for both in zip(left, right, strict=True)]
    speed = torch.where(on_left, slow, fast)
    reach = torch.where(on_left, slow.clamp_max(0.0), fast.clamp_min(0.0))  # zero where all waves run to one side
    density, pressure, u = w[0], w[1], w[n]
    energy = pressure / (GAMMA - 1) + density * _sum_of_squares(w[2:]) / 2
    behind = density * (speed - u)  # mass that crosses the outer wave
    star = behind / (speed - contact)
    lift = (contact - u) * (contact + pressure / behind)
    flux = [
        density * u + reach * (star - density),
        (energy + pressure) * u + reach * (star * (energy / density + lift) - energy),
    ]
    for i, v in enumerate(w[2:], 2):
        flux.append(density * u * v + reach * (star * (contact if i == n else v) - density * v))
    flux[n] = flux[n] + pressure
    return flux


@dataclass(frozen=True)
class Gas(Balance):
    """The discrete equations with viscosities η (shear) and ζ (bulk).

        ∂ρ/∂t + ∇·(ρv) = 0,   ∂(ρv)/∂t + ∇·(ρvv + p) = ∇·τ,   ∂E/∂t + ∇·((E + p)v) = ∇·(v·τ)
        τ = η(∇v + ∇vᵀ − ⅔ ∇·v) + ζ ∇·v,   E = p/(γ − 1) + ½ρ|v|²,   γ = 5/3

    η and ζ are dynamic: they are not multiplied by ρ. The ⅔ is that of three dimensions whatever is varied, so that
    ∇·τ = ηΔv + (ζ + η/3)∇(∇·v). No heat is conducted; what viscosity takes from the motion, it heats.
    """

    kind: str
    eta: float
    zeta: float

    def admissible(self, u: Float[Tensor, "B C *space"]) -> Bool[Tensor, "B *space"]:
        return _positive(*u.unbind(1))[0] > 0

    def longest(self, u: Float[Tensor, "B C *space"]) -> Float[Tensor, " B"]:
        """Courant number 0.3 along the fastest axis. Viscosity does not shorten the step."""
        return longest_step(_wave_speeds(*u.unbind(1)), self.spacing)

    def fastest_decay(self, u: Float[Tensor, "B C *space"]) -> Float[Tensor, " B"]:
        """A bound of the viscous operator's eigenvalues: Σ 4/dx² · (4η/3 + ζ)/ρ."""
        stencil = sum(4 / dx**2 for dx in self.spacing)
        return stencil * (4 / 3 * self.eta + self.zeta) / u[:, 0].flatten(1).amin(1)

    def step(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, "B C *space"]:
        """One step. Where the viscous terms are slow they are part of the flux; where they are stiff, half a step of
        them goes before and after (Strang), in the stages they need."""
        stiff = self._stiff(u, dt)
        if not stiff.any():
            return heun(self, u, dt)
        ideal = Gas(self.name, self.spacing, self.kind, 0.0, 0.0)
        stepped = torch.empty_like(u)
        stepped[~stiff] = heun(self, u[~stiff], dt[~stiff])
        dt = dt[stiff]
        stepped[stiff] = self.diffuse(heun(ideal, self.diffuse(u[stiff], dt / 2), dt), dt / 2)
        return stepped

    def stages(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return torch.where(self._stiff(u, dt), self._stages(u, dt / 2), 0.0)

    def attempt(
        self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"], stages: int
    ) -> tuple[Float[Tensor, "B C *space"], Bool[Tensor, " B"]]:
        stiff = self._stiff(u, dt)
        if not stages:
            stepped, fine = super().attempt(u, dt, stages)
            return stepped, fine & ~stiff

        def diffuse(u: Tensor) -> tuple[Tensor, Tensor]:
            needed = self._stages(u, dt / 2)
            diffused = torch.where(per_row(stiff, u), self._legendre(u, dt / 2, needed, stages), u)
            return diffused, (needed <= stages) & self.admissible(diffused).flatten(1).all(1) | ~stiff

        u, before = diffuse(u)
        u, fine = attempt_heun(lambda u: self.rate(u, None, ~stiff), self.admissible, u, dt)
        u, after = diffuse(u)
        return u, before & fine & after

    def _stiff(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Bool[Tensor, " B"]:
        return dt * self.fastest_decay(u) > _STIFF

    def rate(
        self,
        u: Float[Tensor, "B C *space"],
        flat: Bool[Tensor, "B *space"] | None,
        viscous: Bool[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B C *space"]:
        """Limited fluxes in primitive variables, and the viscous ones (of all trajectories, or of some)."""
        w = primitive(u)
        change = self.viscous_rate(w) if self.eta or self.zeta else torch.zeros_like(u)
        if viscous is not None:
            change = torch.where(per_row(viscous, u), change, 0.0)
        for axis, dx in enumerate(self.spacing):
            dim = axis - len(self.spacing)
            left, right = face_states(w, dim, self.kind, flat)
            change = with_inflow(change, _hllc(*left.unbind(1), *right.unbind(1), axis=axis), dim, dx)
        return change

    def smooth_rate(self, w: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
        """d/dt of the conserved fields by fluxes of the mean state of both cells: second order, without a limiter."""
        change = self.viscous_rate(w)
        for axis, dx in enumerate(self.spacing):
            dim = axis - len(self.spacing)
            cells = padded(w, dim, self.kind, 1).movedim(dim, -1)
            face = (cells[..., 1:] + cells[..., :-1]) / 2
            flux = conserved(face)
            flux[:, 1] += face[:, 1]
            flux *= face[:, 2 + axis, None]
            flux[:, 2 + axis] += face[:, 1]
            change = with_inflow(change, flux.unbind(1), dim, dx)
        return change

    def viscous_rate(self, w: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
        """∇·τ and ∇·(v·τ) by central differences."""
        change, axes = torch.zeros_like(w), len(self.spacing)
        v = w[:, 2:]
        for axis, dx in enumerate(self.spacing):
            both = _both_sides(v, axis - axes, self.kind)
            for other in range(axes):
                if other != axis:  # along the faces: the mean of both cells' central differences
                    both += _both_sides(self._slope(v, other), axis - axes, self.kind)
            work, *force = _stress(*both, dx=dx, eta=float(self.eta), zeta=float(self.zeta), axis=axis, axes=axes)
            change = with_inflow(change, (torch.zeros_like(work), work, *force), axis - axes, -dx)  # it flows out
        return change

    def _slope(self, v: Float[Tensor, "B D *space"], axis: int) -> Float[Tensor, "B D *space"]:
        """∂v along an axis by central differences."""
        dim = axis - len(self.spacing)
        wide, n = padded(v, dim, self.kind, 1), v.shape[dim]
        return (wide.narrow(dim, 2, n) - wide.narrow(dim, 0, n)) / (2 * self.spacing[axis])

    def diffuse(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, "B C *space"]:
        """The viscous terms alone over dt, by the second-order Runge-Kutta-Legendre method (Meyer et al. 2014).

        s stages are stable over (s² + s − 2)/4 times what an Euler step is, so a time a hundred times too long costs
        20 of them.
        """
        stages = self._stages(u, dt)
        if not stages.max() <= MOST_STAGES:
            raise UserError(
                f"{self.name}: the viscous terms need {float(stages.max()):.0f} stages a step; give a smaller eta or "
                "zeta"
            )
        diffused = torch.empty_like(u)
        for count in stages.unique().tolist():
            rows = stages == count
            diffused[rows] = self._legendre(u[rows], dt[rows], stages[rows], int(count))
        if not self.admissible(diffused).all():
            raise UserError(
                f"{self.name}: viscous heating left a pressure that is not positive; give a smaller eta or zeta"
            )
        return diffused

    def _stages(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        excess = dt * self.fastest_decay(u) / 2
        return 2 * (((9 + 16 * excess).sqrt() - 1) / 4).ceil() + 1  # odd: even ones damp the shortest waves less

    def _legendre(
        self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"], stages: Float[Tensor, " B"], most: int
    ) -> Float[Tensor, "B C *space"]:
        """Every trajectory through its own number of stages, of which `most` is the largest."""
        dt, s = per_row(dt, u), per_row(stages, u)
        b = [1 / 3, 1 / 3] + [(j * j + j - 2) / (2 * j * (j + 1)) for j in range(2, most + 1)]
        first = 4 / (s * s + s - 2)
        start_rate = dt * self.viscous_rate(primitive(u))
        before, now = u, u + b[1] * first * start_rate
        for j in range(2, most + 1):
            mu = (2 * j - 1) / j * b[j] / b[j - 1]
            nu = -(j - 1) / j * b[j] / b[j - 2]
            rate = self.viscous_rate(primitive(now))
            numbers = {"j": float(j), "mu": mu, "nu": nu, "rest": 1 - mu - nu, "share": 1 - b[j - 1]}
            before, now = now, _stage(u, before, now, rate, start_rate, dt, first, s, **numbers)[0]
        return now


@fused
def _stage(
    u: Tensor,
    before: Tensor,
    now: Tensor,
    rate: Tensor,
    start_rate: Tensor,
    dt: Tensor,
    first: Tensor,
    stages: Tensor,
    *,
    j: float,
    mu: float,
    nu: float,
    rest: float,
    share: float,
) -> tuple[Tensor]:
    """Stage j of the Runge-Kutta-Legendre recursion, where there are so many."""
    change = mu * first * (dt * rate - share * start_rate)
    return (torch.where(stages >= j, mu * now + nu * before + rest * u + change, now),)


@fused
def _stress(*cells: Tensor, dx: float, eta: float, zeta: float, axis: int, axes: int) -> list[Tensor]:
    """v·τ and τ on faces across `axis`, from what the cells on both sides have: first v, then for each other axis its
    derivative along that axis.
    """
    means = [(lower + upper) / 2 for lower, upper in zip(cells[::2], cells[1::2], strict=True)]
    across = [(upper - lower) / dx for lower, upper in zip(cells[: 2 * axes : 2], cells[1 : 2 * axes : 2], strict=True)]
    velocity, along = means[:axes], iter([means[i : i + axes] for i in range(axes, len(means), axes)])
    gradient = [across if other == axis else next(along) for other in range(axes)]
    swelling = (zeta - 2 / 3 * eta) * reduce(add, (g[i] for i, g in enumerate(gradient)))
    force = [(gradient[axis][i] + g[axis]) * eta for i, g in enumerate(gradient)]
    force[axis] = force[axis] + swelling
    return [reduce(add, (v * f for v, f in zip(velocity, force, strict=True))), *force]


def _both_sides(v: Float[Tensor, "B D *space"], dim: int, kind: str) -> list[Float[Tensor, "B *faces"]]:
    """Of every channel the cells before and behind each face across an axis, which comes last."""
    cells = padded(v, dim, kind, 1).movedim(dim, -1)
    return [side for channel in cells.unbind(1) for side in (channel[..., :-1], channel[..., 1:])]


def _sum_of_squares(velocity: Sequence[Tensor]) -> Tensor:
    return reduce(add, (v.square() for v in velocity))
