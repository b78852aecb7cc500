"""What all figures of the report share: the style, lines in a predictor's ink, its legend, images and colour bars.

Colour and axis limits are one pair for all fields of a picture, one for all errors, so that panels can be compared.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Bool, Float, Num
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from numpy import ndarray

from ups.report.legend import NOT_A_NUMBER, OUTSIDE, Ink

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
MOST_INSIDE = 4
"""Entries of a legend that fit beside the curves; more are written under them."""
ERROR_QUANTILE = 0.995


styled = matplotlib.rc_context(STYLE)
"""Decorates what makes a figure; no pyplot, so no global state."""


@styled
def render(figure: Figure, kind: str) -> bytes:
    """The figure as an SVG or a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def line(axes: Axes, ink: Ink, x: Num[ndarray, " n"], y: Num[ndarray, " n"], label: str) -> None:
    style = (0, ink.dash) if ink.dash else "-"
    axes.plot(x, y, color=ink.colour, linewidth=ink.width, linestyle=style, label=plain(label))


def name_lines(figure: Figure, axes: Axes, size: float = 9, columns: int = 3) -> None:
    """The names of the lines: inside the axes while they are few, else under them, where they cover no curve."""
    handles, names = axes.get_legend_handles_labels()
    if 0 < len(names) <= MOST_INSIDE:
        axes.legend(fontsize=size, handlelength=2.6)
    elif names:
        figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=size - 1, handlelength=3.2)


def image(
    axes: Axes,
    x: Num[ndarray, " X"],
    y: Num[ndarray, " Y"],
    values: Float[ndarray, "X Y"],
    colours: str,
    low: float,
    high: float,
    outside: Bool[ndarray, "X Y"] | None = None,
) -> None:
    """One panel, x to the right and y upwards, with what is not a number in its own colour and said in words, and what
    is `outside` the domain in grey.
    """
    table = matplotlib.colormaps[colours].with_extremes(bad=NOT_A_NUMBER)
    bad = ~np.isfinite(values)
    axes.pcolormesh(x, y, np.where(bad, np.nan, values).T, cmap=table, vmin=low, vmax=high, shading="nearest")
    if outside is not None:
        bad &= ~outside
        axes.pcolormesh(x, y, np.where(outside, 0.0, np.nan).T, cmap=ListedColormap([OUTSIDE]), shading="nearest")
    axes.grid(visible=False)
    if bad.any():
        axes.text(
            0.5, 0.5, "not a number", transform=axes.transAxes, ha="center", va="center", color="white", weight="bold",
            bbox={"facecolor": NOT_A_NUMBER, "edgecolor": "white", "boxstyle": "round,pad=0.4"},
        )  # fmt: skip


def colour_bar(
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
    specs = [place.get_subplotspec() for place in axes]
    along = {spec.rowspan.start if location == "right" else spec.colspan.start for spec in specs if spec}
    aspect = max(24, (10 if location == "right" else 20) * len(along))  # as thick beside five panels as beside one
    bar = figure.colorbar(scale, ax=axes, location=location, extend=extend, aspect=aspect, pad=0.02, label=plain(label))
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(labelsize=7.5)
    bar.ax.locator_params(nbins=5 if location == "right" else 4)


def plain(text: str) -> str:
    """Text as it is: a dollar sign in a label must not start matplotlib's mathematics."""
    return text.replace("$", r"\$")


def field_limits(truths: Iterable[Float[ndarray, "..."]]) -> tuple[float, float]:
    """The smallest and largest finite value of the truths alone: a model that explodes must not blank the others."""
    finite = _finite(truths)
    if finite.size == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if low == high:  # a constant field still needs a scale
        margin = abs(low) or 1.0
        return low - margin, high + margin
    return low, high


def error_limit(errors: Iterable[Float[ndarray, "..."]], field_span: float) -> float:
    """The m of the shared limits ±m: 99.5 % of all models' finite |errors| lie within; at most the field's span.

    The quantile keeps one shock point from blanking the rest, the span keeps one exploded model from doing so.
    """
    finite = np.abs(_finite(errors))
    if finite.size == 0:
        return field_span
    return min(float(np.quantile(finite, ERROR_QUANTILE)) or float(finite.max()), field_span) or field_span


def _finite(arrays: Iterable[Float[ndarray, "..."]]) -> Float[ndarray, " n"]:
    flat = np.concatenate([np.ravel(np.asarray(a, dtype=np.float64)) for a in arrays] or [np.empty(0)])
    return flat[np.isfinite(flat)]
