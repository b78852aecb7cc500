"""What training minimises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

FLOOR = 0.01
"""The denominator of a relative error is at least this share of the task's rms (1 in normalised units)."""


@dataclass(frozen=True)
class LossParts:
    """What to minimise, and what it is made of, by name; one number a sample, so that any split adds up."""

    total: Float[Tensor, " B"]
    parts: Mapping[str, Float[Tensor, " B"]]


def relative_error(
    prediction: Float[Tensor, "B *space C"],
    target: Float[Tensor, "B *space C"],
    mask: Bool[Tensor, "B *space"] | None = None,
) -> Float[Tensor, " B"]:
    """‖û − u‖ / max(‖u‖, 0.01 √n) for each sample, n numbers in it: the metric itself, safe where the field vanishes.
    With a mask both norms, and n, are of the cells inside it.

    Not squared: a sample of sharp features counts by its error, not by its error's square.
    """
    if mask is not None:
        prediction, target = (field.where(mask[..., None], 0.0) for field in (prediction, target))
    error = (prediction - target).flatten(1).norm(dim=1)
    numbers = target.shape[1:].numel()
    least = FLOOR * numbers**0.5 if mask is None else FLOOR * (mask.flatten(1).to(target).mean(1) * numbers).sqrt()
    return error / target.flatten(1).norm(dim=1).clamp_min(least)


def errors_of(
    states: Sequence[Float[Tensor, "B *space C"]],
    targets: Float[Tensor, "B T *space C"],
    mask: Bool[Tensor, "B *space"] | None = None,
) -> tuple[Float[Tensor, " B"], Float[Tensor, "T B"]]:
    """Their mean, and the relative error of each state against its target."""
    errors = torch.stack([relative_error(state, targets[:, i], mask) for i, state in enumerate(states)])
    return errors.mean(0), errors
