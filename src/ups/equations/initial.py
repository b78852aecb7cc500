"""Initial states: the random waves of PDEBench's one-dimensional tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations.uniforms import uniforms

_WAVES = 4
_WINDOW_WIDTH = 0.01


@dataclass(frozen=True, eq=False)
class RandomWaves:
    """Sums of four sine waves on the periodic interval (0, 1), as functions: evaluate them at any x.

        u₀(x) = ± w(x) · |Σₖ Aₖ sin(2π k mₖ x + φₖ)|        k = 1 … 4, |·| and w each in one sample of ten

    Two wave numbers are drawn from {1, 2, 3, 4} with replacement and mₖ ∈ {0, 1, 2} says how often k came up; a wave
    that did not come up is a constant, so a sample has a large mean (57 % of the energy), and one drawn twice has
    doubled frequency. A ~ U(0, 1), φ ~ U(0, 2π). The window w = ½[tanh((x − x_L)/0.01) − tanh((x − x_R)/0.01)] makes a
    plateau with steep sides, x_L ~ U(0.1, 0.45), x_R ~ U(0.55, 0.9).

    The period is exactly the domain's length. The published files divide by the distance of the first and last cell
    centre instead, L − dx, which puts a small jump at x = 0 that depends on the resolution; here the same draw is the
    same function on every grid. Root mean square 0.790, standard deviation of the sample means 0.594, as published.
    """

    amplitude: Float[Tensor, "B 4"]
    wavenumber: Float[Tensor, "B 4"]
    phase: Float[Tensor, "B 4"]
    absolute: Bool[Tensor, " B"]
    sign: Float[Tensor, " B"]
    windowed: Bool[Tensor, " B"]
    left: Float[Tensor, " B"]
    right: Float[Tensor, " B"]

    @classmethod
    def draw(cls, seed: int, ids: Sequence[int], device: torch.device | str = "cpu") -> RandomWaves:
        """The functions of the given trajectories; each depends on (seed, trajectory index) alone."""
        draws = uniforms(seed, ids, 15).to(device)
        order = torch.arange(1, _WAVES + 1, dtype=torch.float64, device=device)
        chosen = (draws[:, 8:10] * _WAVES).floor() + 1
        multiplicity = (chosen[:, :, None] == order).sum(1)
        return cls(
            amplitude=draws[:, 0:4],
            wavenumber=2 * math.pi * order * multiplicity,
            phase=2 * math.pi * draws[:, 4:8],
            absolute=draws[:, 10] < 0.1,
            sign=torch.where(draws[:, 11] < 0.5, -1.0, 1.0).to(torch.float64),
            windowed=draws[:, 12] < 0.1,
            left=0.1 + 0.35 * draws[:, 13],
            right=0.55 + 0.35 * draws[:, 14],
        )

    def __len__(self) -> int:
        return len(self.sign)

    def __call__(self, x: Float[Tensor, "B n"] | Float[Tensor, " n"]) -> Float[Tensor, "B n"]:
        """Values at the positions x, which may lie outside (0, 1): the functions are periodic."""
        x = x - x.floor()  # the window is written for (0, 1); the waves do not mind
        if x.dim() == 1:
            x = x[None]
        u = torch.zeros(len(self), x.shape[-1], dtype=torch.float64, device=x.device)
        for k in range(_WAVES):
            angle = self.wavenumber[:, k, None] * x + self.phase[:, k, None]
            u = u + self.amplitude[:, k, None] * angle.sin()
        u = self.sign[:, None] * torch.where(self.absolute[:, None], u.abs(), u)
        rise = ((x - self.left[:, None]) / _WINDOW_WIDTH).tanh()
        fall = ((x - self.right[:, None]) / _WINDOW_WIDTH).tanh()
        return torch.where(self.windowed[:, None], u * (rise - fall) / 2, u)
