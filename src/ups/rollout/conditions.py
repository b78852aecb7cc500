"""Parameters and static fields as a user gives them to a rollout: checked, and of every sample."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Conditions, Grid
from ups.models.saved import TrainedTask
from ups.rollout.domain import inside_of
from ups.rollout.trust import span

FAR = 0.1
"""A parameter further outside the trained range than this share of its nearer end is warned of."""


def checked(
    learned: TrainedTask, given: Mapping[str, Any], like: Tensor, notes: list[str], domain: Bool[Tensor, "..."] | None
) -> dict[str, Tensor]:
    """All that the task takes, finite; what is far from training is noted."""
    spec = learned.spec
    known = [*spec.parameters, *spec.static]
    for name in given:
        if name not in known:
            same = [other for other in known if other.lower() == name.lower()]
            close = same or difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it takes {', '.join(known) or 'none'}"
            raise UserError(f"task {spec.name!r} has no condition {name!r}{hint}")
    for name in known:
        if name not in given:
            how = f"--set {name}=VALUE" if name in spec.parameters else "an array of this name in INPUT"
            raise UserError(
                f"task {spec.name!r} needs the condition {name!r}; pass conditions={{{name!r}: ...}} ({how})"
            )
    values = {name: numbers(value, f"condition {name!r}", like) for name, value in given.items()}
    for name in spec.parameters:
        low, high = learned.ranges[name]
        seen = values[name].detach()
        if float(seen.min()) < low - FAR * abs(low) or float(seen.max()) > high + FAR * abs(high):
            notes.append(f"{name} = {span(seen)} is outside the range the model was trained on ({low:g} to {high:g})")
    if domain is not None:
        values |= {name: inside_of(domain, values[name], f"static field {name!r}") for name in spec.static}
    for name in spec.static:
        low, high = learned.statistics.static[name].range or (-math.inf, math.inf)
        seen, margin = values[name].detach(), FAR * (high - low)
        if float(seen.min()) < low - margin or float(seen.max()) > high + margin:
            notes.append(f"{name} = {span(seen)} leaves the range that the model was trained on ({low:g} to {high:g})")
    for name, value in values.items():
        if not bool(torch.isfinite(value.detach()).all()):
            raise UserError(f"condition {name!r} has NaN or infinite values; mend it")
    return values


def of_samples(learned: TrainedTask, given: Mapping[str, Float[Tensor, "..."]], batch: int, grid: Grid) -> Conditions:
    """What was checked, of each of so many samples."""
    spec = learned.spec
    fields = {}
    for name in spec.static:
        shape = tuple(given[name].shape)
        if shape not in (grid.shape, (1, *grid.shape), (batch, *grid.shape)):
            raise UserError(
                f"static field {name!r} has shape {shape}; give {grid.shape} or {(batch, *grid.shape)}, as u0 has"
            )
        fields[name] = given[name].expand(batch, *grid.shape)
    parameters = {}
    for name in spec.parameters:
        if given[name].dim() > 1 or (given[name].dim() == 1 and len(given[name]) not in (1, batch)):
            raise UserError(f"{name} has shape {tuple(given[name].shape)}; give one number, or one per sample")
        parameters[name] = given[name].expand(batch)
    return Conditions(parameters, fields)


def flat_conditions(conditions: Mapping[str, Any] | Conditions | None) -> dict[str, Any]:
    if conditions is None:
        return {}
    return {**conditions.parameters, **conditions.static} if isinstance(conditions, Conditions) else dict(conditions)


def numbers(value: Any, what: str, like: Tensor) -> Tensor:
    """Numbers of any kind as a tensor where the model is."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{what} is {value!r}; give numbers ({error})") from None
    if tensor.is_complex() or tensor.numel() == 0:
        raise UserError(f"{what} is {'complex' if tensor.is_complex() else 'empty'}; give real numbers")
    return tensor.to(like)
