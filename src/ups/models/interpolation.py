"""Lagrange interpolation along axes: linear for latent features, cubic for fields; exact at the points themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.fields import Grid


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


def apply_along(matrix: Float[Tensor, "q n"], values: Float[Tensor, "B *space D"], axis: int) -> Tensor:
    """Multiply along spatial axis `axis` (0 is the first after the batch); channels stay last."""
    if axis == values.dim() - 3:
        return matrix @ values
    head = values.shape[: axis + 1]
    flat = values.reshape(*head, values.shape[axis + 1], -1)
    return (matrix @ flat).reshape(*head, matrix.shape[0], *values.shape[axis + 2 :])


def interpolate(
    values: Float[Tensor, "B *space D"],
    grid: Grid,
    periodic: Sequence[bool],
    query: Float[Tensor, "P dim"],
    order: int,
) -> Float[Tensor, "B P D"]:
    """Values at scattered points: the tensor product of the axis interpolations."""
    flat = values.reshape(values.shape[0], -1, values.shape[-1])
    index: Tensor | None = None
    weights: Tensor | None = None
    for axis in range(grid.dimension):
        positions = grid.positions[axis].to(query.device)
        i, w = axis_weights(positions, grid.extent[axis], periodic[axis], query[:, axis].to(positions.dtype), order)
        if index is None or weights is None:
            index, weights = i, w
        else:
            index = (index[:, :, None] * len(positions) + i[:, None, :]).flatten(1)
            weights = (weights[:, :, None] * w[:, None, :]).flatten(1)
    assert index is not None and weights is not None
    gathered = flat[:, index]
    return (gathered * weights.to(values.dtype)[None, :, :, None]).sum(2)
