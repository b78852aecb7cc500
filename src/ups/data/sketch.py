"""What a dataset looks like, in characters: for a terminal, over any connection, without a picture file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Batch, Dataset

_SHADES = " ░▒▓█"
_BARS = "▁▂▃▄▅▆▇█"


def sketch(dataset: Dataset, width: int = 72) -> str:
    """The first readable trajectory in characters: bars over x at some times, or shades over (x, y) at the first and
    last.
    """
    rows = readable(dataset, 1)
    if not rows:
        return "no trajectory can be read, so none is drawn"
    times = dataset.times
    frames = sorted({0, len(times) - 1} if dataset.grid.dimension > 1 else {int(f) for f in _spread(len(times), 6)})
    batches = [blank_outside(dataset.read(rows, slice(frame, frame + 1))) for frame in frames]
    parts = []
    for number, name in enumerate(dataset.channels[:4]):
        values = np.stack([batch.values[0, 0, ..., number].numpy() for batch in batches])
        when = [float(batch.times[0, 0]) for batch in batches]
        heads = [name] if dataset.header.steady else [f"{name}, t = {time:.3g}" for time in when]
        if dataset.grid.dimension == 1:
            low, high = limits(values)
            lines = [
                f"{head:>{max(map(len, heads))}} "
                + "".join(_BARS[level] for level in _levels(_shrunk(line, (width,)), low, high, len(_BARS)))
                for head, line in zip(heads, values, strict=True)
            ]
            parts.append("\n".join([f"{name} from {low:.3g} (▁) to {high:.3g} (█), over x", *lines]))
            continue
        maps = dict(zip(heads, values, strict=True))
        if number == 0:
            maps = {name: field[0].numpy() for name, field in list(batches[0].static.items())[:1]} | maps
        parts.append(_side_by_side(maps, width // len(maps) - 2))
    return "\n\n".join(parts)


def blank_outside(batch: Batch) -> Batch:
    """NaN in the cells that a mask excludes, which no colour scale counts."""
    if batch.mask is None:
        return batch
    mask, space = batch.mask, batch.grid.dimension

    def blank(field: Tensor, before: int) -> Tensor:
        cells = mask[(slice(None), *(None,) * (before - 1))]
        return torch.where(cells.reshape(*cells.shape, *(1,) * (field.dim() - cells.dim())), field, torch.nan)

    return replace(
        batch,
        values=blank(batch.values, 2),
        static={name: blank(field, 1) for name, field in batch.static.items()},
        forcings={name: blank(field, field.dim() - space) for name, field in batch.forcings.items()},
    )


def readable(dataset: Dataset, most: int) -> list[int]:
    """The first trajectories that can be read: readers refuse those with NaN or damage."""
    rows: list[int] = []
    for row in range(len(dataset)):
        if len(rows) == most:
            break
        try:
            dataset.read([row], slice(None))
        except UserError:
            continue
        rows.append(row)
    return rows


def _spread(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()


def _side_by_side(maps: dict[str, np.ndarray], width: int) -> str:
    """A character is twice as high as wide, so a square has half as many lines as columns; y points up."""
    blocks = []
    for head, field in maps.items():
        plane = field if field.ndim == 2 else field[..., field.shape[-1] // 2]
        columns = min(width, 2 * plane.shape[0], 34)
        lines = max(2, round(columns / 2 * plane.shape[1] / plane.shape[0]))
        low, high = limits(plane)
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
    tensor = torch.from_numpy(np.ascontiguousarray(values))[None].double()
    if len(shape) == 1:
        return torch.nn.functional.adaptive_avg_pool1d(tensor, shape[0])[0].numpy()
    return torch.nn.functional.adaptive_avg_pool2d(tensor, (shape[0], shape[1]))[0].numpy()


def _levels(values: np.ndarray, low: float, high: float, count: int) -> np.ndarray:
    part = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return np.nan_to_num(part * count).clip(0, count - 1).astype(int)


def limits(values: Float[np.ndarray, "..."]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
