"""A box as the eye sees it from a corner: the three faces that are turned to it, in truth, prediction and error."""

from __future__ import annotations

import math

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import Affine2D
from numpy import ndarray

from ups.report.contents import Sample, TaskPage, values_of
from ups.report.drawing import colour_bar, error_limit, field_limits, plain, styled
from ups.report.legend import ERROR_MAP, FIELD_MAP, NOT_A_NUMBER, OUTSIDE, REFERENCE

SLANT = math.cos(math.pi / 6), math.sin(math.pi / 6)
"""How far right and up a step along x goes; along y it is as far left."""


@styled
def box_figure(task: TaskPage, sample: Sample, channel: int) -> Figure:
    """3D at the last time: truth and model on one scale, and the model's error on its own."""
    model = task.legend.model
    truth, own = (values_of(sample, name)[-1, ..., channel] for name in (REFERENCE, model))
    low, high = field_limits([truth])
    bound = error_limit([own - truth], high - low)
    panels = ((truth, FIELD_MAP, low, high), (own, FIELD_MAP, low, high), (own - truth, ERROR_MAP, -bound, bound))
    figure = Figure(figsize=(9.6, 3.3), layout="constrained")
    row = figure.subplots(1, 3)
    titles = (task.legend.title(REFERENCE), task.legend.title(model), f"{task.legend.title(model)} − truth")
    sides = [float(axis[-1] - axis[0]) * len(axis) / max(1, len(axis) - 1) for axis in task.axes]
    for axes, (volume, colours, smallest, largest), title in zip(row, panels, titles, strict=True):
        _box(axes, volume, sides, colours, smallest, largest, sample.mask)
        axes.set_title(plain(title))
    colour_bar(figure, list(row[:2]), FIELD_MAP, low, high, task.channels[channel], [truth, own])
    colour_bar(figure, [row[2]], ERROR_MAP, -bound, bound, "error", [own - truth])
    return figure


def _box(
    axes: Axes,
    volume: Float[ndarray, "X Y Z"],
    sides: list[float],
    colours: str,
    low: float,
    high: float,
    mask: Bool[ndarray, "X Y Z"] | None,
) -> None:
    """Seen from beyond x = 0, y = 0 and above: the faces x = 0, y = 0, and the top."""
    (right, up), (x, y, z) = SLANT, sides
    table = matplotlib.colormaps[colours].with_extremes(bad=NOT_A_NUMBER)
    faces = (  # and where a step along its first and its second axis goes on the paper, and the corner it begins at
        (np.s_[:, :, -1], x * right, x * up, -y * right, y * up, 0.0, z),
        (np.s_[:, 0], x * right, x * up, 0.0, z, 0.0, 0.0),
        (np.s_[0], -y * right, y * up, 0.0, z, 0.0, 0.0),
    )
    for face, *steps in faces:
        painted = table((np.ma.masked_invalid(volume[face].T) - low) / ((high - low) or 1.0))
        if mask is not None:
            painted[~mask[face].T] = to_rgba(OUTSIDE)
        where = Affine2D.from_values(*steps)
        shown = axes.imshow(painted, origin="lower", extent=(0, 1, 0, 1), interpolation="nearest")
        shown.set_transform(where + axes.transData)
        outline = Rectangle((0, 0), 1, 1, fill=False, edgecolor="#333333", linewidth=0.7, clip_on=False)
        outline.set_transform(where + axes.transData)
        axes.add_patch(outline)
    axes.set(xlim=(-y * right, x * right), ylim=(0, (x + y) * up + z), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    for text, place in (("x", (x * right / 2, x * up / 2)), ("y", (-y * right / 2, y * up / 2))):
        axes.annotate(text, place, (0, -9), textcoords="offset points", ha="center", va="top", fontsize=8)
    axes.annotate("z", (x * right, x * up + z / 2), (5, 0), textcoords="offset points", va="center", fontsize=8)
