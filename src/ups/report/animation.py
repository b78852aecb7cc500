"""The data behind the page's players: fields as 16-bit integers in base64, small and exact enough for errors.

A value v in [low, high] is stored as 1 + round((v − low) / (high − low) · 65532); 0 stands for anything below, 65534
for anything above, 65535 for NaN and infinity. What lies outside is drawn as outside, never at the edge, where its
error would look small. The range is the truth's, widened by half its span on both sides, so an error of 0.1 % of the
span is 33 steps. The nRMSE of each frame is sent as a number, computed from the full values.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from ups.metrics import nrmse
from ups.report.contents import Sample, TaskPage, static_of, times_of, values_of
from ups.report.drawing import error_limit, field_limits
from ups.report.legend import ERROR_MAP, FIELD_MAP, NOT_A_NUMBER, OUTSIDE, REFERENCE
from ups.track.jsonl import plain as as_plain

BROKEN = 65535
BELOW, ABOVE = 0, 65534
STEPS = 65532
MOST_FRAMES = 61
MOST_POINTS = {1: 512, 2: 64}


def colour_tables() -> dict[str, str]:
    """The two colour maps as 256 × RGB bytes in base64, and the colour of what is not a number."""
    tables = {"field": FIELD_MAP, "error": ERROR_MAP}
    steps = np.linspace(0, 1, 256)
    packed = {
        key: (matplotlib.colormaps[name](steps)[:, :3] * 255).round().astype("u1") for key, name in tables.items()
    }
    return {key: base64.b64encode(table.tobytes()).decode() for key, table in packed.items()} | {
        "bad": NOT_A_NUMBER,
        "outside": OUTSIDE,
    }


def player_data(task: TaskPage, budget: int) -> dict[str, Any]:
    """What one player needs, as JSON: sequences of frames of fields, at most `budget` bytes of them before base64.

    A transient task has a sequence a sample, its frames are times; a steady one has one sequence whose frames are the
    samples. Space and time are thinned to what a screen shows, then as many samples as fit are kept (at least one).
    """
    space, frames, count = _thinning(task, budget)
    samples = task.samples[:count]
    names = [REFERENCE, *task.predictors]
    groups = [samples] if task.steady else [[sample] for sample in samples]
    return as_plain(
        {
            "steady": task.steady,
            "dimension": task.dimension,
            "masked": samples[0].mask is not None,
            "axes": [axis[cut].tolist() for axis, cut in zip(task.axes, space, strict=True)],
            "channels": task.channels,
            "predictors": [_pen(task, name) for name in names],
            "statics": [_static(name, samples, space) for name in samples[0].static] if task.steady else [],
            "sequences": [_sequence(task, group, names, frames, space) for group in groups],
        }
    )


def _sequence(
    task: TaskPage, group: Sequence[Sample], names: Sequence[str], frames: slice, space: tuple[slice, ...]
) -> dict[str, Any]:
    """One run of frames: the fields packed over ranges that hold for all of it, and each frame's nRMSE."""
    values = {name: np.concatenate([values_of(sample, name)[frames] for sample in group]) for name in names}
    ranges = [_range(values, task.pictured, channel) for channel in range(len(task.channels))]
    return {
        "label": group[0].label,
        "frames": [s.label for s in group]
        if task.steady
        else [f"t = {t:.3g}" for t in times_of(task, group[0])[frames]],
        "ranges": ranges,
        "fields": {
            name: [pack(field[(slice(None), *space, c)], *span["packing"]) for c, span in enumerate(ranges)]
            for name, field in values.items()
        },
        "nrmse": {
            name: [nrmse_of for sample in group for nrmse_of in _errors(sample, name, frames)] for name in names[1:]
        },
    }


def _errors(sample: Sample, name: str, frames: slice) -> list[list[float]]:
    """The nRMSE of every frame and channel."""
    fields = (torch.tensor(values_of(sample, who)[frames])[None] for who in (name, REFERENCE))
    return nrmse(*fields, None if sample.mask is None else torch.tensor(sample.mask)[None])[0].tolist()


def _range(values: Mapping[str, Float[ndarray, "T *space C"]], pictured: Sequence[str], channel: int) -> dict[str, Any]:
    """The limits shared by all fields of a sequence, by all its errors, and the range that is packed."""
    truth = values[REFERENCE][..., channel]
    low, high = field_limits([truth])
    error = error_limit([values[name][..., channel] - truth for name in pictured], high - low)
    half = (high - low) / 2
    return {"low": low, "high": high, "error": error, "packing": [low - half, high + half]}


def pack(field: Float[ndarray, "..."], low: float, high: float) -> str:
    """Little-endian 16-bit integers of `field` scaled from [low, high], in base64."""
    scaled = 1 + (np.clip(np.nan_to_num(field), low, high) - low) / (high - low) * STEPS
    integers = np.select([~np.isfinite(field), field < low, field > high], [BROKEN, BELOW, ABOVE], scaled.round())
    return base64.b64encode(integers.astype("<u2").tobytes()).decode()


def _thinning(task: TaskPage, budget: int) -> tuple[tuple[slice, ...], slice, int]:
    """Strides over space and time, and how many samples then fit into the budget."""
    most = MOST_POINTS[task.dimension]
    space = tuple(slice(None, None, math.ceil(len(axis) / most)) for axis in task.axes)
    points = math.prod(len(axis[cut]) for axis, cut in zip(task.axes, space, strict=True))
    fields = (1 + len(task.samples[0].predictions)) * len(task.channels)
    frame_bytes = 2 * points * fields
    most_frames = min(MOST_FRAMES, max(2, budget // frame_bytes))
    stride = math.ceil(len(task.times) / most_frames)
    frames = slice((len(task.times) - 1) % stride, None, stride)  # the last frame is always among them
    sample_bytes = frame_bytes * len(task.times[frames])
    return space, frames, max(1, min(len(task.samples), budget // sample_bytes))


def _static(name: str, samples: Sequence[Sample], space: tuple[slice, ...]) -> dict[str, Any]:
    planes = np.stack([static_of(sample, name)[space] for sample in samples])
    low, high = field_limits([planes])
    return {"name": name, "low": low, "high": high, "packing": [low, high], "frames": pack(planes, low, high)}


def _pen(task: TaskPage, name: str) -> dict[str, Any]:
    """How the page draws and names a predictor; a baseline has no picture of its own in two dimensions."""
    pen = task.legend.ink(name)
    line = {"colour": pen.colour, "dash": pen.dash, "width": pen.width}
    picture = name in (REFERENCE, *task.pictured)
    return {"name": name, "display": task.legend.title(name, task.steady), "picture": picture, **line}
