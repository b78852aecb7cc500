"""Rollouts that move: one figure, redrawn for every frame, as a GIF or an MP4."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8
from matplotlib.animation import FFMpegWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ups.durable import write
from ups.errors import UserError
from ups.fields import Grid
from ups.rollout.pictures import COLOURS, FIELD_MAP, box, embedded, limits, plane, styled

if TYPE_CHECKING:
    from ups.rollout.result import Rollout

MOST_FRAMES = 200
"""Of a film: of longer rollouts it shows so many, evenly spread."""
DPI = 90


@dataclass(frozen=True, eq=False)
class Film:
    """A figure and what redraws it for a frame. Notebooks show it as a GIF."""

    figure: Figure
    frames: tuple[int, ...]
    show: Callable[[int], Any]
    seconds: float

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        if path.suffix.lower() == ".gif":
            write(path, self._gif)
        elif path.suffix.lower() == ".mp4":
            self._write_mp4(path)
        else:
            raise UserError(f"{path}: a film's name ends in .gif or .mp4")
        return path

    def _repr_html_(self) -> str:
        return embedded(self._gif, "gif")

    @cached_property
    def _gif(self) -> bytes:
        pictures = [Image.fromarray(picture) for picture in self._drawn()]
        content, pause = io.BytesIO(), max(20, round(1000 * self.seconds / len(pictures)))
        colours = pictures[0].quantize(255)  # one table for all, else still parts flicker
        pictures = [picture.quantize(255, palette=colours, dither=Image.Dither.NONE) for picture in pictures]
        pictures[0].save(content, "GIF", save_all=True, append_images=pictures[1:], duration=pause, loop=0)
        return content.getvalue()

    @styled
    def _drawn(self) -> list[UInt8[np.ndarray, "H W 3"]]:
        canvas = FigureCanvasAgg(self.figure)
        drawn = []
        for frame in self.frames:
            self.show(frame)
            canvas.draw()
            drawn.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
        return drawn

    @styled
    def _write_mp4(self, path: Path) -> None:
        if shutil.which("ffmpeg") is None:
            raise UserError(f"{path}: an MP4 is made by ffmpeg, which is not installed; install it, or save a .gif")
        FigureCanvasAgg(self.figure)
        writer = FFMpegWriter(fps=max(1, round(len(self.frames) / self.seconds)))
        with writer.saving(self.figure, str(path), DPI):
            for frame in self.frames:
                self.show(frame)
                writer.grab_frame()


@styled
def film(rollouts: Mapping[str, Rollout], channel: int, sample: int, seconds: float) -> Film:
    """Of one channel and sample, the rollouts side by side, with the limits of the first."""
    first = next(iter(rollouts.values()))
    if not isinstance(first.where, Grid):
        raise UserError("values at single points do not make a film; leave out at=")
    fields = {name: each.samples[sample][..., channel].double().numpy() for name, each in rollouts.items()}
    low, high = limits(next(iter(fields.values())))
    title = first.named(first.channels[channel])
    flat, lines = first.dimension > 1, []
    panels = len(fields) if flat else 1
    figure = Figure(figsize=(3.6 * panels + (0.8 if flat else 0.4), 3.3), dpi=DPI, layout="constrained")
    grid = figure.subplots(1, panels, squeeze=False)[0]
    if flat:
        for axes, (name, field) in zip(grid, fields.items(), strict=True):
            drawn = axes.imshow(
                plane(field, first.dimension)[0].T, origin="lower", extent=box(first.where), cmap=FIELD_MAP, vmin=low,
                vmax=high,
            )  # fmt: skip
            axes.set(xlabel=first.named("x"), ylabel=first.named("y"), title=name)
            lines.append(drawn)
        figure.colorbar(lines[0], ax=list(grid), label=title)
    else:
        x, margin = first.where.positions[0].numpy(), 0.06 * (high - low)
        for (name, field), colour in zip(fields.items(), COLOURS if len(fields) > 1 else COLOURS[1:], strict=False):
            lines += grid[0].plot(x, field[0], color=colour, label=name or None)
        grid[0].set(
            xlabel=first.named("x"), ylabel=title, ylim=(low - margin, high + margin), xlim=first.where.extent[0]
        )
        if len(fields) > 1:
            grid[0].legend(frameon=False, loc="upper right")
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # so that nothing moves but the field
    clock = figure.text(0.01, 0.99, "", va="top", fontsize=8)

    def show(frame: int) -> None:
        for drawn, field in zip(lines, fields.values(), strict=True):
            if flat:
                drawn.set_data(plane(field, first.dimension)[frame].T)
            else:
                drawn.set_ydata(field[frame])
        clock.set_text(f"t = {float(first.times[frame]):.3g} {first.units.get('time', '')}".rstrip())

    count = len(first.times)
    frames = np.unique(np.linspace(0, count - 1, min(count, MOST_FRAMES)).round().astype(int)).tolist()
    return Film(figure, tuple(frames), show, seconds)
