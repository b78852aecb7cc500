"""Reading a dataset a part at a time: by bytes, so that memory does not depend on the data's shape."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ups.fields import Batch, Dataset
from ups.track.tick import Tick

READ_BYTES = 1 << 28  # of one read: 256 MiB, or one trajectory where it is larger


def total_bytes(dataset: Dataset) -> int:
    """Of all its fields."""
    return len(dataset) * _bytes(dataset, len(dataset.times))


def _bytes(dataset: Dataset, frames: int) -> int:
    """Of so many frames of one trajectory, with what does not change."""
    header = dataset.header
    changing = len(header.channels) + sum(header.forcings.values())
    fields = frames * changing + len(header.static) + len(header.forcings)
    return header.dtype.itemsize * fields * math.prod(header.grid.shape)


def in_steps(count: int, step: int) -> Iterator[range]:
    """0 … count − 1 in order, `step` of them at a time."""
    for first in range(0, count, step):
        yield range(first, min(first + step, count))


def row_ranges(dataset: Dataset, frames: int, at_once: int | None = None) -> Iterator[range]:
    """All trajectories in order, as runs of which `frames` frames each have at most `at_once` bytes, one
    at least."""
    return in_steps(len(dataset), max(1, (at_once or READ_BYTES) // max(1, _bytes(dataset, frames))))


def batches(dataset: Dataset, frames: int, tick: Tick | None = None, at_once: int | None = None) -> Iterator[Batch]:
    """The first `frames` frames of all trajectories. Whenever a batch has been dealt with, `tick` is told how many
    trajectories are done, and of how many.
    """
    for rows in row_ranges(dataset, frames, at_once):
        yield dataset.read(rows, slice(0, frames))
        if tick is not None:
            tick(rows.stop, len(dataset))
