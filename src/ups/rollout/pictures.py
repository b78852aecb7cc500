"""Pictures of a rollout: fields over time, beside the truth, and energy by wave number. No pyplot, so no global state.

Fields of one picture share one pair of colour limits, errors another; the colour maps read the same to all common
colour visions.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ups import metrics
from ups.durable import write
from ups.errors import UserError
from ups.fields import Grid

if TYPE_CHECKING:
    from ups.rollout.result import Rollout

FIELD_MAP, ERROR_MAP = "viridis", "RdBu_r"
COLOURS = ("#1b1b1b", "#0072b2", "#d55e00", "#2a8f84", "#aa3377")
FRAMES = 5
LINES = 4
KINDS = (".png", ".pdf", ".svg")
_STYLE: dict[Any, Any] = {"font.size": 9, "axes.titlesize": 9.5, "axes.spines.top": False, "axes.spines.right": False}
styled = matplotlib.rc_context(_STYLE)


@dataclass(frozen=True, eq=False)
class Picture:
    """A matplotlib figure that notebooks show and `save` keeps."""

    figure: Figure

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        check_path(path)
        write(path, self._rendered(path.suffix[1:].lower()))
        return path

    def _rendered(self, kind: str) -> bytes:
        buffer = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            self.figure.savefig(buffer, format=kind, dpi=120)
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self._rendered("png")

    def _repr_html_(self) -> str:
        return embedded(self._rendered("png"), "png")


def check_path(path: Path, kinds: Sequence[str] = KINDS) -> None:
    """Refuse, before anything is drawn, a path that no picture can be written to."""
    if path.suffix.lower() not in kinds:
        raise UserError(f"{path}: a picture's name ends in {', '.join(kinds)}")
    if not path.absolute().parent.is_dir():
        raise UserError(f"there is no folder {path.parent} for {path.name}; make it, or give another path")


def embedded(picture: bytes, kind: str) -> str:
    return f'<img alt="" style="max-width:100%" src="data:image/{kind};base64,{base64.b64encode(picture).decode()}">'


def table(said: Sequence[tuple[str, str]]) -> str:
    """Lines of a `repr` as HTML."""
    rows = (f"<tr><th>{html.escape(what)}</th><td>{html.escape(value)}</td></tr>" for what, value in said)
    return f'<table style="text-align:left">{"".join(rows)}</table>'


@styled
def draw(rollout: Rollout, channels: Sequence[int], sample: int) -> Picture:
    values = rollout.samples[sample].double().numpy()
    if rollout.dimension == 1:
        figure, rows = panels(len(channels), 2 if isinstance(rollout.where, Grid) else 1, 3.6, 2.7)
        for row, channel in zip(rows, channels, strict=True):
            field = values[..., channel]
            if isinstance(rollout.where, Grid):
                space_time(figure, row[0], rollout, field, channel, limits(field))
            _profiles(row[-1], rollout, field, channel)
        return Picture(figure)
    chosen = picked(len(rollout.times), FRAMES)
    figure, rows = panels(len(channels), len(chosen), 2.1, 2.1 * tallness(rollout))
    for row, channel in zip(rows, channels, strict=True):
        film_strip(figure, row, rollout, values[chosen][..., channel], channel, limits(values[..., channel]))
    name_times(rows[0], rollout, chosen)
    return Picture(figure)


@styled
def draw_comparison(
    rollout: Rollout, truth: Rollout, errors: Float[Tensor, "N T C"], channels: Sequence[int], sample: int
) -> Picture:
    both = [each.samples[sample].double().numpy() for each in (truth, rollout)]
    names = ("truth", "rollout", "rollout − truth")
    if rollout.dimension == 1 and isinstance(rollout.where, Grid):
        figure, rows = panels(len(channels), 4, 2.9, 2.6)
        for row, channel in zip(rows, channels, strict=True):
            right, ours = (each[..., channel] for each in both)
            span = limits(right)
            for axes, field, name in zip(row, (right, ours, ours - right), names, strict=False):
                off = name == names[2]
                space_time(figure, axes, rollout, field, channel, _about(field) if off else span, off)
                axes.set_title(name)
            _error_line(row[-1], rollout, errors[sample, :, channel].numpy())
        return Picture(figure)
    if rollout.dimension == 1:
        raise UserError("a comparison is drawn of values on a grid; `errors` has those at points")
    chosen = picked(len(rollout.times), FRAMES)
    figure, rows = panels(3 * len(channels), len(chosen), 2.1, 2.1 * tallness(rollout))
    for number, channel in enumerate(channels):
        right, ours = (each[chosen][..., channel] for each in both)
        span = limits(both[0][..., channel])
        for row, field, name in zip(rows[3 * number :], (right, ours, ours - right), names, strict=False):
            off = name == names[2]
            film_strip(figure, row, rollout, field, channel, _about(field) if off else span, off)
            row[0].set_ylabel(f"{name}\n{row[0].get_ylabel()}")
    name_times(rows[0], rollout, chosen)
    return Picture(figure)


@styled
def draw_spectrum(rollouts: Mapping[str, Rollout], channel: int, sample: int) -> Picture:
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    axes, first = figure.subplots(), next(iter(rollouts.values()))
    chosen = sorted({0, len(first.times) // 2, len(first.times) - 1})
    for dash, (name, rollout) in zip(("-", "--"), rollouts.items(), strict=False):
        waves, energy = metrics.power_spectrum(rollout.samples[sample : sample + 1, chosen])
        for colour, frame, row in zip(COLOURS, chosen, energy[0, ..., channel].numpy(), strict=False):
            label = f"{name} {when(rollout, frame)}".strip()
            axes.loglog(waves[1:].numpy(), np.maximum(row[1:], 1e-300), dash, color=colour, label=label)
    top = max(line.get_ydata().max() for line in axes.lines)  # pyright: ignore[reportAttributeAccessIssue]
    axes.set(xlabel="waves per domain", ylabel=f"energy of {first.channels[channel]}", ylim=(1e-14 * top, 3 * top))
    axes.legend(fontsize=7.5, frameon=False)
    return Picture(figure)


def limits(values: Float[np.ndarray, "..."]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    margin = (abs(low) or 1.0) * 1e-3 if low == high else 0.0
    return low - margin, high + margin


def plane(values: Float[np.ndarray, "... X Y"] | Float[np.ndarray, "... X Y Z"], dimension: int) -> np.ndarray:
    """The middle plane in z of what has three dimensions."""
    return values[..., values.shape[-1] // 2] if dimension == 3 else values


def box(where: Grid) -> tuple[float, float, float, float]:
    return (*where.extent[0], *where.extent[1])


def _about(values: np.ndarray) -> tuple[float, float]:
    """Limits about zero, for differences: a few large ones do not hide the others."""
    finite = np.abs(values[np.isfinite(values)])
    most = float(np.quantile(finite, 0.995)) or float(finite.max()) if finite.size else 1.0
    return -(most or 1.0), most or 1.0


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(width * columns + 0.9, height * rows + 0.5), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def space_time(
    figure: Figure,
    axes: Axes,
    rollout: Rollout,
    field: Float[np.ndarray, "T X"],
    channel: int,
    span: tuple[float, float],
    off: bool = False,
) -> None:
    assert isinstance(rollout.where, Grid)
    x, t = rollout.where.positions[0].numpy(), rollout.times.numpy()
    if len(t) > 1:
        drawn = axes.pcolormesh(
            x, t, field, cmap=ERROR_MAP if off else FIELD_MAP, vmin=span[0], vmax=span[1], shading="nearest"
        )
        figure.colorbar(drawn, ax=axes, label="" if off else rollout.named(rollout.channels[channel]))
        axes.set_ylabel(rollout.named("time"))
    else:
        axes.plot(x, field[0], color=COLOURS[1])
    axes.set_xlabel(rollout.named("x"))


def _profiles(axes: Axes, rollout: Rollout, field: Float[np.ndarray, "T X"], channel: int) -> None:
    where = rollout.where
    if isinstance(where, Grid):
        for shade, frame in zip(np.linspace(0.05, 0.85, LINES), picked(len(field), LINES), strict=False):
            colour = matplotlib.colormaps["cividis"](shade)
            axes.plot(where.positions[0].numpy(), field[frame], color=colour, label=when(rollout, frame))
        axes.set_xlabel(rollout.named("x"))
    else:
        for colour, point in zip(COLOURS, range(field.shape[1]), strict=False):
            at = "" if where is None else f" {tuple(round(float(v), 4) for v in where[point])}"
            axes.plot(rollout.times.numpy(), field[:, point], color=colour, label=f"point {point}{at}")
        axes.set_xlabel(rollout.named("time"))
    axes.set_ylabel(rollout.named(rollout.channels[channel]))
    axes.legend(fontsize=7.5, frameon=False)


def film_strip(
    figure: Figure,
    row: Sequence[Axes],
    rollout: Rollout,
    fields: Float[np.ndarray, "n *space"],
    channel: int,
    span: tuple[float, float],
    off: bool = False,
) -> None:
    assert isinstance(rollout.where, Grid)
    for axes, field in zip(row, plane(fields, rollout.dimension), strict=True):
        axes.imshow(
            field.T, origin="lower", extent=box(rollout.where), cmap=ERROR_MAP if off else FIELD_MAP, vmin=span[0],
            vmax=span[1],
        )  # fmt: skip
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(rollout.named("x"), fontsize=7.5)
    row[0].set_ylabel(rollout.named("y"), fontsize=7.5)
    figure.colorbar(row[0].images[0], ax=list(row), label=rollout.named(rollout.channels[channel]))


def _error_line(axes: Axes, rollout: Rollout, errors: Float[np.ndarray, " T"]) -> None:
    axes.semilogy(rollout.times.numpy(), errors, color=COLOURS[1])
    axes.set(xlabel=rollout.named("time"), title="nRMSE")
    axes.grid(color="#e4e4e4")


def name_times(row: Sequence[Axes], rollout: Rollout, chosen: Sequence[int]) -> None:
    for axes, frame in zip(row, chosen, strict=True):
        axes.set_title(when(rollout, frame))


def when(rollout: Rollout, frame: int) -> str:
    return f"t = {float(rollout.times[frame]):.3g} {rollout.units.get('time', '')}".rstrip()


def picked(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()


def tallness(rollout: Rollout) -> float:
    assert isinstance(rollout.where, Grid)
    x, y = rollout.where.lengths[:2]
    return min(3.0, max(0.25, y / x)) if math.isfinite(y / x) else 1.0
