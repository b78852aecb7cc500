"""Truncated real bases along one axis, as matrices.

A periodic axis uses cos kθ, sin kθ with θ = 2π(x − x₀)/L; a bounded axis uses the half waves cos kθ, sin (k+1)θ with
θ = π(x − x₀)/L. Matrices beat the FFT at these sizes (up to about 512 points), need no complex numbers, and take any
point positions, so the same weights serve any resolution.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def cell_widths(positions: Float[Tensor, " n"], extent: tuple[float, float], periodic: bool) -> Float[Tensor, " n"]:
    """Quadrature weights: the part of the axis nearer to a point than to any other (their sum is the length L)."""
    lower, upper = extent
    middles = (positions[1:] + positions[:-1]) / 2
    if periodic:
        seam = (positions[-1:] - (upper - lower) + positions[:1]) / 2
        edges = torch.cat([seam, middles, seam + (upper - lower)])
    else:
        edges = torch.cat([positions.new_tensor([lower]), middles, positions.new_tensor([upper])])
    return edges[1:] - edges[:-1]


def basis(
    positions: Float[Tensor, " n"], extent: tuple[float, float], periodic: bool, modes: int
) -> Float[Tensor, "two_modes n"]:
    """Rows: a cosine and a sine for each mode (periodic: k = 0 …; bounded: cosines k = 0 …, sines k = 1 …)."""
    lower, upper = extent
    theta = (2 if periodic else 1) * math.pi * (positions - lower) / (upper - lower)
    k = torch.arange(modes, dtype=positions.dtype, device=positions.device)
    cosines, sines = torch.cos(k[:, None] * theta), torch.sin((k if periodic else k + 1)[:, None] * theta)
    return torch.stack([cosines, sines], 1).flatten(0, 1)


def transforms(
    positions: Float[Tensor, " n"], extent: tuple[float, float], periodic: bool, modes: int
) -> tuple[Float[Tensor, "two_modes n"], Float[Tensor, "n two_modes"]]:
    """(analysis, synthesis): coefficients c = A u and the truncated field S c, with S A u = u for band-limited u.

    On a bounded axis the half-wave cosines and sines are each complete, so both together are a frame: the coefficients
    are those of either family, and synthesis adds two expansions (the operator mixes them).
    """
    rows = basis(positions, extent, periodic, modes)
    analysis = rows * (2 / (extent[1] - extent[0])) * cell_widths(positions, extent, periodic)
    analysis[0] = analysis[0] / 2
    return analysis, rows.T.contiguous()
