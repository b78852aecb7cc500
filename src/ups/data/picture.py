"""What a dataset looks like, as a picture file. In characters, for a terminal: `sketch.py`.

One-dimensional fields are drawn over x and t, two-dimensional ones as frames, three-dimensional ones as frames of their
middle plane in z; static fields beside them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ups import durable
from ups.data.sketch import blank_outside, limits, readable
from ups.errors import UserError
from ups.fields import AXES, Batch, Dataset

_FRAMES = 5
_STYLE: dict[Any, Any] = {"font.size": 9, "axes.titlesize": 9}


def draw(dataset: Dataset, path: str | Path, trajectories: int = 3) -> Path:
    """A picture of the first readable trajectories, each with colour limits of its own. The suffix says the kind of
    file; one that exists is never overwritten.
    """
    path = Path(path)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UserError(f"{path}: a picture's name ends in .png, .pdf or .svg")
    if path.exists():
        raise UserError(f"{path} exists; remove it or choose another name for the picture")
    rows = readable(dataset, trajectories)
    if not rows:
        raise UserError(f"{path}: no trajectory can be read, so there is no picture; mend the data")
    frames = np.unique(np.linspace(0, len(dataset.times) - 1, _FRAMES).round().astype(int))
    with matplotlib.rc_context(_STYLE):
        figure = _lines_and_maps(dataset, rows) if dataset.grid.dimension == 1 else _frames(dataset, rows, frames)
        picture = io.BytesIO()
        figure.savefig(picture, dpi=110, format=path.suffix[1:].lower())
    durable.write(path, picture.getbuffer())
    return path


def _lines_and_maps(dataset: Dataset, rows: Sequence[int]) -> Figure:
    """A row a trajectory, a column a field: over (x, t), or over x where there is no time."""
    batch = blank_outside(dataset.read(rows, slice(None)))
    fields = {name: batch.values[..., number].numpy() for number, name in enumerate(dataset.channels)}
    fields |= {name: field[:, None].numpy() for name, field in batch.static.items()}
    fields |= {name: (f if f.dim() == 3 else f[:, None]).numpy() for name, f in batch.forcings.items()}
    figure = Figure(figsize=(3.6 * len(fields) + 0.6, 2.3 * len(rows) + 0.4), layout="constrained")
    panels = figure.subplots(len(rows), len(fields), squeeze=False)
    x, times = dataset.grid.positions[0].numpy(), batch.times.numpy()
    for column, (name, values) in enumerate(fields.items()):
        for row, panel in enumerate(panels[:, column]):
            if values.shape[1] == 1:
                panel.plot(x, values[row, 0])
            else:
                box = (*dataset.grid.extent[0], times[row, 0], times[row, -1])
                image = panel.imshow(values[row], origin="lower", aspect="auto", extent=box)
                figure.colorbar(image, ax=panel)
                panel.set_ylabel("t")
            panel.set_title(f"{name}, {_named(batch, row, rows)}")
            panel.set_xlabel("x")
    return figure


def _frames(dataset: Dataset, rows: Sequence[int], frames: np.ndarray) -> Figure:
    """A row a trajectory and channel: its static fields, then frames. Frames are read one by one: they may be large."""
    batches = [blank_outside(dataset.read(rows, slice(frame, frame + 1))) for frame in frames.tolist()]
    static = {name: _plane(field.numpy()) for name, field in batches[0].static.items()}
    lines = [(row, channel) for row in range(len(rows)) for channel in range(len(dataset.channels))]
    columns = len(static) + len(batches)
    figure = Figure(figsize=(2.3 * columns + 0.6, 2.2 * len(lines) + 0.4), layout="constrained")
    panels = figure.subplots(len(lines), columns, squeeze=False)
    fields = [np.stack([_plane(b.values[:, 0, ..., c].numpy()) for b in batches]) for c in range(len(dataset.channels))]
    for line, (row, channel) in enumerate(lines):
        for column, (name, field) in enumerate(static.items()):
            if channel == 0:
                _map(dataset, panels[line, column], field[row], limits(field[row]), name)
            else:
                panels[line, column].axis("off")
        for column, batch in enumerate(batches):
            panel, values = panels[line, len(static) + column], fields[channel]
            when = "" if dataset.header.steady else f", t = {float(batch.times[row, 0]):.3g}"
            _map(dataset, panel, values[column, row], limits(values[:, row]), dataset.channels[channel] + when)
        panels[line, 0].set_ylabel(f"{_named(batches[0], row, rows)}\n{AXES[1]}")
        image = panels[line, -1].images[0]
        figure.colorbar(image, ax=panels[line, -1])
    return figure


def _map(dataset: Dataset, panel: Axes, values: np.ndarray, range_: tuple[float, float], title: str) -> None:
    box = (*dataset.grid.extent[0], *dataset.grid.extent[1])
    panel.imshow(values.T, origin="lower", extent=box, vmin=range_[0], vmax=range_[1])
    panel.set_title(title)
    panel.set_xticks([])  # the axes are in the words; ticks are most of the time that many panels take
    panel.set_yticks([])


def _plane(values: np.ndarray) -> np.ndarray:
    return values if values.ndim == 3 else values[..., values.shape[-1] // 2]


def _named(batch: Batch, row: int, rows: Sequence[int]) -> str:
    """With its parameters where they are few enough to be read."""
    parameters = "".join(f", {name} = {float(v[row]):g}" for name, v in batch.parameters.items())
    return f"trajectory {rows[row]}{parameters if len(parameters) < 24 else ''}"
