"""Weights of interpolation along one axis, of space or of time: Lagrange polynomials through neighbouring points."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def axis_weights(
    positions: Float[Tensor, " n"], extent: tuple[float, float], periodic: bool, query: Float[Tensor, " q"], order: int
) -> tuple[Int[Tensor, "q taps"], Float[Tensor, "q taps"]]:
    """Indices and weights of the `order + 1` neighbours of each query coordinate.

    A periodic axis wraps; on a bounded one the stencil is shifted inwards, so points between the outermost grid point
    and the wall are extrapolated with the same polynomial.
    """
    n, length = len(positions), extent[1] - extent[0]
    taps = min(order, n - 1) + 1
    if periodic:
        query = positions[0] + torch.remainder(query - positions[0], length)
    left = torch.searchsorted(positions, query.contiguous(), right=True) - 1
    first = left - (taps - 2) // 2 if taps > 1 else left
    if not periodic:
        first = first.clamp(0, n - taps)
    raw = first[:, None] + torch.arange(taps, device=positions.device)
    index = torch.remainder(raw, n)
    nodes = positions[index] + torch.div(raw, n, rounding_mode="floor") * length
    weights = torch.ones_like(nodes)
    for j in range(taps):
        for m in range(taps):
            if m != j:
                weights[:, j] = weights[:, j] * (query - nodes[:, m]) / (nodes[:, j] - nodes[:, m])
    return index, weights


def axis_matrix(
    positions: Float[Tensor, " n"], extent: tuple[float, float], periodic: bool, query: Float[Tensor, " q"], order: int
) -> Float[Tensor, "q n"]:
    """The same interpolation as a dense matrix, for whole grids."""
    index, weights = axis_weights(positions, extent, periodic, query, order)
    matrix = torch.zeros(len(query), len(positions), dtype=positions.dtype, device=positions.device)
    return matrix.scatter_add_(1, index, weights)
