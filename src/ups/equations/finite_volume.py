"""A limited finite volume scheme for viscous Burgers: second order where smooth, no new extrema at shocks."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def burgers_rate(u: Float[Tensor, "B X"], dx: float, viscosity: float) -> Float[Tensor, "B X"]:
    """d/dt of the cell averages of u on a periodic grid: −(F_{j+½} − F_{j−½})/dx.

    States on both sides of a face come from slopes limited by van Leer's harmonic mean; the convective flux is
    Engquist-Osher's, F(u⁻, u⁺) = ½ max(u⁻, 0)² + ½ min(u⁺, 0)², which is monotone and admits no expansion shock; the
    viscous one is the central difference of the averages. One flux a face, so the mean is kept to rounding.
    """
    padded = torch.cat((u[:, -2:], u, u[:, :2]), -1)
    jump = padded[:, 1:] - padded[:, :-1]
    before, after = jump[:, :-1], jump[:, 1:]
    product = before * after
    slope = torch.where(product > 0, product / (before + after), 0.0)  # half of van Leer's slope: cell centre to face
    left = (padded[:, 1:-1] + slope)[:, :-1]
    right = (padded[:, 1:-1] - slope)[:, 1:]
    flux = 0.5 * (left.clamp_min(0.0).square() + right.clamp_max(0.0).square()) - (viscosity / dx) * jump[:, 1:-1]
    return (flux[:, :-1] - flux[:, 1:]) / dx


def burgers_step(u: Float[Tensor, "B X"], dt: float, dx: float, viscosity: float) -> Float[Tensor, "B X"]:
    """Heun's method, an average of Euler steps: what bounds an Euler step bounds it."""
    euler = u + dt * burgers_rate(u, dx, viscosity)
    return 0.5 * (u + euler + dt * burgers_rate(euler, dx, viscosity))


def stable_step(speed: float, dx: float, viscosity: float) -> float:
    """The longest dt for which an Euler step makes no new extremum.

    A limited step is a mean of first-order steps of length 2 dt, and the viscous step shares the cell with it:
    dt (|u|/dx + ν/dx²) ≤ ½.
    """
    return 0.5 / (speed / dx + viscosity / dx**2)
