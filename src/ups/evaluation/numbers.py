"""What is kept of each predicted trajectory: numbers, not fields. All of a table is made of them, however many there
are and whoever computed them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ups.metrics import MetricContext, metrics, nrmse, power_spectrum
from ups.metrics.errors import squared_error, squared_truth
from ups.metrics.layout import Fields, Mask


@dataclass(frozen=True, eq=False)
class Numbers:
    """Of one predictor's fields, each a row a sample: every metric; squared errors and the squared truth at each time,
    means over the box, which pooled errors are made of; the nRMSE at each time; the last frame's spectrum.
    """

    metrics: Mapping[str, Float[Tensor, " N"]]
    squared_error: Float[Tensor, "N T_C"]
    squared_truth: Float[Tensor, "N T_C"]
    growth: Float[Tensor, "N T"]
    spectrum: Float[Tensor, "N K"]

    @classmethod
    def of(cls, prediction: Fields, truth: Fields, context: MetricContext) -> Numbers:
        """Every registered metric that has a meaning for the task, and the rest."""
        mask, context = context.mask, replace(context)  # which keeps what it shares no longer than these fields
        return cls(
            {n: metric(prediction, truth, context).cpu() for n, metric in metrics().items() if metric.applies(context)},
            squared_error(prediction, truth, mask).flatten(1).cpu(),
            squared_truth(prediction, truth, mask).flatten(1).cpu(),
            context.once(nrmse, prediction, truth).mean(2).cpu(),
            spectrum(prediction, mask),
        )

    @classmethod
    def joined(cls, parts: Sequence[Numbers]) -> Numbers:
        return cls(
            {name: torch.cat([part.metrics[name] for part in parts]) for name in parts[0].metrics},
            torch.cat([part.squared_error for part in parts]),
            torch.cat([part.squared_truth for part in parts]),
            torch.cat([part.growth for part in parts]),
            torch.cat([part.spectrum for part in parts]),
        )


def spectrum(fields: Fields, mask: Mask) -> Float[Tensor, "N K"]:
    """Power at the last time by wave number, the mean over channels."""
    return power_spectrum(fields[:, -1:], mask)[1].mean((1, 3)).cpu()
