"""A metric of one's own: how much too high or too low the highest peak is at the last frame.

    plugins: [toy_metric.py]

It stands in `metrics.json` and in the report, for every predictor and with its interval.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

import ups
from ups.metrics.registry import MetricContext


def peak_error(
    prediction: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"], context: MetricContext
) -> Float[Tensor, " N"]:
    """| max |û| − max |u| |, one number a sample."""
    predicted, true = (values[:, -1].abs().flatten(1).amax(1) for values in (prediction, truth))
    return (predicted - true).abs()


ups.register_metric("peak_error", peak_error, applies=lambda context: not context.spec.steady)
