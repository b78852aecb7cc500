"""The one layout every metric reads: (N, T, *space, C), the same for prediction and truth."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

Fields = Float[Tensor, "N T *space C"]
"""Trajectories of several samples, channels last."""


def space_axes(field: Fields) -> tuple[int, ...]:
    """The axes between time and channels."""
    if field.ndim < 4:
        raise ValueError(f"a field has axes (sample, time, space, channel); got shape {tuple(field.shape)}")
    return tuple(range(2, field.ndim - 1))


def aligned(prediction: Fields, truth: Fields) -> tuple[Fields, Fields, tuple[int, ...]]:
    """Both fields in float64, and their space axes. Unequal shapes are refused: broadcasting would score anyway."""
    if prediction.shape != truth.shape:
        raise ValueError(f"prediction has shape {tuple(prediction.shape)}, truth has {tuple(truth.shape)}")
    return prediction.double(), truth.double(), space_axes(truth)
