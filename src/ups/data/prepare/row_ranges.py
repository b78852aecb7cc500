"""How many trajectories to read at once: by their bytes, so that memory does not depend on the data's shape."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ups.fields import Dataset
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


def row_ranges(dataset: Dataset, frames: int, tick: Tick | None = None) -> Iterator[range]:
    """All trajectories in order, as runs of which `frames` frames each are to be read at once.

    Whenever one has been dealt with, `tick` is told how many trajectories are done, and of how many.
    """
    step = max(1, READ_BYTES // max(1, _bytes(dataset, frames)))
    for first in range(0, len(dataset), step):
        rows = range(first, min(first + step, len(dataset)))
        yield rows
        if tick is not None:
            tick(rows.stop, len(dataset))
