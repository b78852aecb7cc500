"""Reading a dataset a part at a time: by bytes, so that memory does not depend on the data's shape."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from ups.fields import Batch, Dataset, Header
from ups.track.tick import Tick

READ_BYTES = 1 << 28  # of one read: 256 MiB, or one trajectory where it is larger


def total_bytes(dataset: Dataset) -> int:
    """Of all its fields."""
    return len(dataset) * trajectory_bytes(dataset.header)


def trajectory_bytes(header: Header, frames: int | None = None) -> int:
    """Of all frames of one trajectory, or of so many, with what does not change."""
    frames = len(header.times) if frames is None else frames
    changing = len(header.channels) + sum(header.forcings.values())
    fields = frames * changing + len(header.static) + len(header.forcings)
    return header.dtype.itemsize * fields * math.prod(header.grid.shape)


def spread(dataset: Dataset, most: int, most_bytes: float = math.inf) -> list[int]:
    """Places of at most so many trajectories, evenly over all (every parameter value of joined files is there), and of
    at most so many bytes, one at least.
    """
    count = int(max(1, min(len(dataset), most, most_bytes // max(1, trajectory_bytes(dataset.header)))))
    return torch.linspace(0, len(dataset) - 1, count).round().long().tolist()


def in_steps(count: int, step: int) -> Iterator[range]:
    """0 … count − 1 in order, `step` of them at a time."""
    for first in range(0, count, step):
        yield range(first, min(first + step, count))


def row_ranges(dataset: Dataset, frames: int, at_once: int | None = None) -> Iterator[range]:
    """All trajectories in order, as runs of which `frames` frames each have at most `at_once` bytes, one
    at least."""
    return in_steps(len(dataset), max(1, (at_once or READ_BYTES) // max(1, trajectory_bytes(dataset.header, frames))))


def batches(dataset: Dataset, frames: int, tick: Tick | None = None, at_once: int | None = None) -> Iterator[Batch]:
    """The first `frames` frames of all trajectories. Whenever a batch has been dealt with, `tick` is told how many
    trajectories are done, and of how many.
    """
    for rows in row_ranges(dataset, frames, at_once):
        yield dataset.read(rows, slice(0, frames))
        if tick is not None:
            tick(rows.stop, len(dataset))
