"""Forcings and masks as a user gives them to a rollout: checked, and brought to the steps that it takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.data.interpolation import axis_weights
from ups.errors import UserError
from ups.fields import Conditions, Grid, TaskSpec
from ups.rollout.schedule import SAME


def check_named(spec: TaskSpec, forcings: Mapping[str, Any], mask: Any) -> None:
    """Refuse forcings and masks that a task does not have, and tasks without those that they have."""
    if other := [name for name in forcings if name not in spec.forcings]:
        raise UserError(
            f"task {spec.name!r} has no forcing {other[0]!r}; it takes {', '.join(spec.forcings) or 'none'}"
        )
    if missing := [name for name in spec.forcings if name not in forcings]:
        raise UserError(f"task {spec.name!r} needs the forcing {missing[0]!r}; pass forcings={{{missing[0]!r}: ...}}")
    if spec.masked and mask is None:
        raise UserError(f"task {spec.name!r} needs a mask, true inside the domain; pass mask=")
    if mask is not None and not spec.masked:
        raise UserError(f"task {spec.name!r} has no mask; leave it out")


def cells_of(mask: Any, like: Tensor) -> Bool[Tensor, "*cells"]:
    cells = torch.as_tensor(mask).to(like.device)
    if not bool(((cells == 0) | (cells == 1)).all()):
        raise UserError("mask must be true or 1 inside the domain and false or 0 elsewhere")
    return cells.bool()


def inside_of(mask: Bool[Tensor, "*cells"], field: Float[Tensor, "*field"], what: str) -> Float[Tensor, "*field"]:
    """The field with zeros outside the mask; both end with the axes of space, and a mask of several samples begins with
    theirs.
    """
    try:
        return torch.where(mask, field, torch.zeros_like(field))
    except RuntimeError:
        raise UserError(
            f"mask has shape {tuple(mask.shape)} and {what} {tuple(field.shape)}; they must agree"
        ) from None


def in_time(
    forcings: Mapping[str, Float[Tensor, "..."]], times: Float[Tensor, " T"], space: int
) -> dict[str, Float[Tensor, "*space"] | Callable[[float], Tensor]]:
    """The forcings of a trajectory, (T, *space) or (*space), as functions of the time since its first frame: its own
    fields at its frames, between them cubics through the four around. A rollout's steps are not the trajectory's.
    """
    since = (times - times[0]).double()

    def of(name: str, field: Tensor) -> Callable[[float], Tensor]:
        def at(time: float) -> Tensor:
            near = int((since - time).abs().argmin())
            if abs(float(since[near]) - time) <= SAME * float(since[-1]) / len(since):
                return field[near]
            if time > float(since[-1]):
                raise UserError(
                    f"the forcing {name!r} of the trajectory ends after a time of {float(since[-1]):g}, and {time:g} "
                    "is needed; ask for fewer steps, or pass forcings= that last as long"
                )
            places, weights = axis_weights(since, (0.0, float(since[-1])), False, torch.tensor([time]).double(), 3)
            return torch.einsum("k,k...->...", weights[0].to(field), field[places[0]])

        return at

    return {
        name: of(name, field) if field.dim() > space and len(times) > 1 else field for name, field in forcings.items()
    }


def with_domain(
    conditions: Conditions,
    spec: TaskSpec,
    forcings: Mapping[str, Any],
    mask: Bool[Tensor, "*cells"] | None,
    leads: Sequence[float],
    frames: Float[Tensor, "B T *space C"],
    grid: Grid,
) -> Conditions:
    """The conditions with forcings at every step, whose lead times are `leads`, and the mask, both of every sample."""
    times = [0.0, *itertools.accumulate(leads)]
    batch = len(frames)
    cells = None if mask is None else _spread(mask, batch, grid, "mask")
    if cells is not None and not bool(cells.flatten(1).any(1).all()):
        raise UserError("mask covers everything, so there is nothing to predict; make it true inside the domain")
    fields = {name: _forcing(name, forcings[name], times, frames, grid) for name in spec.forcings}
    if cells is not None:
        fields = {n: inside_of(cells if f.dim() == cells.dim() else cells[:, None], f, n) for n, f in fields.items()}
    for name, field in fields.items():
        if not bool(field.detach().isfinite().all()):
            raise UserError(f"forcing {name!r} has NaN or infinite values; mend it")
    return replace(conditions, forcings=fields, mask=cells)


def _forcing(
    name: str, given: Any, times: Sequence[float], frames: Float[Tensor, "B T *space C"], grid: Grid
) -> Float[Tensor, "B ..."]:
    """(B, *space) of one that stays the same, else (B, steps + 1, *space)."""
    what, batch, space = f"forcing {name!r}", len(frames), grid.dimension
    if callable(given):
        each = [_spread(torch.as_tensor(given(time)).to(frames), batch, grid, what) for time in times]
        return torch.stack(each, 1)
    field = torch.as_tensor(given).to(frames)
    if field.dim() == space + 1:
        field = field[None]
    if field.dim() == space or field.shape[1] == 1:
        return _spread(field.reshape(-1, *field.shape[-space:]) if field.dim() > space else field, batch, grid, what)
    if field.dim() != space + 2 or tuple(field.shape[2:]) != grid.shape or len(field) not in (1, batch):
        raise UserError(
            f"{what} has shape {tuple(field.shape)}; give {grid.shape} points, with an axis of time before them if it "
            "changes, and one of samples before that"
        )
    if len(times) > field.shape[1]:
        raise UserError(
            f"{what} has {field.shape[1]} frames, too few for {len(times) - 1} steps; give one now and one after each "
            "step, or a function of time"
        )
    return field[:, : len(times)].expand(batch, -1, *grid.shape)


def _spread(field: Tensor, batch: int, grid: Grid, what: str) -> Tensor:
    """A field of every sample."""
    if tuple(field.shape) not in (grid.shape, (1, *grid.shape), (batch, *grid.shape)):
        raise UserError(
            f"{what} has shape {tuple(field.shape)}; give {grid.shape} or {(batch, *grid.shape)}, as u0 has"
        )
    return field.expand(batch, *grid.shape)
