"""The metrics that are reported, by name. Users add theirs without touching the package:

    def front_error(prediction, truth, context):
        x = context.grid.positions[0]
        return (x[prediction[:, -1, :, 0].argmax(1)] - x[truth[:, -1, :, 0].argmax(1)]).abs()

    ups.metrics.register_metric("front_error", front_error)

From then on it stands in `metrics.json` and in the report, for every predictor and with its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Grid, TaskSpec
from ups.metrics.balance import balance_error
from ups.metrics.correlation import correlation_time
from ups.metrics.errors import boundary_rmse, conserved_rmse, max_error, nrmse, relative_l2, vrmse
from ups.metrics.layout import Fields, Mask
from ups.metrics.spectra import BANDS, spectral_error

if TYPE_CHECKING:  # who only simulates does not wait for the solvers
    from ups.equations import Equation

ENSEMBLES = ("crps", "energy_score", "mean_nrmse", "coverage_50", "coverage_90", "spread_skill")
DERIVED = ("nrmse_median", "nrmse_pooled", "half_steps", *ENSEMBLES)
"""Names in `metrics.json` that are no means of a number from prediction and truth, so no metric of the registry can
have them.
"""


@dataclass(frozen=True, eq=False)
class MetricContext:
    """What a metric may know beside the fields: the task, the times of each trajectory's frames, where the points are,
    which cells are part of the domain (`mask`; None: all, and other cells must not count), the equation the data are
    solutions of, where that is known, and each trajectory's parameters and static fields.
    """

    spec: TaskSpec
    times: Float[Tensor, "N T"]
    grid: Grid
    mask: Mask = None
    equation: Equation | None = None
    parameters: Mapping[str, Float[Tensor, " N"]] = field(default_factory=dict)
    static: Mapping[str, Float[Tensor, "N *space"]] = field(default_factory=dict)
    _kept: dict[Callable[..., Tensor], tuple[Fields, Fields, Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    def once(self, function: Callable[[Fields, Fields, Mask], Tensor], prediction: Fields, truth: Fields) -> Tensor:
        """`function(prediction, truth, mask)`, which several metrics of one prediction are made of."""
        known = self._kept.get(function)
        if known is None or known[0] is not prediction or known[1] is not truth:
            known = self._kept[function] = (prediction, truth, function(prediction, truth, self.mask))
        return known[2]


Function = Callable[[Fields, Fields, MetricContext], Float[Tensor, " N"]]


def _always(context: MetricContext) -> bool:
    return True


@dataclass(frozen=True)
class Metric:
    """A name, one number a sample from (prediction, truth, context), and the tasks it has a meaning for."""

    name: str
    function: Function
    applies: Callable[[MetricContext], bool] = _always

    def __call__(self, prediction: Fields, truth: Fields, context: MetricContext) -> Float[Tensor, " N"]:
        values = self.function(prediction, truth, context)
        if not isinstance(values, Tensor) or values.shape != truth.shape[:1]:
            found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise UserError(
                f"metric {self.name!r} gave {found} for {len(truth)} samples; return a tensor with one number a sample"
            )
        return values.double()


_known: dict[str, Metric] = {}


def register_metric(name: str, function: Function, applies: Callable[[MetricContext], bool] = _always) -> Metric:
    """Make a metric known; `applies` says for which tasks. The same twice is fine, another of the same name is not."""
    metric = Metric(name, function, applies)
    if name in DERIVED or _known.setdefault(name, metric) != metric:
        raise UserError(f"metric {name!r} is already registered; choose another name")
    return metric


def metrics() -> Mapping[str, Metric]:
    """All registered metrics, in order of registration."""
    return dict(_known)


def _sample_means(values: Float[Tensor, "N ..."]) -> Float[Tensor, " N"]:
    """Over times and channels, where a metric has a number for each."""
    return values.reshape(len(values), -1).mean(1)


def _conserved(prediction: Tensor, truth: Tensor, context: MetricContext) -> Tensor:
    names = context.spec.channel_names
    columns = [names.index(invariant.channel) for invariant in context.spec.invariants]
    return _sample_means(conserved_rmse(prediction, truth, context.mask)[:, columns])


def _balance(prediction: Tensor, truth: Tensor, context: MetricContext) -> Tensor:
    assert context.equation is not None
    of = context.equation, context.parameters, context.static
    return _sample_means(balance_error(prediction, truth, context.times, *of))


def _balanced(context: MetricContext) -> bool:
    """All channels of an equation whose frames tell their rates, on its own cells, all of which are in the domain."""
    equation, grid = context.equation, context.grid
    return (
        equation is not None
        and equation.closed
        and context.mask is None
        and context.spec.channel_names == equation.channels
        and Grid.cell_centred(grid.shape, equation.extent).same_as(grid)
        and (equation.steady or context.times.shape[1] > 1)
    )


def _register_own() -> None:
    for name, pointwise in (
        ("nrmse", nrmse),
        ("relative_l2", relative_l2),
        ("max_error", max_error),
        ("boundary_rmse", boundary_rmse),
    ):
        register_metric(name, lambda p, y, context, f=pointwise: _sample_means(context.once(f, p, y)))
    for column, (band, _, _) in enumerate(BANDS):
        register_metric(
            f"spectral_{band}",
            lambda p, y, context, i=column: _sample_means(context.once(spectral_error, p, y)[..., i]),
        )
    register_metric("vrmse", lambda p, y, context: _sample_means(vrmse(p, y, context.mask)))
    register_metric("conserved_rmse", _conserved, lambda context: bool(context.spec.invariants))
    register_metric(
        "correlation_time",
        lambda p, y, context: _sample_means(correlation_time(p, y, context.times, mask=context.mask)),
        lambda context: not context.spec.steady,
    )
    register_metric("balance", _balance, _balanced)


_register_own()
