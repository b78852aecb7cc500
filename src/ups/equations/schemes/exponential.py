"""Exponential time differencing: stiff linear parts exactly, the rest by a fourth-order Runge-Kutta method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Inexact
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ETDRK4:
    """One step of length dt of dv/dt = L v + N(v) with a real diagonal L (Cox and Matthews, 2002).

    The linear part is integrated exactly, so diffusion does not limit dt. The coefficients are differences of nearly
    equal numbers where |L dt| is small; they are evaluated as means over a circle around L dt, where nothing cancels
    (Kassam and Trefethen, 2005).
    """

    whole: Float[Tensor, " *K"]
    half: Float[Tensor, " *K"]
    stage: Float[Tensor, " *K"]
    first: Float[Tensor, " *K"]
    middle: Float[Tensor, " *K"]
    last: Float[Tensor, " *K"]

    @classmethod
    def build(cls, linear: Float[Tensor, " *K"], dt: float) -> ETDRK4:
        z = linear.to(torch.float64) * dt
        angles = math.pi * (torch.arange(32, dtype=torch.float64, device=z.device) + 0.5) / 16
        r = z[..., None] + torch.polar(torch.ones_like(angles), angles)
        exp = r.exp()
        return cls(
            whole=z.exp(),
            half=(z / 2).exp(),
            stage=dt * (((r / 2).exp() - 1) / r).real.mean(-1),
            first=dt * ((-4 - r + exp * (4 - 3 * r + r**2)) / r**3).real.mean(-1),
            middle=dt * (2 * (2 + r + exp * (r - 2)) / r**3).real.mean(-1),
            last=dt * ((-4 - 3 * r - r**2 + exp * (4 - r)) / r**3).real.mean(-1),
        )

    def step(self, v: Inexact[Tensor, "B *K"], nonlinear: Callable[[Tensor], Tensor]) -> Inexact[Tensor, "B *K"]:
        n_v = nonlinear(v)
        decayed = self.half * v
        a = decayed + self.stage * n_v
        n_a = nonlinear(a)
        b = decayed + self.stage * n_a
        n_b = nonlinear(b)
        c = self.half * a + self.stage * (2 * n_b - n_v)
        return self.whole * v + self.first * n_v + self.middle * (n_a + n_b) + self.last * nonlinear(c)
