"""Batches of tridiagonal systems, solved by cyclic reduction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tridiagonal:
    """Matrices lowerᵢ xᵢ₋₁ + diagonalᵢ xᵢ + upperᵢ xᵢ₊₁ with their elimination done, to be solved for many right sides.

    Every other unknown is eliminated until one is left: log₂ n sweeps over the whole batch, where Gauss' elimination
    would take n steps one after the other. It does not pivot, so it is for matrices whose diagonal dominates.
    lower₀ and upperₙ₋₁ must be 0. Inside, a system is a column, so that every other row is contiguous memory.
    """

    levels: tuple[_Level, ...]
    last: Float[Tensor, "1 B"]

    @classmethod
    def factor(
        cls, lower: Float[Tensor, "B X"], diagonal: Float[Tensor, "B X"], upper: Float[Tensor, "B X"]
    ) -> Tridiagonal:
        lower, diagonal, upper = (entries.T.contiguous() for entries in (lower, diagonal, upper))
        levels = []
        while (n := len(diagonal)) > 1:
            if n % 2 == 0:  # one row more, x = 0, so that every row to be kept has two neighbours
                lower, diagonal, upper = _longer(lower, 0.0), _longer(diagonal, 1.0), _longer(upper, 0.0)
            a, b, c = lower[::2], diagonal[::2], upper[::2]
            before, after = lower[1::2] / b[:-1], upper[1::2] / b[1:]
            levels.append(_Level(n, before, after, a, b, c))
            diagonal = diagonal[1::2] - before * c[:-1] - after * a[1:]
            lower, upper = -before * a[:-1], -after * c[1:]
        return cls(tuple(levels), diagonal)

    def solve(self, right: Float[Tensor, "B X"]) -> Float[Tensor, "B X"]:
        right = right.T.contiguous()
        eliminated = []
        for level in self.levels:
            right = _longer(right, 0.0) if level.size % 2 == 0 else right
            rows = right[::2]
            eliminated.append(rows)
            right = right[1::2] - level.before * rows[:-1] - level.after * rows[1:]
        x = right / self.last
        for level, rows in zip(reversed(self.levels), reversed(eliminated), strict=True):
            rest = rows.clone()
            rest[1:] -= level.lower[1:] * x
            rest[:-1] -= level.upper[:-1] * x
            whole = rows.new_empty(2 * len(rows) - 1, rows.shape[1])
            whole[1::2] = x
            whole[::2] = rest / level.diagonal
            x = whole[: level.size]
        return x.T.contiguous()


def _longer(rows: Float[Tensor, "X B"], value: float) -> Float[Tensor, "X+1 B"]:
    return torch.cat((rows, rows.new_full((1, rows.shape[1]), value)))


@dataclass(frozen=True, eq=False)
class _Level:
    """One sweep: the multiples of its neighbours taken from each row kept, and the rows eliminated."""

    size: int
    before: Tensor
    after: Tensor
    lower: Tensor
    diagonal: Tensor
    upper: Tensor
