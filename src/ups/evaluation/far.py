"""Test trajectories that lie far beyond the training data: said, since the error of one may rule the mean."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ups.metrics.layout import Fields, Mask, filled
from ups.models.saved import TrainedTask
from ups.rollout.trust import span

FAR = 3.0
"""So many lengths of the trained range beyond it."""
ROUNDING = 1e-6
"""Of a value: so long is the range of a channel that is constant in training."""


def extremes(values: Fields, mask: Mask) -> Float[Tensor, "N two C"]:
    """The smallest and the largest value of each trajectory's channels, in the cells that count."""
    least, most = (filled(values, mask, end).flatten(1, -2) for end in (math.inf, -math.inf))
    return torch.stack([least.amin(1), most.amax(1)], 1).double().cpu()


def far_beyond(learned: TrainedTask, view: str, ends: Float[Tensor, "N two C"]) -> Iterator[str]:
    """A sentence for each channel; `ends` are the `extremes` of all trajectories of a test set."""
    for place, channel in enumerate(learned.spec.channels):
        trained = learned.statistics.channels[channel.name].range
        if trained is None:
            continue
        (low, high), log = trained, channel.transform == "log"
        seen = ends[..., place].clamp_min(0.0).log() if log else ends[..., place]
        beyond = torch.maximum(low - seen[:, 0], seen[:, 1] - high)
        far = beyond > FAR * max(high - low, ROUNDING * max(abs(low), abs(high)))
        if not bool(far.any()):
            continue
        worst, more = int(beyond.argmax()), int(far.sum()) - 1
        low, high = (math.exp(low), math.exp(high)) if log else (low, high)
        yield (
            f"test trajectory {worst} of {view} has {channel.name} = {span(ends[worst, :, place])}, far beyond the "
            f"{low:.4g} to {high:.4g} of the training data{f', as have {more} more' if more else ''}; an error there "
            "may rule the mean, so look at nrmse_median in metrics.json too."
        )
