"""The one layout every metric reads: (N, T, *space, C), the same for prediction and truth."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def space_axes(field: Float[Tensor, "N T *space C"]) -> tuple[int, ...]:
    """The axes between time and channels."""
    if field.ndim < 4:
        raise ValueError(f"a field has axes (sample, time, space, channel); got shape {tuple(field.shape)}")
    return tuple(range(2, field.ndim - 1))


def aligned(
    prediction: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"]
) -> tuple[Float[Tensor, "N T *space C"], Float[Tensor, "N T *space C"], tuple[int, ...]]:
    """Both fields in float64, and their space axes. Unequal shapes are refused: broadcasting would score anyway."""
    if prediction.shape != truth.shape:
        raise ValueError(f"prediction has shape {tuple(prediction.shape)}, truth has {tuple(truth.shape)}")
    return prediction.double(), truth.double(), space_axes(truth)
