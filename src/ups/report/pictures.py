"""Pictures of fields and errors, each a function from data to a matplotlib figure; no pyplot, so no global state.

Fields of one picture share one pair of colour limits and errors share another (`drawing.py`). With many predictors a
picture is wrapped, or shows the model's field alone beside everybody's errors: a page has one width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy import ndarray

from ups.report.contents import Sample, TaskPage, static_of, times_of, values_of
from ups.report.drawing import colour_bar, error_limit, field_limits, image, line, name_lines, plain, styled
from ups.report.legend import ERROR_MAP, FIELD_MAP, REFERENCE

FILM_FRAMES = 5
MOST_COLUMNS = 5
MOST_WIDTH = 12.4
"""Inches, of which a page shows so many without shrinking the text beyond reading."""
MOST_FIELDS = 3
"""So many predictors are drawn with field and error; of more, only the model's field is."""


Axis = Float[ndarray, "_"]
"""The positions of points along it."""


@dataclass(frozen=True, eq=False)
class Band:
    """Fields, or errors, that share a colour map, its limits and a bar: planes or frames by predictor."""

    planes: Mapping[str, Any]
    scale: tuple[str, float, float]
    label: str
    suffix: str = ""


def _bands(task: TaskPage, fields: Mapping[str, ndarray], channel: int) -> tuple[Band, Band]:
    """Everybody's fields, and the predictors' errors."""
    errors = {name: fields[name] - fields[REFERENCE] for name in task.pictured}
    low, high = field_limits([fields[REFERENCE]])
    bound = error_limit(errors.values(), high - low)
    return (
        Band(fields, (FIELD_MAP, low, high), task.channels[channel]),
        Band(errors, (ERROR_MAP, -bound, bound), "error", " − truth"),
    )


@styled
def space_time_figure(task: TaskPage, sample: Sample, channel: int) -> Figure:
    """1D in time: truth and predictors over (x, t), each one's error below it, and the last profile below the truth."""
    names = [REFERENCE, *task.pictured]
    bands = _bands(task, {name: values_of(sample, name)[..., channel] for name in names}, channel)
    x, t = task.axes[0], times_of(task, sample)
    outside = None if sample.mask is None else np.repeat(~sample.mask[:, None], len(t), 1)
    blocks = math.ceil(len(names) / MOST_COLUMNS)
    columns = math.ceil(len(names) / blocks)
    figure = Figure(figsize=(min(3.1 * columns, MOST_WIDTH) + 0.9, 5.2 * blocks), layout="constrained")
    grid = figure.subplots(2 * blocks, columns, squeeze=False)
    for place, name in enumerate(names):
        row, column = 2 * (place // columns), place % columns
        for axes, band in zip(grid[row : row + 2, column], bands, strict=True):
            if name in band.planes:
                image(axes, x, t, band.planes[name].T, *band.scale, outside)
                axes.set_xlabel("x")
                _title(axes, task, name, band.suffix)
    for empty in range(len(names), blocks * columns):
        grid[-2][empty % columns].set_visible(False)
        grid[-1][empty % columns].set_visible(False)
    for row, panels in enumerate(grid):
        band = bands[row % 2]
        colour_bar(figure, list(panels), *band.scale, band.label, list(band.planes.values()))
    for axes in grid[:, 1:].flat:
        axes.tick_params(labelleft=False)
    for axes in (grid[0][0], *grid[2:, 0]):
        axes.set_ylabel("t")
    profile, (_, low, high) = grid[1][0], bands[0].scale
    for name in names:
        final = np.clip(bands[0].planes[name][-1], low - (high - low), high + (high - low))
        line(profile, task.legend.ink(name), x, final, task.legend.title(name))
    profile.set(xlabel="x", ylabel=task.channels[channel], ylim=_padded(low, high))
    profile.set_title(f"at t = {t[-1]:.3g}")
    if len(names) <= 4:  # else the titles' colours say who is who
        profile.legend(fontsize=7.5, handlelength=2.2)
    return figure


@styled
def film_figure(task: TaskPage, sample: Sample, channel: int) -> Figure:
    """2D in time: columns are times, rows are truth, predictors, and the predictors' errors."""
    frames = np.unique(np.linspace(0, len(task.times) - 1, FILM_FRAMES).round().astype(int))
    fields = {name: values_of(sample, name)[frames][..., channel] for name in (REFERENCE, *task.pictured)}
    bands = _with_room(task, _bands(task, fields, channel))
    rows = sum(len(band.planes) for band in bands)
    figure = Figure(
        figsize=(1.85 * len(frames) + 1, (1.85 * _tallness(task.axes) + 0.1) * rows + 0.3), layout="constrained"
    )
    grid = figure.subplots(rows, len(frames), squeeze=False)
    outside = [] if sample.mask is None else [~sample.mask] * len(frames)
    _planes(figure, grid, task, bands, _row_name, "right", outside=outside)
    for axes, time in zip(grid[0], times_of(task, sample)[frames], strict=True):
        axes.set_title(f"t = {time:.3g}")
    return figure


@styled
def steady_figure(task: TaskPage, samples: Sequence[Sample], channel: int) -> Figure:
    """2D steady: a row a sample; static fields, truth, predictors, errors, with the same limits down every column."""
    fields = {
        name: np.stack([values_of(s, name)[0, ..., channel] for s in samples]) for name in (REFERENCE, *task.pictured)
    }
    bands = _with_room(task, _bands(task, fields, channel))
    statics = {name: np.stack([static_of(s, name) for s in samples]) for name in samples[0].static}
    given = [Band({name: stack}, (FIELD_MAP, *field_limits([stack])), "") for name, stack in statics.items()]
    columns = len(given) + sum(len(band.planes) for band in bands)
    figure = Figure(
        figsize=(1.75 * columns, (1.6 * _tallness(task.axes) + 0.1) * len(samples) + 0.9), layout="constrained"
    )
    grid = figure.subplots(len(samples), columns, squeeze=False)
    outside = [~sample.mask for sample in samples if sample.mask is not None]
    named = (lambda axes, _, name, __: axes.set_title(plain(name)), "bottom")
    _planes(figure, grid.T, task, given, *named, outside=outside)
    _planes(figure, grid.T[len(given) :], task, bands, _title, "bottom", outside=outside)
    for axes, sample in zip(grid[:, 0], samples, strict=True):
        axes.set_ylabel(plain(sample.label), fontsize=8)
    return figure


@styled
def cuts_figure(task: TaskPage, sample: Sample, channel: int) -> Figure:
    """3D at the last time: columns are the planes through the middle and the mean along z, rows as in a film."""
    fields = {name: values_of(sample, name)[-1, ..., channel] for name in (REFERENCE, *task.pictured)}
    bands = _with_room(task, _bands(task, fields, channel))
    mask = np.ones(bands[0].planes[REFERENCE].shape, bool) if sample.mask is None else sample.mask
    cut = [replace(band, planes={name: _cuts(volume, mask) for name, volume in band.planes.items()}) for band in bands]
    outside = [] if sample.mask is None else [np.isnan(plane) for plane in _cuts(np.where(mask, 0.0, np.nan), mask)]
    x, y, z = task.axes
    spans = [(y, z), (x, z), (x, y), (x, y)]
    rows = sum(len(band.planes) for band in bands)
    tallest = max(_tallness(span) for span in spans)
    figure = Figure(figsize=(1.85 * len(spans) + 1, (1.85 * tallest + 0.1) * rows + 0.3), layout="constrained")
    grid = figure.subplots(rows, len(spans), squeeze=False)
    _planes(figure, grid, task, cut, _row_name, "right", spans, outside)
    middles = [f"{name} = {axis[len(axis) // 2]:.3g}" for name, axis in zip("xyz", task.axes, strict=True)]
    for axes, title in zip(grid[0], [*middles, "mean along z"], strict=True):
        axes.set_title(title)
    for axes, (right, up) in zip(grid[-1], ("yz", "xz", "xy", "xy"), strict=True):
        axes.set_xlabel(f"{right} to the right, {up} up", fontsize=7.5)
    return figure


def _cuts(volume: Float[ndarray, "X Y Z"], mask: Bool[ndarray, "X Y Z"]) -> list[Float[ndarray, "_ _"]]:
    """The mean is of the cells inside the domain, NaN where there are none."""
    x, y, z = (n // 2 for n in volume.shape)
    count = mask.sum(2)
    total = np.where(mask, volume, 0.0).sum(2)
    return [volume[x], volume[:, y], volume[:, :, z], np.where(count > 0, total / np.maximum(count, 1), np.nan)]


@styled
def profiles_figure(task: TaskPage, samples: Sequence[Sample], channel: int) -> Figure:
    """1D steady: a panel a sample, truth and predictors as lines on one scale."""
    names = [REFERENCE, *task.pictured]
    low, high = field_limits([values_of(sample, REFERENCE)[..., channel] for sample in samples])
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


def _with_room(task: TaskPage, bands: tuple[Band, Band]) -> tuple[Band, Band]:
    """Without the fields that there is no room for."""
    shown = [REFERENCE, *(task.pictured if draws_every_field(task) else task.pictured[:1])]
    return replace(bands[0], planes={name: bands[0].planes[name] for name in shown}), bands[1]


def _planes(
    figure: Figure,
    lines: ndarray,
    task: TaskPage,
    bands: Sequence[Band],
    named: Callable[[Axes, TaskPage, str, str], Any],
    bar: str,
    spans: Sequence[tuple[Axis, Axis]] = (),
    outside: Sequence[Bool[ndarray, "_ _"]] = (),
) -> None:
    """The bands one after another, each predictor on a line of axes (a row, or a column) that begins with its name.
    `spans` are the positions along both axes of each plane of a line, where they are not all the task's; `outside` says
    where each plane is outside the domain.
    """
    for band in bands:
        own, lines = lines[: len(band.planes)], lines[len(band.planes) :]
        for panels, (name, planes) in zip(own, band.planes.items(), strict=True):
            for place, (axes, values) in enumerate(zip(panels, planes, strict=True)):
                x, y = spans[place] if spans else (task.axes[0], task.axes[1])
                image(axes, x, y, values, *band.scale, outside[place] if outside else None)
                axes.set(aspect="equal", xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            named(panels[0], task, name, band.suffix)
        shown = [plane for planes in band.planes.values() for plane in planes]
        colour_bar(figure, list(own.flat), *band.scale, band.label, shown, bar)


def _title(axes: Axes, task: TaskPage, name: str, suffix: str) -> None:
    axes.set_title(plain(task.legend.title(name)) + suffix, color=task.legend.ink(name).colour)


def _row_name(axes: Axes, task: TaskPage, name: str, suffix: str) -> None:
    axes.set_ylabel(plain(task.legend.title(name)) + suffix, color=task.legend.ink(name).colour, weight="bold")


def _tallness(span: Sequence[Axis]) -> float:
    """Height over width of a plane, within what a page bears."""
    x, y = (float(axis[-1] - axis[0]) or 1.0 for axis in span)
    return float(np.clip(y / x, 0.2, 3))


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = 0.08 * (high - low)
    return low - margin, high + margin
