"""The report's figures, each a function from data to a matplotlib figure; no pyplot, so no global state.

Fields of one picture share one pair of colour limits and errors share another (`limits.py`).
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Num
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy import ndarray

from ups.report.contents import REFERENCE, Curve, Sample, SolverComparison, TaskPage, values_of
from ups.report.limits import error_limit, field_limits
from ups.report.palette import ERROR_MAP, FIELD_MAP, NOT_A_NUMBER, display_name, ink

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "ups",  # the same data give the same bytes
}
FILM_FRAMES = 5
CURVE_POINTS = 600


def render(figure: Figure, kind: str) -> bytes:
    """The figure as an SVG or a PNG file."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def space_time_figure(task: TaskPage, sample: Sample, channel: int) -> Figure:
    """1D in time: truth and models over (x, t), each model's error below it, and the last profile at the lower left."""
    names = [REFERENCE, *task.models]
    values = {name: values_of(sample, name)[..., channel] for name in names}
    errors = {name: values[name] - values[REFERENCE] for name in task.models}
    low, high = field_limits([values[REFERENCE]])
    bound = error_limit(errors.values(), high - low)
    x, t = task.axes[0], task.times
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(names) + 0.9, 5.2), layout="constrained")
        grid = figure.subplots(2, len(names), squeeze=False)
        for axes, name in zip(grid[0], names, strict=True):
            _image(axes, x, t, values[name].T, FIELD_MAP, low, high)
            axes.set_title(name, color=ink(name).colour)
        _bar(figure, list(grid[0]), FIELD_MAP, low, high, task.channels[channel], list(values.values()))
        for axes, name in zip(grid[1][1:], task.models, strict=True):
            _image(axes, x, t, errors[name].T, ERROR_MAP, -bound, bound)
            axes.set_title(f"{name} − truth", color=ink(name).colour)
        _bar(figure, list(grid[1]), ERROR_MAP, -bound, bound, "error", list(errors.values()))
        for axes in (*grid[0], *grid[1][1:]):
            axes.set_xlabel("x")
        grid[0][0].set_ylabel("t")
        for axes in (*grid[0][1:], *grid[1][1:]):
            axes.tick_params(labelleft=False)
        profile = grid[1][0]
        for name in names:
            _line(profile, name, x, np.clip(values[name][-1], low - (high - low), high + (high - low)), name)
        profile.set(xlabel="x", ylabel=task.channels[channel], ylim=_padded(low, high))
        profile.set_title(f"at t = {t[-1]:.3g}")
        profile.legend(fontsize=7.5, handlelength=2.2)
    return figure


def film_figure(task: TaskPage, sample: Sample, channel: int) -> Figure:
    """2D in time: columns are times, rows are truth, models, and the models' errors."""
    frames = np.unique(np.linspace(0, len(task.times) - 1, FILM_FRAMES).round().astype(int))
    names = [REFERENCE, *task.models]
    values = {name: values_of(sample, name)[frames][..., channel] for name in names}
    errors = {name: values[name] - values[REFERENCE] for name in task.models}
    low, high = field_limits([values[REFERENCE]])
    bound = error_limit(errors.values(), high - low)
    with matplotlib.rc_context(STYLE):
        rows = len(names) + len(errors)
        figure = Figure(
            figsize=(1.85 * len(frames) + 1, (1.85 * _tallness(task) + 0.1) * rows + 0.3), layout="constrained"
        )
        grid = figure.subplots(rows, len(frames), squeeze=False)
        for row, name in enumerate(names):
            for column in range(len(frames)):
                _plane(grid[row][column], task, values[name][column], FIELD_MAP, low, high)
            _row_name(grid[row][0], name, name)
        for row, name in enumerate(errors, start=len(names)):
            for column in range(len(frames)):
                _plane(grid[row][column], task, errors[name][column], ERROR_MAP, -bound, bound)
            _row_name(grid[row][0], f"{name} − truth", name)
        for column, frame in enumerate(frames):
            grid[0][column].set_title(f"t = {task.times[frame]:.3g}")
        fields, below = list(grid[: len(names)].flat), list(grid[len(names) :].flat)
        _bar(figure, fields, FIELD_MAP, low, high, task.channels[channel], list(values.values()))
        _bar(figure, below, ERROR_MAP, -bound, bound, "error", list(errors.values()))
    return figure


def steady_figure(task: TaskPage, samples: Sequence[Sample], channel: int) -> Figure:
    """2D steady: a row a sample; static fields, truth, models, errors, with the same limits down every column."""
    statics, models = list(samples[0].static), list(task.models)
    names = [REFERENCE, *models]
    values = {name: np.stack([values_of(s, name)[0, ..., channel] for s in samples]) for name in names}
    errors = {name: values[name] - values[REFERENCE] for name in models}
    low, high = field_limits([values[REFERENCE]])
    bound = error_limit(errors.values(), high - low)
    columns = len(statics) + len(names) + len(models)
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(1.75 * columns, (1.6 * _tallness(task) + 0.1) * len(samples) + 0.9), layout="constrained"
        )
        grid = figure.subplots(len(samples), columns, squeeze=False)
        column = 0
        for name in statics:
            stack = [np.asarray(sample.static[name], dtype=np.float64) for sample in samples]
            bottom, top = field_limits(stack)
            for axes, plane in zip(grid[:, column], stack, strict=True):
                _plane(axes, task, plane, FIELD_MAP, bottom, top)
            grid[0][column].set_title(name)
            _bar(figure, list(grid[:, column]), FIELD_MAP, bottom, top, "", stack, "bottom")
            column += 1
        fields = slice(column, column + len(names))
        for name in names:
            for axes, plane in zip(grid[:, column], values[name], strict=True):
                _plane(axes, task, plane, FIELD_MAP, low, high)
            grid[0][column].set_title(name, color=ink(name).colour)
            column += 1
        label = task.channels[channel]
        _bar(figure, list(grid[:, fields].flat), FIELD_MAP, low, high, label, list(values.values()), "bottom")
        for name in models:
            for axes, plane in zip(grid[:, column], errors[name], strict=True):
                _plane(axes, task, plane, ERROR_MAP, -bound, bound)
            grid[0][column].set_title(f"{name} − truth", color=ink(name).colour)
            column += 1
        below = list(grid[:, fields.stop :].flat)
        _bar(figure, below, ERROR_MAP, -bound, bound, "error", list(errors.values()), "bottom")
        for axes, sample in zip(grid[:, 0], samples, strict=True):
            axes.set_ylabel(_plain(sample.label), fontsize=8)
    return figure


def profiles_figure(task: TaskPage, samples: Sequence[Sample], channel: int) -> Figure:
    """1D steady: a panel a sample, truth and models as lines on one scale."""
    names = [REFERENCE, *task.models]
    low, high = field_limits([values_of(sample, REFERENCE)[..., channel] for sample in samples])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(samples), 2.9), layout="constrained")
        for axes, sample in zip(figure.subplots(1, len(samples), squeeze=False)[0], samples, strict=True):
            for name in names:
                _line(axes, name, task.axes[0], values_of(sample, name)[0, :, channel], name)
            axes.set(xlabel="x", ylabel=task.channels[channel], ylim=_padded(low, high))
            axes.set_title(_plain(sample.label))
            axes.legend(fontsize=7.5)
    return figure


def growth_figure(times: Float[ndarray, " T"], growth: Mapping[str, Float[ndarray, " T"]]) -> Figure:
    """Mean nRMSE over time, log scale; a model that stops being a number ends in a cross."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.7, 3.2), layout="constrained")
        axes = figure.subplots()
        for model, error in growth.items():
            good = np.isfinite(error)
            drawn = good & (np.where(good, error, 0) > 0)
            _line(axes, model, times[drawn], error[drawn], model if good.all() else f"{model} (not a number)")
            if not good.all() and drawn.any():
                axes.plot(times[drawn][-1], error[drawn][-1], "X", color=NOT_A_NUMBER, markersize=9)
        axes.set(yscale="log", xlabel="t", ylabel="mean nRMSE", title="Error growth in the rollout")
        _log_axis(axes.yaxis)
        axes.legend()
    return figure


def spectra_figure(spectra: Mapping[str, tuple[Num[ndarray, " K"], Float[ndarray, " K"]]], steady: bool) -> Figure:
    """Power against wave number at the final time: lost small scales show as a gap at the right."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.7, 3.2), layout="constrained")
        axes = figure.subplots()
        largest = 0.0
        for name, (k, power) in spectra.items():
            drawn = (k > 0) & np.isfinite(power) & (power > 0)
            label = display_name(name, steady)
            _line(axes, name, k[drawn], power[drawn], label if np.isfinite(power).all() else f"{label} (not a number)")
            if name == REFERENCE and drawn.any():
                largest = float(power[drawn].max())
        axes.set(xscale="log", yscale="log", xlabel="wave number |k| (waves per domain)", ylabel="power")
        axes.set_title("Spectrum" if steady else "Spectrum at the final time")
        if largest:  # single precision holds no more than this below the largest wave
            axes.set_ylim(bottom=max(axes.get_ylim()[0], largest * 1e-13), top=min(axes.get_ylim()[1], largest * 1e4))
        axes.legend()
    return figure


def training_figure(curves: Sequence[Curve]) -> Figure:
    """Loss against steps, and validation error against wall seconds: what the same time bought each model."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        drawn: dict[str, int] = {}
        for curve in curves:
            turn = drawn.get(curve.model, 0)
            drawn[curve.model] = turn + 1
            style = {
                "color": ink(curve.model).colour,
                "linestyle": ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), "-.")[turn % 4],
            }
            smooth = _smoothed(curve.loss)
            stride = max(1, len(curve.steps) // CURVE_POINTS)
            left.plot(curve.steps[::stride], curve.loss[::stride], color=style["color"], alpha=0.2, linewidth=0.7)
            left.plot(curve.steps[::stride], smooth[::stride], label=_plain(curve.label), linewidth=1.8, **style)
            if curve.validation:
                steps, values = np.array(curve.validation, dtype=np.float64).T
                seconds = np.interp(steps, curve.steps, curve.seconds)
                right.plot(
                    seconds, values, label=_plain(curve.label), linewidth=1.8, marker="osD^"[turn % 4], ms=3.5, **style
                )
        left.set(yscale="log", xlabel="step", ylabel="training loss", title="Loss")
        right.set(yscale="log", xlabel="wall seconds of training", ylabel="validation error", title="Validation")
        for axes in (left, right):
            _log_axis(axes.yaxis)
            if axes.lines:
                axes.legend(fontsize=8)
    return figure


def solver_figure(solver: SolverComparison) -> Figure:
    """Error against seconds a trajectory: the solver at several resolutions, and the model as a star."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.7, 3.2), layout="constrained")
        axes = figure.subplots()
        rows = sorted(solver.rows, key=lambda row: row.seconds)
        seconds, errors = [row.seconds for row in rows], [row.nrmse for row in rows]
        axes.plot(seconds, errors, "o-", color=ink("solver").colour, linewidth=1.6, label="solver, points per axis")
        for row in rows:
            axes.annotate(
                str(row.points), (row.seconds, row.nrmse), xytext=(5, 4), textcoords="offset points", fontsize=8
            )
        axes.plot(solver.model_seconds, solver.model_nrmse, "*", color=ink("UPS").colour, markersize=15, label="UPS")
        axes.set(xscale="log", yscale="log", xlabel="seconds a trajectory", ylabel="nRMSE")
        axes.set_title("Cost of accuracy: lower left is better")
        axes.margins(0.12)
        _log_axis(axes.xaxis)
        _log_axis(axes.yaxis)
        axes.legend()
    return figure


def _image(axes: Axes, x: ndarray, y: ndarray, values: Float[ndarray, "X Y"], colours: str, low: float, high: float):
    """One panel, x to the right and y upwards, with what is not a number in its own colour and said in words."""
    table = matplotlib.colormaps[colours].with_extremes(bad=NOT_A_NUMBER)
    bad = ~np.isfinite(values)
    axes.pcolormesh(x, y, np.where(bad, np.nan, values).T, cmap=table, vmin=low, vmax=high, shading="nearest")
    axes.grid(visible=False)
    if bad.any():
        axes.text(
            0.5, 0.5, "not a number", transform=axes.transAxes, ha="center", va="center", color="white", weight="bold",
            bbox={"facecolor": NOT_A_NUMBER, "edgecolor": "white", "boxstyle": "round,pad=0.4"},
        )  # fmt: skip


def _plane(axes: Axes, task: TaskPage, values: Float[ndarray, "X Y"], colours: str, low: float, high: float) -> None:
    _image(axes, task.axes[0], task.axes[1], values, colours, low, high)
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _tallness(task: TaskPage) -> float:
    """Height over width of the domain, within what a page bears."""
    x, y = (float(axis[-1] - axis[0]) or 1.0 for axis in task.axes)
    return float(np.clip(y / x, 0.2, 3))


def _log_axis(axis: Axis) -> None:
    """Ticks in plain numbers (0.02, 0.05): readers should not decode exponents where few decades are shown."""
    low, high = axis.get_view_interval()
    few = low > 0 and np.log10(high / low) < 2.5
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    if few:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _row_name(axes: Axes, text: str, name: str) -> None:
    axes.set_ylabel(text, color=ink(name).colour, weight="bold")


def _bar(
    figure: Figure,
    axes: list[Axes],
    colours: str,
    low: float,
    high: float,
    label: str,
    shown: Sequence[ndarray],
    location: str = "right",
) -> None:
    """One colour bar for all of `axes`; its ends are pointed where values lie outside the limits."""
    values = np.concatenate([np.ravel(v) for v in shown])
    values = values[np.isfinite(values)]
    tolerance = 1e-6 * (high - low)
    under, over = bool((values < low - tolerance).any()), bool((values > high + tolerance).any())
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[under, over]
    scale = ScalarMappable(Normalize(low, high), colours)
    bar = figure.colorbar(scale, ax=axes, location=location, extend=extend, aspect=24, pad=0.02, label=_plain(label))
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(labelsize=7.5)
    bar.ax.locator_params(nbins=5 if location == "right" else 4)


def _line(axes: Axes, model: str, x: ndarray, y: ndarray, label: str) -> None:
    pen = ink(model)
    style = (0, pen.dash) if pen.dash else "-"
    axes.plot(x, y, color=pen.colour, linewidth=pen.width, linestyle=style, label=_plain(label))


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = 0.08 * (high - low)
    return low - margin, high + margin


def _plain(text: str) -> str:
    """Text as it is: a dollar sign in a label must not start matplotlib's mathematics."""
    return text.replace("$", r"\$")


def _smoothed(values: Float[ndarray, " S"]) -> Float[ndarray, " S"]:
    """Centred running median over about a twentieth of the curve, for the eye; the raw values are drawn behind it."""
    half = len(values) // 40
    padded = np.pad(np.asarray(values, dtype=np.float64), half, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=-1)
