"""What training minimises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

FLOOR = 0.01
"""The denominator of a relative error is at least this share of the task's rms (1 in normalised units)."""


@dataclass(frozen=True)
class LossParts:
    """What to minimise, and what it is made of, by name; one number a sample, so that any split adds up."""

    total: Float[Tensor, " B"]
    parts: Mapping[str, Float[Tensor, " B"]]


def relative_l2(prediction: Float[Tensor, "B *space C"], target: Float[Tensor, "B *space C"]) -> Float[Tensor, " B"]:
    """‖û − u‖ / max(‖u‖, 0.01 √n) for each sample, n numbers in it: the metric itself, safe where the field vanishes.

    Not squared: a sample of sharp features counts by its error, not by its error's square.
    """
    error = (prediction - target).flatten(1).norm(dim=1)
    size = target.flatten(1).norm(dim=1).clamp_min(FLOOR * target.shape[1:].numel() ** 0.5)
    return error / size
