"""Where a task's latent points lie, the tables that follow from it, and how fields on other grids are brought there.

A model is right on the grid it was trained on and on no other. Tables depend on positions alone, are made in float64
once per task and kept by the model.
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
from ups.models.bases import basis, cell_widths
from ups.models.interpolation import apply_along, axis_matrix


@dataclass(frozen=True, eq=False)
class Frame:
    """A task's own grid: the one its model was trained on, its boundary, and a latent cell's points along each axis."""

    grid: Grid
    boundary: Boundary
    patch: tuple[int, ...]

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return tuple(n // points for n, points in zip(self.grid.shape, self.patch, strict=True))

    @property
    def latent(self) -> Grid:
        """The middles of the latent cells."""
        axes = zip(self.grid.positions, self.patch, strict=True)
        return Grid(tuple(p.reshape(-1, points).mean(1) for p, points in axes), self.grid.extent)

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
        for axis, (n, points) in enumerate(zip(self.grid.shape, self.patch, strict=True)):
            if n % points:
                raise UserError(
                    f"{n} points along {AXES[axis]} do not divide into latent cells of {points}; change them, "
                    "or the task's latent_spacing so that a whole number of points fits into it"
                )


def resampling(
    source: Float[Tensor, " n"], target: Float[Tensor, " m"], extent: tuple[float, float], periodic: bool
) -> Float[Tensor, "m n"]:
    """Bring an axis to other positions by linear interpolation there, or, of a finer axis, at as many places of each
    cell as it has more points, and averaged. No value leaves the range: towards walls the outermost is repeated.
    """
    parts = -(-len(source) // len(target))
    places = target[:, None]
    if parts > 1:
        shares = (torch.arange(parts, dtype=target.dtype) + 0.5) / parts
        widths = cell_widths(target, extent, periodic)[:, None]
        places = _left_edges(target, extent, periodic)[:, None] + widths * shares
    if not periodic:
        places = places.clamp(float(source[0]), float(source[-1]))
    return axis_matrix(source, extent, periodic, places.flatten(), 1).unflatten(0, (-1, parts)).mean(1)


def averaged(
    values: Float[Tensor, "B *space S"], source: Grid, target: Grid, periodic: Sequence[bool]
) -> Float[Tensor, "B *target S"]:
    """Static fields on another grid: they may jump, and a coefficient must not leave its range."""
    for axis, wraps in enumerate(periodic):
        matrix = resampling(source.positions[axis], target.positions[axis], source.extent[axis], wraps)
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
    """Tables for one frame; `tables` are those that the architecture's blocks look up, `waves` those of positions."""

    frame: Frame
    tables: Any
    waves: tuple[Tensor, ...]
    decode: tuple[Tensor, ...]
    offsets: Tensor
    walls: Tensor
    wall_factor: Tensor | None

    @classmethod
    def build(
        cls, frame: Frame, tables: Tables, device: torch.device, dtype: torch.dtype, position_modes: int
    ) -> Geometry:
        own, latent, periodic = frame.grid, frame.latent, frame.boundary.periodic

        def put(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype)

        factor = wall_factor(frame.boundary, own)
        return cls(
            frame=frame,
            tables=tables(frame, put),
            waves=tuple(put(table) for table in position_waves(frame, position_modes)),
            decode=tuple(
                put(axis_matrix(p, span, wraps, q, 1))
                for p, span, wraps, q in zip(latent.positions, latent.extent, periodic, own.positions, strict=True)
            ),
            offsets=put(cell_offsets(latent, own)),
            walls=put(wall_distances(own, frame.boundary)),
            wall_factor=None if factor is None else put(factor),
        )


def position_waves(frame: Frame, most: int) -> tuple[Float[Tensor, "_ _"], ...]:
    """The lowest waves of each axis at its latent points, (n, F): 1, cos θ, sin θ, … around, 1, cos θ, … between walls.

    None where all axes have walls, whose distances tell where a point lies.
    """
    latent, periodic = frame.latent, frame.boundary.periodic
    if most == 0 or not any(periodic):
        return ()
    axes = zip(latent.positions, latent.extent, periodic, frame.modes(most), strict=True)
    rows = [basis(*axis) for axis in axes]
    rows = [
        torch.cat([own[:1], own[2:]]) if wraps else own[::2]  # mode 0 has no sine
        for own, wraps in zip(rows, periodic, strict=True)
    ]
    return tuple(own.T.contiguous() for own in rows)


def cell_offsets(latent: Grid, grid: Grid) -> Float[Tensor, "*space features"]:
    """Fourier features of each point's position within its latent cell; all zero on a latent point."""
    coordinates, columns = torch.meshgrid(*grid.positions, indexing="ij"), []
    for axis, x in enumerate(coordinates):
        phase = 2 * torch.pi * (x - latent.positions[axis][0]) / latent.spacing[axis]
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


def wall_factor(boundary: Boundary, grid: Grid) -> Float[Tensor, "*space one"] | None:
    """Vanishes on walls with a prescribed value, so that an increment never moves the boundary value."""
    factor: Tensor | None = None
    coordinates = torch.meshgrid(*grid.positions, indexing="ij")
    for x, span, (lower, upper) in zip(coordinates, grid.extent, boundary.sides, strict=True):
        s = (x - span[0]) / (span[1] - span[0])
        for side, distance in ((lower, s), (upper, 1 - s)):
            if side.kind == "value":
                factor = 2 * distance if factor is None else factor * 2 * distance
    return None if factor is None else factor[..., None]
