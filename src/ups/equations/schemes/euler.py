"""The compressible Navier-Stokes equations of an ideal gas as a finite volume scheme, one code for every dimension.

Primitive fields are (ρ, p, v₁ … v_d), conserved ones (ρ, E, ρv₁ … ρv_d): `(B, 2 + d, *space)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations.schemes.muscl import COURANT, face_states, heun, inflow, padded
from ups.errors import UserError

GAMMA = 5 / 3
_STIFF = 0.5
_MOST_STAGES = 401


def conserved(w: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
    """(ρ, p, v) → (ρ, E, ρv) with E = p/(γ − 1) + ½ρ|v|²."""
    density, velocity = w[:, :1], w[:, 2:]
    energy = w[:, 1:2] / (GAMMA - 1) + density * _square(velocity) / 2
    return torch.cat((density, energy, density * velocity), 1)


def primitive(u: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
    """(ρ, E, ρv) → (ρ, p, v)."""
    density, velocity = u[:, :1], u[:, 2:] / u[:, :1]
    pressure = (GAMMA - 1) * (u[:, 1:2] - density * _square(velocity) / 2)
    return torch.cat((density, pressure, velocity), 1)


def hllc(
    left: Float[Tensor, "B C *faces"], right: Float[Tensor, "B C *faces"], axis: int
) -> Float[Tensor, "B C *faces"]:
    """The flux of (ρ, E, ρv) through faces across `axis`: three waves, with contacts and shear held exactly.

    Outer speeds are the extremes of the gas's own and of Einfeldt's mean, S_L = min(u_L − c_L, û − ĉ), with which the
    states between the waves are positive where those beside them are.
    """
    n = 2 + axis
    u_l, u_r = left[:, n], right[:, n]
    square_l, square_r = (GAMMA * w[:, 1] / w[:, 0] for w in (left, right))
    root_l, root_r = left[:, 0].sqrt(), right[:, 0].sqrt()
    share = root_l / (root_l + root_r)
    mean = share * u_l + (1 - share) * u_r
    spread = (share * square_l + (1 - share) * square_r + share * (1 - share) * (u_r - u_l).square() / 2).sqrt()
    slow = torch.minimum(u_l - square_l.sqrt(), mean - spread)
    fast = torch.maximum(u_r + square_r.sqrt(), mean + spread)
    mass_l, mass_r = left[:, 0] * (slow - u_l), right[:, 0] * (fast - u_r)
    contact = (right[:, 1] - left[:, 1] + mass_l * u_l - mass_r * u_r) / (mass_l - mass_r)

    on_left = contact >= 0
    w = torch.where(on_left[:, None], left, right)
    speed = torch.where(on_left, slow, fast)
    reach = torch.where(on_left, slow.clamp_max(0.0), fast.clamp_min(0.0))  # zero where all waves run to one side
    density, pressure, u = w[:, 0], w[:, 1], w[:, n]
    energy = pressure / (GAMMA - 1) + density * _square(w[:, 2:])[:, 0] / 2
    behind = density * (speed - u)  # mass that crosses the outer wave
    star = behind / (speed - contact)
    flux = torch.empty_like(w)
    flux[:, 0] = density * u + reach * (star - density)
    lift = (contact - u) * (contact + pressure / behind)
    flux[:, 1] = (energy + pressure) * u + reach * (star * (energy / density + lift) - energy)
    for i in range(2, w.shape[1]):
        inside = contact if i == n else w[:, i]
        flux[:, i] = density * u * w[:, i] + reach * (star * inside - density * w[:, i])
    flux[:, n] += pressure
    return flux


@dataclass(frozen=True)
class Gas:
    """The discrete equations for cells of sides `spacing`, with viscosities η (shear) and ζ (bulk).

        ∂ρ/∂t + ∇·(ρv) = 0,   ∂(ρv)/∂t + ∇·(ρvv + p) = ∇·τ,   ∂E/∂t + ∇·((E + p)v) = ∇·(v·τ)
        τ = η(∇v + ∇vᵀ − ⅔ ∇·v) + ζ ∇·v,   E = p/(γ − 1) + ½ρ|v|²,   γ = 5/3

    η and ζ are dynamic: they are not multiplied by ρ. The ⅔ is that of three dimensions whatever is varied, so that
    ∇·τ = ηΔv + (ζ + η/3)∇(∇·v). No heat is conducted; what viscosity takes from the motion, it heats.
    """

    name: str
    spacing: tuple[float, ...]
    kind: str
    eta: float
    zeta: float

    def admissible(self, u: Float[Tensor, "B C *space"]) -> Bool[Tensor, "B *space"]:
        return (u[:, 0] > 0) & (u[:, 0] * u[:, 1] > _square(u[:, 2:])[:, 0] / 2) & u.isfinite().all(1)

    def longest(self, u: Float[Tensor, "B C *space"]) -> Float[Tensor, " B"]:
        """Courant number 0.3 along the fastest axis. Viscosity does not shorten the step."""
        density, momentum = u[:, 0], u[:, 2:]
        energy = u[:, 1] - _square(momentum)[:, 0] / density / 2
        sound = (GAMMA * (GAMMA - 1) * energy / density).sqrt()
        speed = (momentum.abs() / density[:, None] + sound[:, None]).flatten(2).amax(2)
        return COURANT / (speed / speed.new_tensor(self.spacing)).amax(1)

    def fastest_decay(self, u: Float[Tensor, "B C *space"]) -> Float[Tensor, " B"]:
        """A bound of the viscous operator's eigenvalues: Σ 4/dx² · (4η/3 + ζ)/ρ."""
        stencil = sum(4 / dx**2 for dx in self.spacing)
        return stencil * (4 / 3 * self.eta + self.zeta) / u[:, 0].flatten(1).amin(1)

    def step(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, "B C *space"]:
        """One step. Where the viscous terms are slow they are part of the flux; where they are stiff, half a step of
        them goes before and after (Strang), in the stages they need."""
        stiff = dt * self.fastest_decay(u) > _STIFF
        if not stiff.any():
            return heun(self, u, dt)
        ideal = Gas(self.name, self.spacing, self.kind, 0.0, 0.0)
        stepped = torch.empty_like(u)
        stepped[~stiff] = heun(self, u[~stiff], dt[~stiff])
        dt = dt[stiff]
        stepped[stiff] = self.diffuse(heun(ideal, self.diffuse(u[stiff], dt / 2), dt), dt / 2)
        return stepped

    def rate(
        self, u: Float[Tensor, "B C *space"], flat: Bool[Tensor, "B *space"] | None
    ) -> Float[Tensor, "B C *space"]:
        """Limited fluxes in primitive variables, and the viscous ones."""
        w = primitive(u)
        change = self.viscous_rate(w) if self.eta or self.zeta else torch.zeros_like(u)
        for axis, dx in enumerate(self.spacing):
            dim = axis - len(self.spacing)
            left, right = face_states(w, dim, self.kind, flat)
            change += inflow(hllc(left, right, axis), dim, dx)
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
            change += inflow(flux, dim, dx)
        return change

    def viscous_rate(self, w: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
        """∇·τ and ∇·(v·τ) by central differences."""
        change = torch.zeros_like(w)
        for axis, dx in enumerate(self.spacing):
            velocity, gradient = self._face_velocities(w[:, 2:], axis)
            swelling = (self.zeta - 2 / 3 * self.eta) * sum(g[:, i] for i, g in enumerate(gradient))
            force = torch.stack([gradient[axis][:, i] + g[:, axis] for i, g in enumerate(gradient)], 1) * self.eta
            force[:, axis] += swelling
            work = (velocity * force).sum(1, keepdim=True)
            change -= inflow(torch.cat((torch.zeros_like(work), work, force), 1), axis - len(self.spacing), dx)
        return change

    def _face_velocities(
        self, v: Float[Tensor, "B D *space"], axis: int
    ) -> tuple[Float[Tensor, "B D *faces"], list[Float[Tensor, "B D *faces"]]]:
        """The velocity and its derivative along every axis, on the faces across `axis` (which comes last).

        Across the face the difference of both cells, along it the mean of both cells' central differences.
        """
        axes = len(self.spacing)
        cells = padded(v, axis - axes, self.kind, 1).movedim(axis - axes, -1)
        gradient = []
        for other, dx in enumerate(self.spacing):
            if other == axis:
                gradient.append((cells[..., 1:] - cells[..., :-1]) / dx)
                continue
            wide = padded(v, other - axes, self.kind, 1)
            n = v.shape[other - axes]
            slope = (wide.narrow(other - axes, 2, n) - wide.narrow(other - axes, 0, n)) / (2 * dx)
            slope = padded(slope, axis - axes, self.kind, 1).movedim(axis - axes, -1)
            gradient.append((slope[..., 1:] + slope[..., :-1]) / 2)
        return (cells[..., 1:] + cells[..., :-1]) / 2, gradient

    def diffuse(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, "B C *space"]:
        """The viscous terms alone over dt, by the second-order Runge-Kutta-Legendre method (Meyer et al. 2014).

        s stages are stable over (s² + s − 2)/4 times what an Euler step is, so a time a hundred times too long costs
        20 of them.
        """
        excess = dt * self.fastest_decay(u) / 2
        stages = 2 * (((9 + 16 * excess).sqrt() - 1) / 4).ceil() + 1  # odd: even ones damp the shortest waves less
        stages, order = stages.sort(descending=True)
        if not stages[0] <= _MOST_STAGES:
            raise UserError(
                f"{self.name}: the viscous terms need {float(stages[0]):.0f} stages a step; give a smaller eta or zeta"
            )
        diffused = torch.empty_like(u)
        diffused[order] = self._legendre(u[order], dt[order], stages)
        if not self.admissible(diffused).all():
            raise UserError(
                f"{self.name}: viscous heating left a pressure that is not positive; give a smaller eta or zeta"
            )
        return diffused

    def _legendre(
        self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"], stages: Float[Tensor, " B"]
    ) -> Float[Tensor, "B C *space"]:
        """All trajectories stage by stage, those of the most stages first: the last ones are through first."""
        dt, s = (value.reshape(-1, *(1,) * (u.dim() - 1)) for value in (dt, stages))
        needed = [int(count) for count in stages.tolist()]
        b = [1 / 3, 1 / 3] + [(j * j + j - 2) / (2 * j * (j + 1)) for j in range(2, needed[0] + 1)]
        first = 4 / (s * s + s - 2)
        start_rate = dt * self.viscous_rate(primitive(u))
        before, now = u, u + b[1] * first * start_rate
        through: list[Tensor] = []
        for j in range(2, needed[0] + 1):
            mu = (2 * j - 1) / j * b[j] / b[j - 1]
            nu = -(j - 1) / j * b[j] / b[j - 2]
            rate = dt * self.viscous_rate(primitive(now))
            change = mu * first * (rate - (1 - b[j - 1]) * start_rate)
            before, now = now, mu * now + nu * before + (1 - mu - nu) * u + change
            left = sum(count > j for count in needed)
            if left < len(now):
                through.insert(0, now[left:])
                u, dt, first, start_rate, before, now = (t[:left] for t in (u, dt, first, start_rate, before, now))
        return torch.cat(through)


def _square(velocity: Float[Tensor, "B D *space"]) -> Float[Tensor, "B 1 *space"]:
    return velocity.square().sum(1, keepdim=True)
