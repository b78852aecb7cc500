"""How far a prediction is from the truth: nRMSE and its kin, spectra, invariants, correlation, intervals.

Every metric takes physical values of shape (N, T, *space, C) and returns one number per sample (and per time and
channel where that is natural), in float64. Means, medians and intervals over samples are taken afterwards. A NaN in a
prediction makes the value it touches NaN, never a number that flatters.

`registry.py` holds those that are reported, by name; `register_metric` adds a user's own.
"""

from ups.metrics.bootstrap import bootstrap_interval
from ups.metrics.correlation import correlation, correlation_time
from ups.metrics.errors import (
    boundary_rmse,
    conserved_error,
    conserved_rmse,
    max_error,
    nrmse,
    pooled_nrmse,
    relative_l2,
    vrmse,
)
from ups.metrics.registry import Metric, MetricContext, metrics, register_metric
from ups.metrics.spectra import BANDS, power_spectrum, spectral_error

__all__ = [
    "BANDS",
    "Metric",
    "MetricContext",
    "bootstrap_interval",
    "boundary_rmse",
    "conserved_error",
    "conserved_rmse",
    "correlation",
    "correlation_time",
    "max_error",
    "metrics",
    "nrmse",
    "pooled_nrmse",
    "power_spectrum",
    "register_metric",
    "relative_l2",
    "spectral_error",
    "vrmse",
]
