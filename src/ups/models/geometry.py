"""Where a task's latent points lie, and the tables that follow from it.

The latent spacing belongs to the task: an input on another grid is brought to the task's own points first (a finer one
averaged over cells, a coarser one interpolated), so the operator always meets the spacing it was trained on. Tables
depend on positions alone, are made in float64 once per grid and kept by the model's `Geometries`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import AXES, Boundary, Grid
from ups.models.bases import cell_widths
from ups.models.interpolation import apply_along, axis_matrix


@dataclass(frozen=True, eq=False)
class Frame:
    """A task's own grid: the one its model was trained on, its boundary, and how many points a latent cell holds."""

    grid: Grid
    boundary: Boundary
    patch: int

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return tuple(n // self.patch for n in self.grid.shape)

    @property
    def latent(self) -> Grid:
        """The middles of the latent cells."""
        return Grid(tuple(p.reshape(-1, self.patch).mean(1) for p in self.grid.positions), self.grid.extent)

    def modes(self, most: int) -> tuple[int, ...]:
        """Modes kept along each axis: `most`, or what the latent points resolve."""
        return tuple(min(most, max(1, n // 2)) for n in self.latent_shape)

    def local(self, most: int) -> tuple[bool, ...]:
        """Which axes need neighbours: all but the periodic ones whose every mode is kept."""
        return tuple(
            not wraps or kept < n // 2
            for wraps, kept, n in zip(self.boundary.periodic, self.modes(most), self.latent_shape, strict=True)
        )

    def __post_init__(self) -> None:
        for axis, n in enumerate(self.grid.shape):
            if n % self.patch:
                raise UserError(
                    f"{n} points along {AXES[axis]} do not divide into latent cells of {self.patch}; change them, "
                    "or the task's latent_spacing so that a whole number of points fits into it"
                )


def resampling(
    source: Float[Tensor, " n"],
    target: Float[Tensor, " m"],
    extent: tuple[float, float],
    periodic: bool,
    order: int = 1,
) -> Float[Tensor, "m n"]:
    """Bring an axis to other positions: overlap averages where the source is finer, interpolation elsewhere."""
    if len(source) <= len(target):
        return axis_matrix(source, extent, periodic, target, order)
    length = extent[1] - extent[0]
    wide = cell_widths(target, extent, periodic)
    narrow = cell_widths(source, extent, periodic)
    images = (-length, 0.0, length) if periodic else (0.0,)
    left_t, left_s = _left_edges(target, extent, periodic), _left_edges(source, extent, periodic)
    overlap = torch.zeros(len(target), len(source), dtype=target.dtype)
    for shift in images:
        low = torch.maximum(left_t[:, None], left_s[None] + shift)
        high = torch.minimum((left_t + wide)[:, None], (left_s + narrow)[None] + shift)
        overlap += (high - low).clamp_min(0)
    return overlap / wide[:, None]


def moved(
    values: Float[Tensor, "B *space C"], source: Grid, target: Grid, periodic: Sequence[bool]
) -> Float[Tensor, "B *target C"]:
    """Fields on another grid: averaged where theirs is finer, by cubics where it is coarser."""
    for axis, wraps in enumerate(periodic):
        span = source.extent[axis]
        matrix = resampling(source.positions[axis], target.positions[axis], span, wraps, 3)
        values = apply_along(matrix.to(values), values, axis)
    return values


def _left_edges(positions: Tensor, extent: tuple[float, float], periodic: bool) -> Tensor:
    widths = cell_widths(positions, extent, periodic)
    middles = (positions[1:] + positions[:-1]) / 2
    first = middles[:1] - widths[:1] if len(middles) else positions.new_tensor([extent[0]])
    return torch.cat([first, middles])


Tables = Callable[[Frame, Callable[[Tensor], Tensor]], Any]
"""An architecture's tables for a frame; its second argument brings one to the device."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """Tables for one frame and one input grid; `tables` are those that the architecture's blocks look up."""

    frame: Frame
    latent: Grid
    tables: Any
    resample: tuple[Tensor, ...] | None
    decode: tuple[Tensor, ...]
    offsets: Tensor
    walls: Tensor
    wall_factor: Tensor | None

    @classmethod
    def build(cls, frame: Frame, grid: Grid, tables: Tables, device: torch.device, dtype: torch.dtype) -> Geometry:
        if grid.extent != frame.grid.extent:
            raise UserError(f"the grid spans {grid.extent}, but the task was trained on {frame.grid.extent}")
        own, latent, periodic = frame.grid, frame.latent, frame.boundary.periodic

        def put(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype)

        return cls(
            frame=frame,
            latent=latent,
            tables=tables(frame, put),
            resample=None
            if grid.same_as(own)
            else tuple(
                put(resampling(s, t, span, wraps))
                for s, t, span, wraps in zip(grid.positions, own.positions, own.extent, periodic, strict=True)
            ),
            decode=tuple(
                put(axis_matrix(p, span, wraps, q, 1))
                for p, span, wraps, q in zip(latent.positions, latent.extent, periodic, grid.positions, strict=True)
            ),
            offsets=put(cell_offsets(latent, grid.points())).reshape(*grid.shape, -1),
            walls=put(wall_distances(own, frame.boundary)),
            wall_factor=_placed(wall_factor(frame.boundary, own.extent, grid.points()), grid, put),
        )


def _placed(factor: Tensor | None, grid: Grid, put: Any) -> Tensor | None:
    return None if factor is None else put(factor).reshape(*grid.shape, 1)


def cell_offsets(latent: Grid, query: Float[Tensor, "P dim"]) -> Float[Tensor, "P features"]:
    """Fourier features of the position within a latent cell; all zero on a latent point."""
    columns = []
    for axis in range(latent.dimension):
        positions = latent.positions[axis].to(query)
        phase = 2 * torch.pi * (query[:, axis] - positions[0]) / latent.spacing[axis]
        for k in (1, 2):
            columns += [torch.sin(k * phase), torch.cos(k * phase) - 1]
    return torch.stack(columns, -1)


def wall_distances(grid: Grid, boundary: Boundary) -> Float[Tensor, "*space walls"]:
    """Distance to either wall over the length, for bounded axes only: the stem's view of the domain's shape."""
    coordinates = torch.meshgrid(*grid.positions, indexing="ij")
    columns = []
    for axis, (span, wraps) in enumerate(zip(grid.extent, boundary.periodic, strict=True)):
        if not wraps:
            s = (coordinates[axis] - span[0]) / (span[1] - span[0])
            columns += [s, 1 - s]
    return torch.stack(columns, -1) if columns else torch.zeros(*grid.shape, 0, dtype=torch.float64)


def wall_factor(
    boundary: Boundary, extent: tuple[tuple[float, float], ...], query: Float[Tensor, "P dim"]
) -> Float[Tensor, " P"] | None:
    """Vanishes on walls with a prescribed value, so that an increment never moves the boundary value."""
    factor: Tensor | None = None
    for axis, (lower, upper) in enumerate(boundary.sides):
        s = (query[:, axis] - extent[axis][0]) / (extent[axis][1] - extent[axis][0])
        for side, distance in ((lower, s), (upper, 1 - s)):
            if side.kind == "value":
                factor = 2 * distance if factor is None else factor * 2 * distance
    return factor
