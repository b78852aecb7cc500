"""Batches of tridiagonal systems, solved by cyclic reduction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, eq=False)
class Tridiagonal:
    """Matrices lowerᵢ xᵢ₋₁ + diagonalᵢ xᵢ + upperᵢ xᵢ₊₁ with their elimination done, to be solved for many right sides.

    Every other unknown is eliminated until one is left: log₂ n sweeps over the whole batch, where Gauss' elimination
    would take n steps one after the other. It does not pivot, so it is for matrices whose diagonal dominates.
    lower₀ and upperₙ₋₁ must be 0.
    """

    levels: tuple[_Level, ...]
    last: Float[Tensor, "B 1"]

    @classmethod
    def factor(
        cls, lower: Float[Tensor, "B X"], diagonal: Float[Tensor, "B X"], upper: Float[Tensor, "B X"]
    ) -> Tridiagonal:
        levels = []
        while (n := diagonal.shape[-1]) > 1:
            if n % 2 == 0:  # one row more, x = 0, so that every row to be kept has two neighbours
                lower, upper, diagonal = pad(lower, (0, 1)), pad(upper, (0, 1)), pad(diagonal, (0, 1), value=1.0)
            a, b, c = lower[..., ::2], diagonal[..., ::2], upper[..., ::2]
            before, after = lower[..., 1::2] / b[..., :-1], upper[..., 1::2] / b[..., 1:]
            levels.append(_Level(n, before, after, a, b, c))
            diagonal = diagonal[..., 1::2] - before * c[..., :-1] - after * a[..., 1:]
            lower, upper = -before * a[..., :-1], -after * c[..., 1:]
        return cls(tuple(levels), diagonal)

    def solve(self, right: Float[Tensor, "B X"]) -> Float[Tensor, "B X"]:
        eliminated = []
        for level in self.levels:
            right = pad(right, (0, 1)) if level.size % 2 == 0 else right
            kept = right[..., ::2]
            eliminated.append(kept)
            right = right[..., 1::2] - level.before * kept[..., :-1] - level.after * kept[..., 1:]
        x = right / self.last
        for level, kept in zip(reversed(self.levels), reversed(eliminated), strict=True):
            whole = torch.empty(*kept.shape[:-1], 2 * kept.shape[-1] - 1, dtype=x.dtype, device=x.device)
            whole[..., 1::2] = x
            whole[..., ::2] = (kept - level.lower * pad(x, (1, 0)) - level.upper * pad(x, (0, 1))) / level.diagonal
            x = whole[..., : level.size]
        return x


@dataclass(frozen=True, eq=False)
class _Level:
    """One sweep: the multiples of its neighbours taken from each row kept, and the rows eliminated."""

    size: int
    before: Tensor
    after: Tensor
    lower: Tensor
    diagonal: Tensor
    upper: Tensor
