"""From per-sample values to the interval their mean is known to."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def bootstrap_interval(
    values: Float[Tensor, "N *rest"], seed: int, resamples: int = 2000, level: float = 0.95
) -> tuple[Float[Tensor, "*rest"], Float[Tensor, "*rest"]]:
    """Percentile bootstrap of the mean over samples: the central `level` of the means of N draws with replacement.

    Drawn on the CPU from `seed`, so every device gives the same interval. One sample gives an interval of no width
    (it says nothing); a NaN or inf among the values makes the interval NaN.
    """
    return central(resampled_means(values, draws(values.shape[0], seed, resamples)), level)


def resampled_means(values: Float[Tensor, "N *rest"], drawn: Int[Tensor, "R N"]) -> Float[Tensor, "R *rest"]:
    """The mean over the samples that each resample holds."""
    count = values.shape[0]
    weights = torch.zeros(drawn.shape, dtype=torch.float64).scatter_add_(
        1, drawn, torch.full(drawn.shape, 1 / count, dtype=torch.float64)
    )
    means = weights.to(values.device) @ values.double().reshape(count, -1)
    return means.reshape(len(drawn), *values.shape[1:])


def draws(count: int, seed: int, resamples: int = 2000) -> Int[Tensor, "R N"]:
    """Which of `count` samples each resample holds."""
    return torch.randint(count, (resamples, count), generator=torch.Generator().manual_seed(seed))


def central(
    values: Float[Tensor, "R *rest"], level: float = 0.95
) -> tuple[Float[Tensor, "*rest"], Float[Tensor, "*rest"]]:
    """The ends of the central `level` of a statistic over resamples."""
    tail = (1 - level) / 2
    ends = torch.tensor([tail, 1 - tail], dtype=values.dtype, device=values.device)
    low, high = torch.quantile(values, ends, dim=0)
    return low, high
