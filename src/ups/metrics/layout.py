"""The one layout every metric reads: (N, T, *space, C), the same for prediction and truth; and which cells count.

A mask (N, *space) is True where a cell is part of the domain. Other cells are in no mean, no maximum and no sum,
whatever they hold.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Fields = Float[Tensor, "N T *space C"]
"""Trajectories of several samples, channels last."""

Mask = Bool[Tensor, "N *space"] | None
"""The cells of each sample that are part of its domain; None: all."""


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


def cells(mask: Bool[Tensor, "N *space"], field: Fields) -> Bool[Tensor, "N one *space one"]:
    """The mask, ready to be broadcast over the times and channels of a field."""
    return mask[:, None, ..., None].to(field.device)


def filled(field: Fields, mask: Mask, value: float = 0.0) -> Fields:
    """The field with a value in the cells that are no part of the domain."""
    return field if mask is None else torch.where(cells(mask, field), field, value)


def mean(field: Fields, axes: tuple[int, ...], mask: Mask = None, keepdim: bool = False) -> Tensor:
    """The mean over some axes, of the cells that count; NaN where there are none."""
    if mask is None:
        return field.mean(axes, keepdim)
    counted = cells(mask, field).to(field.dtype).expand_as(field)
    return filled(field, mask).sum(axes, keepdim) / counted.sum(axes, keepdim)
