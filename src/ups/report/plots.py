"""The report's curves, each a function from data to a matplotlib figure; no pyplot, so no global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy import ndarray

from ups.evaluation.solver import SolverComparison
from ups.report.contents import Curve, TaskPage
from ups.report.drawing import MOST_INSIDE, line, name_lines, plain, styled
from ups.report.legend import COLOURS, DASHES, MODEL, NOT_A_NUMBER, REFERENCE, SOLVER, TRIVIAL, Ink, Legend

CURVE_POINTS = 600


@styled
def growth_figure(task: TaskPage) -> Figure:
    """Mean nRMSE over time, log scale; a predictor that stops being a number ends in a cross."""
    figure = Figure(figsize=(4.7, _height(task.growth)), layout="constrained")
    axes = figure.subplots()
    for name, (times, error) in task.growth.items():
        good = np.isfinite(error)
        drawn = good & (np.where(good, error, 0) > 0)
        label = task.legend.title(name) + ("" if good.all() else " (not a number)")
        line(axes, task.legend.ink(name), times[drawn], error[drawn], label)
        if not good.all() and drawn.any():
            axes.plot(times[drawn][-1], error[drawn][-1], "X", color=NOT_A_NUMBER, markersize=9)
    axes.set(yscale="log", xlabel="t", ylabel="mean nRMSE", title="Error growth in the rollout")
    _log_axis(axes.yaxis)
    name_lines(figure, axes)
    return figure


def has_waves(task: TaskPage) -> bool:
    """Whether there is a spectrum to draw: fields that are constant in space have none."""
    return any(bool(((k > 0) & (power > 0)).any()) for k, power in task.spectra.values())


@styled
def spectra_figure(task: TaskPage) -> Figure:
    """Power against wave number at the final time: lost small scales show as a gap at the right."""
    figure = Figure(figsize=(4.7, _height(task.spectra)), layout="constrained")
    axes = figure.subplots()
    largest = 0.0
    for name, (k, power) in task.spectra.items():
        drawn = (k > 0) & np.isfinite(power) & (power > 0)
        label = task.legend.title(name, task.steady) + ("" if np.isfinite(power).all() else " (not a number)")
        line(axes, task.legend.ink(name), k[drawn], power[drawn], label)
        if name == REFERENCE and drawn.any():
            largest = float(power[drawn].max())
    axes.set(xscale="log", yscale="log", xlabel="wave number |k| (waves per domain)", ylabel="power")
    axes.set_title("Spectrum" if task.steady else "Spectrum at the final time")
    if largest:  # single precision holds no more than this below the largest wave
        axes.set_ylim(bottom=max(axes.get_ylim()[0], largest * 1e-13), top=min(axes.get_ylim()[1], largest * 1e4))
    name_lines(figure, axes)
    return figure


@styled
def training_figure(curves: Sequence[Curve], legend: Legend) -> Figure:
    """Loss against steps, and validation error against wall seconds: what the same time bought each predictor."""
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    drawn: dict[str, int] = {}
    for curve in curves:
        turn = drawn.get(curve.predictor, 0)
        drawn[curve.predictor] = turn + 1
        style = {
            "color": legend.ink(curve.predictor).colour,
            "linestyle": ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), "-.")[turn % 4],
        }
        smooth = _smoothed(curve.loss)
        stride = max(1, len(curve.steps) // CURVE_POINTS)
        left.plot(curve.steps[::stride], curve.loss[::stride], color=style["color"], alpha=0.2, linewidth=0.7)
        left.plot(curve.steps[::stride], smooth[::stride], label=plain(curve.label), linewidth=1.8, **style)
        if curve.validation:
            steps, values = np.array(curve.validation, dtype=np.float64).T
            seconds = np.interp(steps, curve.steps, curve.seconds)
            right.plot(
                seconds, values, label=plain(curve.label), linewidth=1.8, marker="osD^"[turn % 4], ms=3.5, **style
            )
    left.set(yscale="log", xlabel="step", ylabel="training loss", title="Loss")
    right.set(yscale="log", xlabel="wall seconds of training", ylabel="validation error", title="Validation")
    for axes in (left, right):
        _log_axis(axes.yaxis)
    name_lines(figure, left, columns=4)
    return figure


@styled
def solver_figure(solver: SolverComparison, legend: Legend) -> Figure:
    """Error against seconds a trajectory: the solver at several resolutions, and the model as a star."""
    figure = Figure(figsize=(4.7, 3.2), layout="constrained")
    axes = figure.subplots()
    rows = sorted(solver.rows, key=lambda row: row.seconds)
    seconds, errors = [row.seconds for row in rows], [row.nrmse for row in rows]
    axes.plot(seconds, errors, "o-", color=SOLVER.colour, linewidth=1.6, label="solver, points per axis")
    for row in rows:
        axes.annotate(str(row.points), (row.seconds, row.nrmse), xytext=(5, 4), textcoords="offset points", fontsize=8)
    own, title = legend.ink(legend.model), plain(legend.title(legend.model))
    axes.plot(solver.model_seconds, solver.model_nrmse, "*", color=own.colour, markersize=15, label=title)
    axes.set(xscale="log", yscale="log", xlabel="seconds a trajectory", ylabel="nRMSE")
    axes.set_title("Cost of accuracy: lower left is better")
    axes.margins(0.12)
    _log_axis(axes.xaxis)
    _log_axis(axes.yaxis)
    axes.legend()
    return figure


@styled
def learning_figure(curve: Mapping[str, Any]) -> Figure:
    """Error against the number of trajectories, of a fine-tuned model and of the same one from nothing, with 95 %
    intervals.
    """
    figure = Figure(figsize=(4.7, 3.2), layout="constrained")
    axes = figure.subplots()
    counts = np.array([point["trajectories"] for point in curve["points"]], dtype=np.float64)
    for key, label, ink in (
        ("from_nothing", "from nothing", Ink(COLOURS[0], DASHES[0])),
        ("finetuned", "fine-tuned", MODEL),
    ):
        errors = np.array([_or_nan(point[key]) for point in curve["points"]])
        line(axes, ink, counts, errors, label)
        axes.plot(counts, errors, "o", color=ink.colour, markersize=4)
        ends = np.array([[_or_nan(end) for end in point["ci95"][key]] for point in curve["points"]])
        axes.fill_between(counts, ends[:, 0], ends[:, 1], color=ink.colour, alpha=0.15, linewidth=0)
    trivial = np.array([_or_nan(point["persistence"]) for point in curve["points"]])
    line(axes, TRIVIAL, counts, trivial, "persistence")
    axes.set(xscale="log", yscale="log", xlabel="trajectories trained on", ylabel="nRMSE")
    axes.set_title("Error against data, in the same time")
    axes.set_xticks(counts, [f"{count:g}" for count in counts])
    axes.xaxis.set_minor_formatter(NullFormatter())
    _log_axis(axes.yaxis)
    axes.legend()
    return figure


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _height(lines: Sized) -> float:
    """Room for the names under the axes, where they are too many to stand inside."""
    return 3.2 if len(lines) <= MOST_INSIDE else 3.7


def _log_axis(axis: Axis) -> None:
    """Ticks in plain numbers (0.02, 0.05): readers should not decode exponents where few decades are shown."""
    low, high = axis.get_view_interval()
    few = low > 0 and np.log10(high / low) < 2.5
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    if few:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _smoothed(values: Float[ndarray, " S"]) -> Float[ndarray, " S"]:
    """Centred running median over about a twentieth of the curve, for the eye; the raw values are drawn behind it."""
    half = len(values) // 40
    padded = np.pad(np.asarray(values, dtype=np.float64), half, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=-1)
