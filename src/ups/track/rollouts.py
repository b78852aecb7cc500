"""Rollouts as small pictures and films for trackers: truth, prediction, and their difference in the same colours.

A training keeps some of its validation data's (`keep`), the evaluation those of the test data; who tells a tracker
draws them (`draw`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROLLOUTS = "rollouts"
"""The kind of event that names them, and the folder of a training that has them."""
POINTS, FRAMES = 128, 16
"""At most so many along an axis and in time, of what is kept of a training; in 1D time is an axis."""

WIDTH = 192
"""Least pixels of a field along an axis; smaller ones are shown with larger cells."""
GAP = 6
MILLISECONDS = 120
"""Of a frame."""


def keep(shown: Mapping[str, tuple[Any, Any]], folder: Path, step: int) -> dict[str, str]:
    """Of each task the prediction and the truth (`T *space C` tensors), thinned, in `TASK_STEP.npz`, whose names are
    returned. A disk that does not take them costs the pictures and nothing else.
    """
    kept = {}
    try:
        folder.mkdir(exist_ok=True)
        for task, (prediction, truth) in shown.items():
            path = folder / f"{task}_{step:08d}.npz"
            temporary = path.with_suffix(".tmp")
            with temporary.open("wb") as file:
                np.savez(file, truth=_thinned(truth), prediction_model=_thinned(prediction))
            os.replace(temporary, path)
            kept[task] = path.name
    except OSError as error:
        warnings.warn(f"rollouts of step {step} are not kept in {folder} ({error.strerror})", stacklevel=2)
    return kept


def _thinned(field: Any) -> np.ndarray:
    """(1, t, *x, 1) of a `T *space C` tensor: the first channel, in 3D in the plane in the middle."""
    field = field[..., 0]
    if field.ndim == 4:
        field = field[..., field.shape[-1] // 2]
    times = np.linspace(0, len(field) - 1, min(len(field), POINTS if field.ndim == 2 else FRAMES)).round().astype(int)
    space = tuple(slice(None, None, -(-size // POINTS)) for size in field.shape[1:])
    return field[(times.tolist(), *space)].float().cpu().numpy()[None, ..., None].astype(np.float16)


def draw(arrays: Path, model: str, folder: Path) -> list[Path]:
    """A .png of the first trajectory of a file (`evaluation/VIEW.npz`), first channel, and, of transient fields in
    2D or 3D, a .gif over time. In 1D the picture has time downwards; of a box it is the plane in the middle of z.
    """
    from matplotlib import colormaps  # which only who draws waits for
    from PIL import Image

    with np.load(arrays) as kept:
        fields = [kept[name][0, ..., 0].astype(np.float64) for name in ("truth", f"prediction_{model}")]
    fields = [field[..., field.shape[-1] // 2] if field.ndim == 4 else field for field in fields]
    truth, prediction = fields
    low, high = float(np.nanmin(truth)), float(np.nanmax(truth))
    half, colours = (high - low) / 2 or 1.0, colormaps["RdBu_r"]

    def panel(frame: Sequence[np.ndarray]) -> Image.Image:
        middle = (low + high) / 2
        shown = [(frame[0] - middle), (frame[1] - middle), frame[1] - frame[0]]
        cells = [colours(np.nan_to_num(part / half, nan=1.0) / 2 + 0.5)[..., :3] for part in shown]
        parts = [np.asarray(255 * part, dtype=np.uint8) for part in cells]
        parts = [part.repeat(-(-WIDTH // part.shape[0]), 0).repeat(-(-WIDTH // part.shape[1]), 1) for part in parts]
        gap = np.full((parts[0].shape[0], GAP, 3), 255, np.uint8)
        return Image.fromarray(np.concatenate([parts[0], gap, parts[1], gap, parts[2]], 1))

    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{arrays.stem}.png"
    if truth.ndim == 2:  # time and one axis
        panel(fields).save(picture)
        return [picture]
    frames = [panel([truth[time].T[::-1], prediction[time].T[::-1]]) for time in range(len(truth))]
    frames[-1].save(picture)
    if len(frames) == 1:
        return [picture]
    film = folder / f"{arrays.stem}.gif"
    frames[0].save(film, save_all=True, append_images=frames[1:], duration=MILLISECONDS, loop=0)
    return [picture, film]
