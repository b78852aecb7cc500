"""Pictures of fields and errors, each a function from data to a matplotlib figure; no pyplot, so no global state.

Fields of one picture share one pair of colour limits and errors share another (`limits.py`). With many predictors a
picture is wrapped, or shows the model's field alone beside everybody's errors: a page has one width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import ndarray

from ups.report.contents import Sample, TaskPage, values_of
from ups.report.drawing import STYLE, colour_bar, image, line, name_lines, plain
from ups.report.legend import REFERENCE
from ups.report.limits import error_limit, field_limits
from ups.report.palette import ERROR_MAP, FIELD_MAP

FILM_FRAMES = 5
MOST_COLUMNS = 5
MOST_WIDTH = 12.4
"""Inches, of which a page shows so many without shrinking the text beyond reading."""
MOST_FIELDS = 3
"""So many predictors are drawn with field and error; of more, only the model's field is."""


def space_time_figure(task: TaskPage, sample: Sample, channel: int) -> Figure:
    """1D in time: truth and predictors over (x, t), each one's error below it, and the last profile below the truth."""
    names = [REFERENCE, *task.pictured]
    values = {name: values_of(sample, name)[..., channel] for name in names}
    errors = {name: values[name] - values[REFERENCE] for name in task.pictured}
    low, high = field_limits([values[REFERENCE]])
    bound = error_limit(errors.values(), high - low)
    x, t = task.axes[0], task.times
    blocks = math.ceil(len(names) / MOST_COLUMNS)
    columns = math.ceil(len(names) / blocks)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(min(3.1 * columns, MOST_WIDTH) + 0.9, 5.2 * blocks), layout="constrained")
        grid = figure.subplots(2 * blocks, columns, squeeze=False)
        for place, name in enumerate(names):
            row, column = 2 * (place // columns), place % columns
            _over_time(grid[row][column], x, t, values[name], FIELD_MAP, low, high)
            _title(grid[row][column], task, name)
            if name != REFERENCE:
                _over_time(grid[row + 1][column], x, t, errors[name], ERROR_MAP, -bound, bound)
                _title(grid[row + 1][column], task, name, " − truth")
        for empty in range(len(names), blocks * columns):
            grid[-2][empty % columns].set_visible(False)
            grid[-1][empty % columns].set_visible(False)
        for row in range(0, 2 * blocks, 2):
            label = task.channels[channel]
            colour_bar(figure, list(grid[row]), FIELD_MAP, low, high, label, list(values.values()))
            colour_bar(figure, list(grid[row + 1]), ERROR_MAP, -bound, bound, "error", list(errors.values()))
        for axes in grid[:, 1:].flat:
            axes.tick_params(labelleft=False)
        for axes in (grid[0][0], *grid[2:, 0]):
            axes.set_ylabel("t")
        profile = grid[1][0]
        for name in names:
            final = np.clip(values[name][-1], low - (high - low), high + (high - low))
            line(profile, task.legend.ink(name), x, final, task.legend.title(name))
        profile.set(xlabel="x", ylabel=task.channels[channel], ylim=_padded(low, high))
        profile.set_title(f"at t = {t[-1]:.3g}")
        if len(names) <= 4:  # else the titles' colours say who is who
            profile.legend(fontsize=7.5, handlelength=2.2)
    return figure


def film_figure(task: TaskPage, sample: Sample, channel: int) -> Figure:
    """2D in time: columns are times, rows are truth, predictors, and the predictors' errors."""
    frames = np.unique(np.linspace(0, len(task.times) - 1, FILM_FRAMES).round().astype(int))
    values = {name: values_of(sample, name)[frames][..., channel] for name in (REFERENCE, *task.pictured)}
    errors = {name: values[name] - values[REFERENCE] for name in task.pictured}
    names = _with_field(task)
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
            _row_name(grid[row][0], task, name)
        for row, name in enumerate(errors, start=len(names)):
            for column in range(len(frames)):
                _plane(grid[row][column], task, errors[name][column], ERROR_MAP, -bound, bound)
            _row_name(grid[row][0], task, name, " − truth")
        for column, frame in enumerate(frames):
            grid[0][column].set_title(f"t = {task.times[frame]:.3g}")
        fields, below = list(grid[: len(names)].flat), list(grid[len(names) :].flat)
        colour_bar(figure, fields, FIELD_MAP, low, high, task.channels[channel], [values[name] for name in names])
        colour_bar(figure, below, ERROR_MAP, -bound, bound, "error", list(errors.values()))
    return figure


def steady_figure(task: TaskPage, samples: Sequence[Sample], channel: int) -> Figure:
    """2D steady: a row a sample; static fields, truth, predictors, errors, with the same limits down every column."""
    statics = list(samples[0].static)
    values = {
        name: np.stack([values_of(s, name)[0, ..., channel] for s in samples]) for name in (REFERENCE, *task.pictured)
    }
    errors = {name: values[name] - values[REFERENCE] for name in task.pictured}
    names = _with_field(task)
    low, high = field_limits([values[REFERENCE]])
    bound = error_limit(errors.values(), high - low)
    columns = len(statics) + len(names) + len(errors)
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(1.75 * columns, (1.6 * _tallness(task) + 0.1) * len(samples) + 0.9), layout="constrained"
        )
        grid = figure.subplots(len(samples), columns, squeeze=False)
        for column, name in enumerate(statics):
            stack = [np.asarray(sample.static[name], dtype=np.float64) for sample in samples]
            bottom, top = field_limits(stack)
            for axes, plane in zip(grid[:, column], stack, strict=True):
                _plane(axes, task, plane, FIELD_MAP, bottom, top)
            grid[0][column].set_title(plain(name))
            colour_bar(figure, list(grid[:, column]), FIELD_MAP, bottom, top, "", stack, "bottom")
        fields = grid[:, len(statics) : len(statics) + len(names)]
        for column, name in enumerate(names):
            for axes, plane in zip(fields[:, column], values[name], strict=True):
                _plane(axes, task, plane, FIELD_MAP, low, high)
            _title(fields[0][column], task, name)
        shown = [values[name] for name in names]
        colour_bar(figure, list(fields.flat), FIELD_MAP, low, high, task.channels[channel], shown, "bottom")
        below = grid[:, len(statics) + len(names) :]
        for column, name in enumerate(errors):
            for axes, plane in zip(below[:, column], errors[name], strict=True):
                _plane(axes, task, plane, ERROR_MAP, -bound, bound)
            _title(below[0][column], task, name, " − truth")
        colour_bar(figure, list(below.flat), ERROR_MAP, -bound, bound, "error", list(errors.values()), "bottom")
        for axes, sample in zip(grid[:, 0], samples, strict=True):
            axes.set_ylabel(plain(sample.label), fontsize=8)
    return figure


def profiles_figure(task: TaskPage, samples: Sequence[Sample], channel: int) -> Figure:
    """1D steady: a panel a sample, truth and predictors as lines on one scale."""
    names = [REFERENCE, *task.pictured]
    low, high = field_limits([values_of(sample, REFERENCE)[..., channel] for sample in samples])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(samples), 3.1), layout="constrained")
        row = figure.subplots(1, len(samples), squeeze=False)[0]
        for axes, sample in zip(row, samples, strict=True):
            for name in names:
                values = values_of(sample, name)[0, :, channel]
                line(axes, task.legend.ink(name), task.axes[0], values, task.legend.title(name))
            axes.set(xlabel="x", ylabel=task.channels[channel], ylim=_padded(low, high))
            axes.set_title(plain(sample.label))
        name_lines(figure, row[0], size=8, columns=2 * len(samples))
    return figure


def draws_every_field(task: TaskPage) -> bool:
    """Whether a picture of planes has room for everybody's field beside the errors."""
    return len(task.pictured) <= MOST_FIELDS


def _with_field(task: TaskPage) -> list[str]:
    return [REFERENCE, *(task.pictured if draws_every_field(task) else task.pictured[:1])]


def _over_time(
    axes: Axes, x: ndarray, t: ndarray, values: Float[ndarray, "T X"], colours: str, low: float, high: float
) -> None:
    image(axes, x, t, values.T, colours, low, high)
    axes.set_xlabel("x")


def _title(axes: Axes, task: TaskPage, name: str, suffix: str = "") -> None:
    axes.set_title(plain(task.legend.title(name)) + suffix, color=task.legend.ink(name).colour)


def _row_name(axes: Axes, task: TaskPage, name: str, suffix: str = "") -> None:
    axes.set_ylabel(plain(task.legend.title(name)) + suffix, color=task.legend.ink(name).colour, weight="bold")


def _plane(axes: Axes, task: TaskPage, values: Float[ndarray, "X Y"], colours: str, low: float, high: float) -> None:
    image(axes, task.axes[0], task.axes[1], values, colours, low, high)
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _tallness(task: TaskPage) -> float:
    """Height over width of the domain, within what a page bears."""
    x, y = (float(axis[-1] - axis[0]) or 1.0 for axis in task.axes)
    return float(np.clip(y / x, 0.2, 3))


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = 0.08 * (high - low)
    return low - margin, high + margin
