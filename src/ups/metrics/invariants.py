"""Conserved quantities: what the exact solution keeps is the spatial mean of a channel (mass, momentum, energy)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ups.metrics.layout import aligned


def conserved_error(
    prediction: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"]
) -> Float[Tensor, "N T C"]:
    """|⟨prediction⟩ₓ − ⟨truth⟩ₓ|: what was created or lost, in the channel's own unit."""
    prediction, truth, space = aligned(prediction, truth)
    return (prediction - truth).mean(space).abs()


def conserved_rmse(
    prediction: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"]
) -> Float[Tensor, "N C"]:
    """√⟨(⟨prediction⟩ₓ − ⟨truth⟩ₓ)²⟩ₜ: the same over a whole trajectory."""
    return conserved_error(prediction, truth).square().mean(1).sqrt()
