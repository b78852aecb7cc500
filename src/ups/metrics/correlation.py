"""How long a prediction follows the truth's pattern, the measure for chaotic systems."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ups.metrics.layout import Fields, aligned


def correlation(prediction: Fields, truth: Fields) -> Float[Tensor, "N T C"]:
    """Pearson correlation over space, ⟨p'y'⟩ / √(⟨p'²⟩⟨y'²⟩) with primes for the deviation from the spatial mean.

    A truth that is constant in space has no pattern to follow: NaN. A constant prediction of a truth that is not
    constant follows nothing: 0. A NaN in the prediction: NaN.
    """
    prediction, truth, space = aligned(prediction, truth)
    p = prediction - prediction.mean(space, keepdim=True)
    y = truth - truth.mean(space, keepdim=True)
    value = (p * y).mean(space) / (p.square().mean(space) * y.square().mean(space)).sqrt()
    flat_prediction = prediction.amax(space) == prediction.amin(space)
    flat_truth = truth.amax(space) == truth.amin(space)
    return value.masked_fill(flat_prediction, 0.0).masked_fill(flat_truth, math.nan)


def correlation_time(
    prediction: Fields,
    truth: Fields,
    times: Float[Tensor, " T"],
    threshold: float = 0.8,
) -> Float[Tensor, "N C"]:
    """The first time at which the correlation is below `threshold`.

    A prediction that never falls below it gets the last time, which is then a lower bound. Frames with a constant
    truth decide nothing. A prediction with a NaN anywhere gets NaN.
    """
    fallen = correlation(prediction, truth) < threshold
    first = torch.where(fallen.any(1), fallen.int().argmax(1), len(times) - 1)
    broken = prediction.isnan().flatten(1, -2).any(1)
    return times.double().to(first.device)[first].masked_fill(broken, math.nan)
