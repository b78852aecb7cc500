"""How long a prediction follows the truth's pattern, the measure for chaotic systems."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.metrics.layout import Fields, Mask, aligned, filled, mean


def correlation(prediction: Fields, truth: Fields, mask: Mask = None) -> Float[Tensor, "N T C"]:
    """Pearson correlation over space, ⟨p'y'⟩ / √(⟨p'²⟩⟨y'²⟩) with primes for the deviation from the spatial mean.

    A truth that is constant in space has no pattern to follow: NaN. A constant prediction of a truth that is not
    constant follows nothing: 0. A NaN in the prediction: NaN.
    """
    prediction, truth, space = aligned(prediction, truth)
    p = prediction - mean(prediction, space, mask, keepdim=True)
    y = truth - mean(truth, space, mask, keepdim=True)
    variances = mean(p.square(), space, mask) * mean(y.square(), space, mask)
    value = mean(p * y, space, mask) / variances.sqrt()

    def flat(field: Fields) -> Bool[Tensor, "N T C"]:
        return filled(field, mask, -math.inf).amax(space) == filled(field, mask, math.inf).amin(space)

    return value.masked_fill(flat(prediction), 0.0).masked_fill(flat(truth), math.nan)


def correlation_time(
    prediction: Fields,
    truth: Fields,
    times: Float[Tensor, "N T"],
    threshold: float = 0.8,
    mask: Mask = None,
) -> Float[Tensor, "N C"]:
    """The first time at which the correlation is below `threshold`.

    A prediction that never falls below it gets the last time, which is then a lower bound. Frames with a constant
    truth decide nothing. A prediction with a NaN anywhere gets NaN.
    """
    fallen = correlation(prediction, truth, mask) < threshold
    first = torch.where(fallen.any(1), fallen.int().argmax(1), times.shape[1] - 1)
    broken = filled(prediction, mask).isnan().flatten(1, -2).any(1)
    return times.double().to(first.device).gather(1, first).masked_fill(broken, math.nan)
