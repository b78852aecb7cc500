"""How far a prediction is from the truth: nRMSE and its kin, spectra, invariants, correlation, intervals.

Every metric takes physical values of shape (N, T, *space, C) and returns one number per sample (and per time and
channel where that is natural), in float64. Means, medians and intervals over samples are taken afterwards. A NaN in a
prediction makes the value it touches NaN, never a number that flatters.

`registry.py` holds those that are reported, by name; `register_metric` adds a user's own.
"""

from ups.metrics.balance import balance_error as balance_error
from ups.metrics.bootstrap import bootstrap_interval as bootstrap_interval
from ups.metrics.correlation import correlation as correlation
from ups.metrics.correlation import correlation_time as correlation_time
from ups.metrics.errors import boundary_rmse as boundary_rmse
from ups.metrics.errors import conserved_error as conserved_error
from ups.metrics.errors import conserved_rmse as conserved_rmse
from ups.metrics.errors import max_error as max_error
from ups.metrics.errors import nrmse as nrmse
from ups.metrics.errors import pooled_nrmse as pooled_nrmse
from ups.metrics.errors import relative_l2 as relative_l2
from ups.metrics.errors import vrmse as vrmse
from ups.metrics.registry import Metric as Metric
from ups.metrics.registry import MetricContext as MetricContext
from ups.metrics.registry import metrics as metrics
from ups.metrics.registry import register_metric as register_metric
from ups.metrics.spectra import BANDS as BANDS
from ups.metrics.spectra import power_spectrum as power_spectrum
from ups.metrics.spectra import spectral_error as spectral_error
