"""Where the points of an axis lie and what holds on its sides, found in the fields where nobody says it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.formats.arrays.axes import CLOSES, seam
from ups.data.formats.hdf5 import axis_positions
from ups.errors import UserError
from ups.fields import Grid, Side

GIVEN, FOUND, ASSUMED = "given", "found in the data", "assumed"
SAME = 1e-6
"""Of a field's size: values no further apart are the same."""


@dataclass(frozen=True, eq=False)
class FoundAxis:
    """`kept` points, fewer than there are where the last one repeats the first; `how` the sides are known."""

    positions: Float[Tensor, " n"]
    extent: tuple[float, float]
    sides: tuple[Side, Side]
    how: str
    kept: int
    notes: tuple[str, ...] = ()


def found_axis(
    along: Float[np.ndarray, "n *others C"],
    name: str,
    coordinate: Float[np.ndarray, " n"] | None,
    span: tuple[float, float],
    told: tuple[Side, Side] | None,
) -> FoundAxis:
    """The axis along which the first axis of `along`, fields of some trajectories, lies. `span` is the domain's, where
    there is no coordinate.
    """
    n, notes = len(along), []
    if n < 2:
        raise UserError(f"there is {n} point along {name}; give two or more, or drop the axis")
    repeats = (told is None or told[0].kind == "periodic") and _repeats(along)
    if repeats:
        notes.append(f"the last point along {name} repeats the first: it is left out")
        along = along[:-1]
    sides, how = _found_sides(along) if told is None else (told, GIVEN)
    periodic = sides[0].kind == "periodic"
    if told is not None and periodic and (jump := seam(along, 0)) > 2 * CLOSES:
        notes.append(
            f"boundary says that {name} is periodic, but the data jump there: {jump:.0f} times as much as between "
            "neighbours; if there are walls, say so"
        )
    if coordinate is not None:
        positions, extent = _at(coordinate, n, name, repeats, periodic)
    elif periodic:
        positions, extent = Grid.nodal((len(along),), (span,)).positions[0], span
    elif all(_still(end, along) for end in (along[0], along[-1])):  # points on the walls
        positions, extent = torch.linspace(*span, n, dtype=torch.float64), span
    else:
        positions, extent = Grid.cell_centred((n,), (span,)).positions[0], span
    return FoundAxis(positions, extent, sides, how, len(along), tuple(notes))


def _at(
    coordinate: np.ndarray, n: int, name: str, repeats: bool, periodic: bool
) -> tuple[Float[Tensor, " n"], tuple[float, float]]:
    if coordinate.shape != (n,) or not np.isfinite(coordinate).all() or not (np.diff(coordinate) > 0).all():
        raise UserError(f"coordinate {name!r} has the shape {coordinate.shape}; give {n} increasing positions")
    return axis_positions(coordinate[: n - repeats], periodic)


def _repeats(along: Float[np.ndarray, "n *others C"]) -> bool:
    """Whether the last point is the first again, which solvers on closed intervals store."""
    if len(along) < 6 or _still(along[0], along):
        return False
    same = float(np.abs(along[0] - along[-1]).max()) <= SAME * float(np.abs(along).max())
    return same and seam(along[:-1], 0) < CLOSES


def _found_sides(along: Float[np.ndarray, "n *others C"]) -> tuple[tuple[Side, Side], str]:
    ends = along[0], along[-1]
    if all(_still(end, along) for end in ends):
        lower, upper = (_prescribed(end, along) for end in ends)
        return (lower, upper), f"{FOUND}: both ends never move"
    if seam(along, 0) < CLOSES:
        side = Side("periodic")
        return (side, side), f"{FOUND}: they close on themselves"
    curved = _rms(
        np.diff(along, 2, axis=0)
    )  # mirrored at a wall without a gradient, the field bends no more than inside
    if max(_rms(along[1] - along[0]), _rms(along[-1] - along[-2])) < CLOSES * curved:
        side = Side("flux")
        return (side, side), f"{FOUND}: flat at both ends"
    side = Side("open")
    return (side, side), f"{ASSUMED}: not periodic; give boundary if these are walls"


def _still(end: Float[np.ndarray, "*others C"], along: np.ndarray) -> bool:
    """Whether every channel keeps one value at an end, at all times and in all trajectories."""
    flat, sizes = end.reshape(-1, end.shape[-1]), np.abs(along).reshape(-1, along.shape[-1]).max(0)
    return bool((np.ptp(flat, axis=0) <= SAME * sizes).all())


def _prescribed(end: Float[np.ndarray, "*others C"], along: np.ndarray) -> Side:
    sizes = np.abs(along).reshape(-1, along.shape[-1]).max(0)
    means = end.reshape(-1, end.shape[-1]).mean(0)
    values = np.where(np.abs(means) <= SAME * sizes, 0.0, means)
    return Side("value", tuple(map(float, values)) if values.any() else ())


def _rms(values: Float[np.ndarray, "..."]) -> float:
    return float(np.sqrt(np.square(values).mean()))
