"""∂u/∂t of every equation by smooth stencils that its solver does not use: what true solutions are proved by.

Second order or better, in a conservative discrete form on the state's own grid.
"""

from __future__ import annotations

import math
from functools import lru_cache, singledispatch

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from ups.equations import (
    Advection,
    Burgers,
    Darcy,
    DiffusionReaction,
    DiffusionSorption,
    Equation,
    GrayScott,
    Incompressible,
    KuramotoSivashinsky,
    ReactionDiffusion,
    Vorticity,
)
from ups.equations.compressible import _Compressible
from ups.equations.diffusion_sorption import _EXPONENT, _OFFSET, _SORPTION, _supply
from ups.equations.gray_scott import _DIFFUSION
from ups.equations.incompressible import _flow
from ups.equations.schemes import staggered
from ups.equations.schemes.euler import GAMMA, Gas, conserved
from ups.equations.schemes.muscl import padded, with_inflow
from ups.equations.schemes.periodic import waves
from ups.fields import Batch


@singledispatch
def rate(equation: Equation, state, static):
    """∂u/∂t of (B, *space, C) with its static fields; of a steady equation the residual, zero at the solution."""
    raise NotImplementedError(equation.name)


def balance(equation: Equation, batch: Batch) -> Float[Tensor, "B steps *space C"]:
    """How far each step between frames is from what the equation allows: u(t₁) − u(t₀) − ∫ rate dt.

    The integral is the trapezoidal rule over the two frames, so true solutions have a balance of third order in the
    time between frames: compare it with that of a wrong one.
    A steady batch has the residual, in one frame.
    """
    values = batch.values.double()
    static = {name: field.double() for name, field in batch.static.items()}
    rates = torch.stack([rate(equation, values[:, t], static) for t in range(values.shape[1])], 1)
    if equation.steady:
        return rates
    dt = batch.times.diff(dim=1).reshape(len(batch), -1, *(1,) * (values.dim() - 2))
    return values.diff(dim=1) - dt * (rates[:, 1:] + rates[:, :-1]) / 2


@rate.register
def _(self: Advection, state, static):
    """−β ∂u/∂x by central differences: it sums to zero."""
    return (self.beta * state.shape[1] / 2) * (state.roll(1, 1) - state.roll(-1, 1))


@rate.register
def _(self: Burgers, state, static):
    """−∂(u²/2)/∂x + (ν/π) ∂²u/∂x² by second-order fluxes through the faces: it sums to zero."""
    u, n = state[..., 0], state.shape[1]
    after = u.roll(-1, -1)
    flux = (u.square() + u * after + after.square()) / 6 - self.viscosity * n * (after - u)
    return (n * (flux.roll(1, -1) - flux))[..., None]


@rate.register
def _(self: ReactionDiffusion, state, static):
    """ν ∂²u/∂x² by second-order fluxes through the faces, and ρ u (1 − u)."""
    diffusion = self.nu * state.shape[1] ** 2 * (state.roll(1, 1) + state.roll(-1, 1) - 2 * state)
    return diffusion + self.rho * state * (1 - state)


@rate.register
def _(self: DiffusionSorption, state, static):
    """D/R(u) ∂²u/∂x² by second-order fluxes through the faces and the walls: R(u) times it sums to what enters."""
    u = state[..., 0]
    retardation = 1 + _SORPTION * _EXPONENT * (u.clamp_min(0.0) + _OFFSET).pow(_EXPONENT - 1)
    return (_supply(u) / retardation)[..., None]


@rate.register
def _(self: KuramotoSivashinsky, state, static):
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


@rate.register
def _(self: GrayScott, state, static):
    """Five-point diffusive fluxes, and the reaction of the cells' averages."""
    a, b = state.unbind(-1)
    cells = (state.shape[1] / 2.0) ** 2
    made = a * b * b
    return torch.stack(
        (
            _DIFFUSION[0] * cells * periodic_laplacian(a) - made + self.F * (1 - a),
            _DIFFUSION[1] * cells * periodic_laplacian(b) + made - (self.F + self.k) * b,
        ),
        -1,
    )


@rate.register
def _(self: DiffusionReaction, state, static):
    """Five-point diffusive fluxes, none through the walls, and the reaction."""
    u, v = state.unbind(-1)
    cells = (state.shape[1] / 2.0) ** 2
    return torch.stack(
        (
            self.activator_diffusion * cells * closed_laplacian(u) + u - u**3 - self.k - v,
            self.inhibitor_diffusion * cells * closed_laplacian(v) + u - v,
        ),
        -1,
    )


@rate.register
def _(self: Vorticity, state, static):
    """Central fluxes through the faces, with velocities from differences of ψ along them; it sums to zero."""
    w, n = state[..., 0], state.shape[1]
    x_face, y_face = face_velocities(torch.fft.rfft2(w), n)
    flux_x = x_face * (w + w.roll(-1, 1)) / 2 - self.nu * n * (w.roll(-1, 1) - w)
    flux_y = y_face * (w + w.roll(-1, 2)) / 2 - self.nu * n * (w.roll(-1, 2) - w)
    change = n * (flux_x.roll(1, 1) - flux_x + flux_y.roll(1, 2) - flux_y)
    return (change + self.force(n, w.device))[..., None]


@rate.register
def _(self: Incompressible, state, static):
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


@rate.register
def _(self: Darcy, state, static):
    """The residual β + ∇·(a ∇u)."""
    return (self.beta - self.operator(static["a"].double(), state[..., 0].double()))[..., None]


@rate.register
def _(self: _Compressible, state, static):
    """∂/∂t of density, pressure and velocity, from central fluxes of ρ, E and ρv: density's sums to zero.

    ∂v/∂t = (∂(ρv)/∂t − v ∂ρ/∂t)/ρ,   ∂p/∂t = (γ − 1)(∂E/∂t − v·∂(ρv)/∂t + ½|v|² ∂ρ/∂t)
    """
    w = state.movedim(-1, 1)
    change = smooth_rate(self.gas(w.shape[2:]), w)
    density, energy, momentum = change[:, :1], change[:, 1:2], change[:, 2:]
    v = w[:, 2:]
    work = (v * momentum).sum(1, keepdim=True) - v.square().sum(1, keepdim=True) * density / 2
    return torch.cat((density, (GAMMA - 1) * (energy - work), (momentum - v * density) / w[:, :1]), 1).movedim(1, -1)


def periodic_laplacian(u: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
    return u.roll(1, 1) + u.roll(-1, 1) + u.roll(1, 2) + u.roll(-1, 2) - 4 * u


def closed_laplacian(u: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
    """Differences of the fluxes through the faces, in units of dx²."""
    flux_x = torch.nn.functional.pad(u.diff(dim=1), (0, 0, 1, 1))
    flux_y = torch.nn.functional.pad(u.diff(dim=2), (1, 1))
    return flux_x.diff(dim=1) + flux_y.diff(dim=2)


def face_velocities(
    spectrum: Complex[Tensor, "B K L"], n: int
) -> tuple[Float[Tensor, "B n n"], Float[Tensor, "B n n"]]:
    """The mean normal velocity on every cell's upper x face and upper y face.

    Differences of ψ between the face's corners: what flows into a cell flows out, to rounding.
    """
    psi = n * torch.fft.irfft2(spectrum * _corner(n, spectrum.device), s=(n, n))
    return psi - psi.roll(1, -1), psi.roll(1, -2) - psi


@lru_cache(maxsize=16)
def _corner(n: int, device: torch.device) -> Complex[Tensor, "K L"]:
    """From vorticity at the centres to ψ at the cells' corners of larger x and y."""
    all_waves = waves(n, 1.0, device)
    shift = torch.exp(0.5j / n * (all_waves.x + all_waves.y))
    return shift * all_waves.resolved / all_waves.square.clamp_min(1.0)


def smooth_rate(self: Gas, w: Float[Tensor, "B C *space"]) -> Float[Tensor, "B C *space"]:
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
