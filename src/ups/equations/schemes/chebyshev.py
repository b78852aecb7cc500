"""Functions of a large symmetric operator applied to fields: exact in time, whatever the coefficients in space."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

_ROUNDING = 1e-14


def coefficients(function: Callable[[Tensor], Tensor], largest: float) -> Float[Tensor, " K"]:
    """Of the Chebyshev series of `function` on [0, largest], to rounding: entire functions need finitely many.

    cos(t√λ) needs about t√largest/2 terms, as many as leapfrog needs steps to be stable; exp(−tλ) about
    6 √(t largest), far fewer than the t largest/2 of Euler's method.
    """
    terms = 64
    while True:
        angle = (torch.arange(terms, dtype=torch.float64) + 0.5) * (math.pi / terms)
        values = function(largest * (1 + angle.cos()) / 2)
        spectrum = torch.fft.rfft(torch.cat((values, values.flip(0))))[:terms]
        order = torch.arange(terms, dtype=torch.float64)
        series = (spectrum * torch.polar(torch.ones_like(order), -order * math.pi / (2 * terms))).real / terms
        series[0] /= 2
        needed = (series.abs() > _ROUNDING * values.abs().max()).nonzero()
        last = int(needed[-1]) + 1 if len(needed) else 1
        if last < 0.9 * terms:
            return series[:last]
        terms *= 2


def apply(
    series: Float[Tensor, "_"], operator: Callable[[Tensor], Tensor], largest: float, v: Float[Tensor, "*any"]
) -> Float[Tensor, "*any"]:
    """f(A) v for the f of `series`, where A = `operator` has its eigenvalues in [0, largest].

    The polynomials follow T₊ = 2 S T − T₋ with S = 2A/largest − 1, so each costs one application of A.
    """
    row = series.tolist()
    before, now = v, operator(v) * (2 / largest) - v
    total = row[0] * before + (row[1] if len(row) > 1 else 0.0) * now
    for coefficient in row[2:]:
        before, now = now, operator(now).mul_(4 / largest).sub_(now, alpha=2).sub_(before)
        total.add_(now, alpha=coefficient)
    return total
