"""What a dataset looks like: a picture file, and a sketch in characters for a terminal without one.

One-dimensional fields are drawn over x and t, two-dimensional ones as frames, three-dimensional ones as frames of their
middle plane in z; static fields beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ups.errors import UserError
from ups.fields import AXES, Batch, Dataset

_FRAMES = 5
_SHADES = " ░▒▓█"
_BARS = "▁▂▃▄▅▆▇█"
_STYLE: dict[Any, Any] = {"font.size": 9, "axes.titlesize": 9}


def draw(dataset: Dataset, path: str | Path, trajectories: int = 3) -> Path:
    """A picture of the first trajectories, each with colour limits of its own. The suffix says the kind of file."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UserError(f"{path}: a picture's name ends in .png, .pdf or .svg")
    frames = np.unique(np.linspace(0, len(dataset.times) - 1, _FRAMES).round().astype(int))
    rows = range(min(trajectories, len(dataset)))
    with matplotlib.rc_context(_STYLE):
        figure = _lines_and_maps(dataset, rows) if dataset.grid.dimension == 1 else _frames(dataset, rows, frames)
        figure.savefig(path, dpi=110)
    return path


def _lines_and_maps(dataset: Dataset, rows: range) -> Figure:
    """A row a trajectory, a column a field: over (x, t), or over x where there is no time."""
    batch = dataset.read(rows, slice(None))
    fields = {name: batch.values[..., number].numpy() for number, name in enumerate(dataset.channels)}
    fields |= {name: field[:, None].numpy() for name, field in batch.static.items()}
    fields |= {name: (f if f.dim() == 3 else f[:, None]).numpy() for name, f in batch.forcings.items()}
    figure = Figure(figsize=(3.6 * len(fields) + 0.6, 2.3 * len(rows) + 0.4), layout="constrained")
    panels = figure.subplots(len(rows), len(fields), squeeze=False)
    x, times = dataset.grid.positions[0].numpy(), dataset.times.numpy()
    for column, (name, values) in enumerate(fields.items()):
        for row, panel in enumerate(panels[:, column]):
            if values.shape[1] == 1:
                panel.plot(x, values[row, 0])
            else:
                box = (*dataset.grid.extent[0], times[0], times[-1])
                image = panel.imshow(values[row], origin="lower", aspect="auto", extent=box)
                figure.colorbar(image, ax=panel)
                panel.set_ylabel("t")
            panel.set_title(f"{name}, {_named(batch, row)}")
            panel.set_xlabel("x")
    return figure


def _frames(dataset: Dataset, rows: range, frames: np.ndarray) -> Figure:
    """A row a trajectory and channel: its static fields, then frames. Frames are read one by one: they may be large."""
    batches = [dataset.read(rows, slice(frame, frame + 1)) for frame in frames.tolist()]
    static = {name: _plane(field.numpy()) for name, field in batches[0].static.items()}
    lines = [(row, channel) for row in rows for channel in range(len(dataset.channels))]
    columns = len(static) + len(batches)
    figure = Figure(figsize=(2.3 * columns + 0.6, 2.2 * len(lines) + 0.4), layout="constrained")
    panels = figure.subplots(len(lines), columns, squeeze=False)
    fields = [np.stack([_plane(b.values[:, 0, ..., c].numpy()) for b in batches]) for c in range(len(dataset.channels))]
    for line, (row, channel) in enumerate(lines):
        for column, (name, field) in enumerate(static.items()):
            if channel == 0:
                _map(dataset, panels[line, column], field[row], _limits(field[row]), name)
            else:
                panels[line, column].axis("off")
        for column, batch in enumerate(batches):
            panel, values = panels[line, len(static) + column], fields[channel]
            when = "" if dataset.header.steady else f", t = {float(batch.times[row, 0]):.3g}"
            _map(dataset, panel, values[column, row], _limits(values[:, row]), dataset.channels[channel] + when)
        panels[line, 0].set_ylabel(f"{_named(batches[0], row)}\n{AXES[1]}")
        image = panels[line, -1].images[0]
        figure.colorbar(image, ax=panels[line, -1])
    return figure


def _map(dataset: Dataset, panel: Axes, values: np.ndarray, limits: tuple[float, float], title: str) -> None:
    box = (*dataset.grid.extent[0], *dataset.grid.extent[1])
    panel.imshow(values.T, origin="lower", extent=box, vmin=limits[0], vmax=limits[1])
    panel.set_title(title)
    panel.set_xticks([])  # the axes are in the words; ticks are most of the time that many panels take
    panel.set_yticks([])


def _plane(values: np.ndarray) -> np.ndarray:
    """(B, X, Y) of (B, X, Y) or (B, X, Y, Z)."""
    return values if values.ndim == 3 else values[..., values.shape[-1] // 2]


def _limits(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def _named(batch: Batch, row: int) -> str:
    return ", ".join([f"trajectory {row}", *(f"{name} = {float(v[row]):g}" for name, v in batch.parameters.items())])


def sketch(dataset: Dataset, width: int = 72) -> str:
    """The first trajectory in characters: bars over x at some times, or shades over (x, y) at the first and last."""
    times = dataset.times
    frames = sorted({0, len(times) - 1} if dataset.grid.dimension > 1 else {int(f) for f in _spread(len(times), 6)})
    batches = [dataset.read([0], slice(frame, frame + 1)) for frame in frames]
    parts = []
    for number, name in enumerate(dataset.channels[:4]):
        values = np.stack([batch.values[0, 0, ..., number].numpy() for batch in batches])
        heads = [name] if dataset.header.steady else [f"{name}, t = {float(times[frame]):.3g}" for frame in frames]
        if dataset.grid.dimension == 1:
            low, high = _limits(values)
            lines = [
                f"{head:>{max(map(len, heads))}} {_bars(line, low, high, width)}"
                for head, line in zip(heads, values, strict=True)
            ]
            parts.append("\n".join([f"{name} from {low:.3g} (▁) to {high:.3g} (█), over x", *lines]))
            continue
        maps = dict(zip(heads, values, strict=True))
        if number == 0:
            maps = {name: field[0].numpy() for name, field in list(batches[0].static.items())[:1]} | maps
        parts.append(_side_by_side(maps, width // len(maps) - 2))
    return "\n\n".join(parts)


def _spread(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()


def _bars(values: np.ndarray, low: float, high: float, width: int) -> str:
    return "".join(_BARS[level] for level in _levels(_shrunk(values, (width,)), low, high, len(_BARS)))


def _side_by_side(maps: dict[str, np.ndarray], width: int) -> str:
    """A character is twice as high as wide, so a square has half as many lines as columns; y points up."""
    blocks = []
    for head, field in maps.items():
        plane = field if field.ndim == 2 else field[..., field.shape[-1] // 2]
        columns = min(width, 2 * plane.shape[0], 34)
        lines = max(2, round(columns / 2 * plane.shape[1] / plane.shape[0]))
        low, high = _limits(plane)
        levels = _levels(_shrunk(plane, (columns, min(lines, 24))), low, high, len(_SHADES))
        rows = ["".join(_SHADES[level] for level in line) for line in levels.T[::-1]]
        title = f"{head}, {low:.3g} to {high:.3g}"
        wide = max(columns, len(title))
        blocks.append([line.ljust(wide) for line in (title, *rows)])
    height = max(map(len, blocks))
    padded = [block + [" " * len(block[0])] * (height - len(block)) for block in blocks]
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def _shrunk(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Averages over as many cells as fit the characters; a coarse field is repeated."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))[None, None].double()
    pool = torch.nn.functional.adaptive_avg_pool1d if tensor.dim() == 3 else torch.nn.functional.adaptive_avg_pool2d
    found = pool(tensor[0], shape if tensor.dim() == 4 else shape[0])
    return found[0].numpy()


def _levels(values: np.ndarray, low: float, high: float, count: int) -> np.ndarray:
    part = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return np.nan_to_num(part * count).clip(0, count - 1).astype(int)
