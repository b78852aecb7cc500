"""Diffusion with sorption in one dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes.marching import growing_steps
from ups.equations.schemes.tridiagonal import Tridiagonal
from ups.equations.uniforms import uniforms
from ups.fields import Boundary, Side

_DIFFUSIVITY = 5e-4
_POROSITY, _DENSITY, _CAPACITY, _EXPONENT = 0.29, 2880.0, 3.5e-4, 0.874
_SORPTION = (1 - _POROSITY) / _POROSITY * _DENSITY * _CAPACITY
_OFFSET = 1e-6
_HIGHEST_START = 0.2
_GROWTH = 0.1


@dataclass(frozen=True)
class DiffusionSorption(Equation):
    """∂u/∂t = D/R(u) ∂²u/∂x² on (0, 1), u = 1 at x = 0 and u = −D ∂u/∂x at x = 1, from a constant u₀ ~ U(0, 0.2).

    A solute enters from the left into a porous medium that sorbs it (Freundlich's isotherm); the retardation
    R(u) = 1 + (1 − φ)/φ ρₛ k n_f (u + 10⁻⁶)^(n_f − 1), 13 at u = 0 and 3 at u = 1, holds it back. The front deepens as
    √t and reaches the middle within the published 500 seconds; at the right wall the solute leaves and u is nearly 0.
    D = 5·10⁻⁴, φ = 0.29, ρₛ = 2880, k = 3.5·10⁻⁴, n_f = 0.874 as published. Trajectories differ in u₀ alone.

    Solved for what a volume holds in all, w = u + (1 − φ)/φ ρₛ k (u + 10⁻⁶)^n_f with ∂w/∂t = D ∂²u/∂x²: where u is 0, R
    changes within 10⁻⁶, which no linearisation in u survives, while ∂u/∂w stays between 1/13 and 1/3. Finite volumes
    with the walls where they are, second order, and Rodas3 (third order, L-stable) in time; an explicit method would
    take 10⁵ steps. The start does not meet the wall's value, so steps begin at a tenth of what diffusion needs to cross
    a cell and grow with the time passed. Stored are averages of u over the `points` cells, of at least 1024 solved.

    In the published files the left value lies in the centre of a ghost cell, half a cell outside. The right condition
    is often printed as u = D ∂u/∂x, which has no bounded solution; the published data obey the one above.
    """

    points: int = 128
    frames: int = 101
    duration: float = 500.0

    name: ClassVar[str] = "diffusion_sorption"
    title: ClassVar[str] = "Diffusion-sorption"
    formula: ClassVar[str] = "∂u/∂t = D/R(u) ∂²u/∂x², u = 1 at x = 0, u = −D ∂u/∂x at x = 1"
    method: ClassVar[str] = "finite volume, Rodas3 on {n} points, cell averages"
    file: ClassVar[str] = "1D_diff-sorp_NA_NA.h5"
    fewest: ClassVar[int] = 1024
    layout: ClassVar[str] = "pdebench-grouped"

    @property
    def boundary(self) -> Boundary:
        return Boundary(((Side("value", (1.0,)), Side("robin")),))

    def start(self, seed: int, ids: Sequence[int]) -> Float[Tensor, " B"]:
        return _HIGHEST_START * uniforms(seed, ids, 1)[:, 0]

    def step(self, w: Float[Tensor, "B X"], dt: float) -> Float[Tensor, "B X"]:
        """One step of Rodas3 for the content w: four linear systems of one matrix, 2/dt − ∂f/∂w."""
        u, slope = concentration(w)
        matrix, rate = _shifted_jacobian(slope, 2 / dt), _supply(u)
        k1 = matrix.solve(rate)
        k2 = matrix.solve(rate + (4 / dt) * k1)
        w = w + 2 * k1
        k3 = matrix.solve(_supply(concentration(w)[0]) + (k1 - k2) / dt)
        w = w + k3
        return w + matrix.solve(_supply(concentration(w)[0]) + (k1 - k2 - (8 / 3) * k3) / dt)

    def roll(self, u0: Float[Tensor, "B X"], times: Float[Tensor, " T"]) -> Float[Tensor, "B T X"]:
        return concentration(super().roll(content(u0), times))[0]

    def advance(self, w: Float[Tensor, "B X"], now: float, later: float) -> Float[Tensor, "B X"]:
        layer = 1 / (w.shape[-1] ** 2 * _DIFFUSIVITY)
        for dt in growing_steps(now, later, lambda t: _GROWTH * (t + layer)):
            w = self.step(w, dt)
        return w

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        u0 = self.start(seed, ids).to(device)[:, None].repeat(1, self.points * self.refinement)
        rolled = self.roll(u0, times).unflatten(-1, (self.points, self.refinement)).mean(-1)
        return rolled[..., None], {}

    def rate(self, state: Float[Tensor, "B X C"], static: Static) -> Float[Tensor, "B X C"]:
        """D/R(u) ∂²u/∂x² by second-order fluxes through the faces and the walls: R(u) times it sums to what enters."""
        u = state[..., 0]
        retardation = 1 + _SORPTION * _EXPONENT * (u.clamp_min(0.0) + _OFFSET).pow(_EXPONENT - 1)
        return (_supply(u) / retardation)[..., None]


def content(u: Float[Tensor, "*batch X"]) -> Float[Tensor, "*batch X"]:
    """What a unit volume of water holds and the medium around it, w(u); u ≥ 0."""
    return u + _SORPTION * (u + _OFFSET).pow(_EXPONENT)


def concentration(w: Float[Tensor, "*batch X"]) -> tuple[Float[Tensor, "*batch X"], Float[Tensor, "*batch X"]]:
    """u(w) and du/dw = 1/R(u), continued as a straight line below w(0).

    Newton's method for the sorbed part v = (u + 10⁻⁶)^n_f: w is so nearly linear in v that three iterations from w/3
    are exact to rounding for all 0 ≤ u ≤ 1.5, so that no row waits for another.
    """
    lowest = _SORPTION * _OFFSET**_EXPONENT
    held = w.clamp_min(lowest)
    v = held / 3
    for _ in range(3):
        shifted = v.pow(1 / _EXPONENT)  # u + 10⁻⁶, of which Newton's step for w(v) = held is this quotient
        v = (held + _OFFSET + (1 / _EXPONENT - 1) * shifted) / ((1 / _EXPONENT) * shifted / v + _SORPTION)
    u = held - _SORPTION * v
    slope = 1 / (1 + _SORPTION * _EXPONENT * v / (u + _OFFSET))
    return u + slope * (w - held), slope


def _supply(u: Float[Tensor, "B X"]) -> Float[Tensor, "B X"]:
    """D ∂²u/∂x² of cell averages: what each cell gains through its faces, or through a wall."""
    n = u.shape[-1]
    left = 2 * n * (u[:, :1] - 1)
    right = -_outflow(n) / _DIFFUSIVITY * u[:, -1:]
    return _DIFFUSIVITY * n * torch.cat((left, n * u.diff(dim=-1), right), -1).diff(dim=-1)


def _outflow(n: int) -> float:
    """Flux through the right wall, as a multiple of the last cell's u.

    The wall's value w obeys w = −D ∂u/∂x = 2nD (u − w), and the flux −D ∂u/∂x is w itself.
    """
    return 2 * n * _DIFFUSIVITY / (1 + 2 * n * _DIFFUSIVITY)


def _shifted_jacobian(slope: Float[Tensor, "B X"], shift: float) -> Tridiagonal:
    """shift − ∂/∂w of `_supply(u(w))`, with slope = du/dw."""
    n = slope.shape[-1]
    coupling = (_DIFFUSIVITY * n**2) * slope
    weight = torch.full((n,), 2.0, dtype=slope.dtype, device=slope.device)
    weight[0] = 3.0
    weight[-1] = 1 + _outflow(n) / (_DIFFUSIVITY * n)
    nothing = torch.zeros_like(slope[:, :1])
    lower = torch.cat((nothing, -coupling[:, :-1]), -1)
    upper = torch.cat((-coupling[:, 1:], nothing), -1)
    return Tridiagonal.factor(lower, shift + weight * coupling, upper)
