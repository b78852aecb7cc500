"""Where a start lies that does not say it, and the points that a rollout is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ups.errors import UserError
from ups.fields import AXES, Grid


def grid_like(own: Grid, shape: Sequence[int]) -> Grid:
    """A grid of another resolution with the same domain and the same place of points in their cells."""
    if tuple(shape) == own.shape:
        return own
    lower = [span[0] for span in own.extent]
    offset = [float(p[0] - a) / h for p, a, h in zip(own.positions, lower, own.spacing, strict=True)]
    positions = tuple(
        a + (torch.arange(n, dtype=torch.float64) + o) * (length / n)
        for a, n, o, length in zip(lower, shape, offset, own.lengths, strict=True)
    )
    return Grid(positions, own.extent)


def query_points(
    at: Shaped[Tensor, "..."] | Shaped[np.ndarray, "..."] | Sequence[Any], grid: Grid, name: str = "at"
) -> Float[Tensor, "P dim"]:
    points = torch.as_tensor(at).double().cpu()
    if points.dim() == 1 and grid.dimension == 1:
        points = points[:, None]
    if points.dim() != 2 or points.shape[-1] != grid.dimension:
        raise UserError(f"{name} has shape {tuple(points.shape)}; give points as (P, {grid.dimension})")
    for axis, (lower, upper) in enumerate(grid.extent):
        outside = ~((points[:, axis] >= lower) & (points[:, axis] <= upper))
        if bool(outside.any()):
            first = int(outside.nonzero()[0, 0])
            raise UserError(
                f"point {first} has {AXES[axis]} = {float(points[first, axis]):g}, outside the domain "
                f"[{lower:g}, {upper:g}]; give points inside it"
            )
    return points
