"""Interpolation along axes, exact at the points themselves: linear for latent features, cubic for fields.

A smooth field without errors is brought to another grid better by waves, or by the least squares of cubics, than by
cubics through its points. A prediction is not: its error at the shortest waves would reach the points between in full,
where cubics damp it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.interpolation import axis_matrix, axis_weights
from ups.fields import Grid


def apply_along(matrix: Float[Tensor, "q n"], values: Float[Tensor, "B *space D"], axis: int) -> Tensor:
    """Multiply along spatial axis `axis` (0 is the first after the batch); channels stay last."""
    if axis == values.dim() - 3:
        return matrix @ values
    head = values.shape[: axis + 1]
    flat = values.reshape(*head, values.shape[axis + 1], -1)
    return (matrix @ flat).reshape(*head, matrix.shape[0], *values.shape[axis + 2 :])


def bringing_matrix(
    positions: Float[Tensor, " n"], extent: tuple[float, float], periodic: bool, target: Float[Tensor, " m"]
) -> Float[Tensor, "m n"]:
    """A field given at `positions`, at the points of another grid: what both resolve is the same on both.

    By waves from a uniform periodic axis; else by cubics, in least squares where that grid holds less than is given.
    """
    length = extent[1] - extent[0]
    if periodic and torch.allclose(positions.diff(), positions.new_tensor(length / len(positions))):
        return wave_matrix(positions, length, target)
    if len(target) < len(positions):
        seen = math.sqrt(len(positions) / len(target))  # how much of a smooth field is; what hardly is, is left out
        return torch.linalg.pinv(axis_matrix(target, extent, periodic, positions, 3), atol=0.3 * seen, rtol=0.0)
    return axis_matrix(positions, extent, periodic, target, 3)


def wave_matrix(positions: Float[Tensor, " n"], length: float, target: Float[Tensor, " m"]) -> Float[Tensor, "m n"]:
    """From a uniform grid of a periodic axis to another grid: exact for waves that both resolve, without any others.

    1/n Σ_k cos 2πk(y − x)/L over those, positive and negative; of an even number of points the last one counts half.
    """
    few = min(len(positions), len(target))
    k = torch.arange(1, few // 2 + 1, dtype=positions.dtype)
    size = torch.where(2 * k == few, 1.0, 2.0)
    angles = (2 * math.pi / length) * k * (target[:, None, None] - positions[:, None])
    return (1 + (size * torch.cos(angles)).sum(-1)) / len(positions)


cubic_matrix = partial(axis_matrix, order=3)


Walls = Mapping[tuple[int, int], Float[Tensor, " C"]]
"""What is prescribed on the lower (0) or upper (1) wall of an axis, by (axis, side); NaN for channels free there."""


def reader(
    source: Grid,
    periodic: Sequence[bool],
    target: Grid | Float[Tensor, "P dim"],
    walls: Walls,
    like: Tensor,
    along: Callable[..., Float[Tensor, "m n"]] = cubic_matrix,
) -> Callable[[Float[Tensor, "B *space C"]], Tensor]:
    """From a grid to another one (B, *target, C), or by cubics to scattered points (B, P, C), with tables made once.

    Where a wall with a prescribed value has no point of the grid, it is made one: cubics then end there with that value
    instead of being extrapolated. For a channel that is free there it holds the extrapolated value, which changes none.
    """
    if isinstance(target, Grid) and target.same_as(source):
        return lambda values: values
    positions, ends = list(source.positions), []
    for (axis, side), prescribed in walls.items():
        place = positions[axis].new_tensor([source.extent[axis][side]])
        if (source.positions[axis] - place).abs().min() > 1e-6 * source.spacing[axis]:
            row = axis_matrix(source.positions[axis], source.extent[axis], False, place, 3)
            positions[axis] = torch.cat([place, positions[axis]] if side == 0 else [positions[axis], place])
            ends.append((axis, side, row.to(like), prescribed.to(like)))
    grid = Grid(tuple(positions), source.extent)

    def with_walls(values: Tensor) -> Tensor:
        inner = {axis: values.shape[axis + 1] for axis, *_ in ends}
        for axis, side, row, prescribed in ends:
            # A lower wall that was added before is not among the points that the row is of.
            own = values.narrow(axis + 1, values.shape[axis + 1] - inner[axis], inner[axis])
            wall = torch.where(prescribed.isfinite(), prescribed, apply_along(row, own, axis))
            values = torch.cat([wall, values] if side == 0 else [values, wall], axis + 1)
        return values

    if isinstance(target, Grid):
        spans = zip(grid.positions, grid.extent, periodic, target.positions, strict=True)
        matrices = [along(*axis).to(like) for axis in spans]

        def to_grid(values: Tensor) -> Tensor:
            values = with_walls(values)
            for axis, matrix in enumerate(matrices):
                values = apply_along(matrix, values, axis)
            return values

        return to_grid
    index, weights = _stencils(grid, periodic, target)
    index, weights = index.to(like.device), weights.to(like)

    def to_points(values: Tensor) -> Tensor:
        return (with_walls(values).flatten(1, -2)[:, index] * weights[:, :, None]).sum(2)

    return to_points


def on_grid(
    values: Float[Tensor, "N T *space C"], target: Grid, periodic: Sequence[bool]
) -> Float[Tensor, "N T *target C"]:
    """Frames at the centres of other cells of the domain by cubics on a grid, whatever is prescribed on walls."""
    source = Grid.cell_centred(values.shape[2:-1], target.extent)
    return reader(source, periodic, target, {}, values)(values.flatten(0, 1)).unflatten(0, values.shape[:2])


def _stencils(
    grid: Grid, periodic: Sequence[bool], query: Float[Tensor, "P dim"]
) -> tuple[Int[Tensor, "P taps"], Float[Tensor, "P taps"]]:
    """The points around each scattered one, numbered row by row, and their weights: products of those of the axes."""
    index = torch.zeros(len(query), 1, dtype=torch.long)
    weights = torch.ones(len(query), 1, dtype=torch.float64)
    for axis, positions in enumerate(grid.positions):
        i, w = axis_weights(positions, grid.extent[axis], periodic[axis], query[:, axis].to(positions), 3)
        index = (index[:, :, None] * len(positions) + i[:, None, :]).flatten(1)
        weights = (weights[:, :, None] * w[:, None, :]).flatten(1)
    return index, weights
