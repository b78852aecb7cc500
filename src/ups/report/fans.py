"""What ensembles look like: fans at a point, spread beside skill, rank histograms; a row an ensemble."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy import ndarray

from ups.report.contents import Ensemble, TaskPage, times_of
from ups.report.drawing import line, plain, styled
from ups.report.legend import TRIVIAL, TRUTH, Ink


@styled
def ensemble_figure(task: TaskPage) -> Figure:
    """Of the page's first sample and first channel."""
    count = len(task.ensembles)
    figure = Figure(figsize=(9.6, 2.1 * count + 0.3), layout="constrained")
    rows = figure.subplots(count, 3, squeeze=False, sharex="col")
    truth = _middle(task.samples[0].truth)
    all_times = next(iter(task.growth.values()))[0]  # of which pictures may have few
    for (fan, spread, ranks), (name, ensemble) in zip(rows, task.ensembles.items(), strict=True):
        ink = task.legend.ink(name)
        times = all_times[len(all_times) - len(ensemble.spread) :]
        _fan(fan, ink, times, np.stack([_middle(quantile) for quantile in ensemble.fan[0]]))
        line(fan, TRUTH, times_of(task, task.samples[0]), truth, "truth")
        fan.set_ylabel(plain(task.legend.title(name)))
        line(spread, ink, times, ensemble.spread, "spread")
        line(spread, TRIVIAL, times, ensemble.skill, "error of the mean")
        spread.set_ylim(bottom=0)
        _ranks(ranks, ink, ensemble)
    for axes, title in zip(rows[0], ("Members at one point", "Spread and skill", "Ranks of the truth"), strict=True):
        axes.set_title(title)
    for axes, label in zip(rows[-1], ("t", "t", "members below the truth"), strict=True):
        axes.set_xlabel(label)
    rows[0][1].legend(fontsize=8)
    return figure


def _fan(axes, ink: Ink, times: Float[ndarray, " T"], quantiles: Float[ndarray, "Q T"]) -> None:
    """From the outermost pair of quantiles to the median."""
    for i in range(len(quantiles) // 2):
        axes.fill_between(times, quantiles[i], quantiles[-1 - i], color=ink.colour, alpha=0.2, linewidth=0)
    line(axes, ink, times, quantiles[len(quantiles) // 2], "median")


def _ranks(axes, ink: Ink, ensemble: Ensemble) -> None:
    shares = ensemble.ranks / ensemble.ranks.sum()
    axes.bar(np.arange(len(shares)), shares, color=ink.colour, width=0.9)
    axes.axhline(1 / len(shares), color=TRIVIAL.colour, linewidth=1)


def _middle(values: Float[ndarray, "T *space C"]) -> Float[ndarray, " T"]:
    """The first channel over time, at the middle of the domain."""
    return np.asarray(values[(slice(None), *(n // 2 for n in values.shape[1:-1]), 0)], dtype=np.float64)
