"""Bring data from any layout into any other, piece by piece; what the target does not keep is named."""

from __future__ import annotations

from pathlib import Path

from ups.data.formats.layouts import LAYOUTS, named_layout
from ups.data.prepare.row_ranges import batches, total_bytes
from ups.durable import check_space, room_for
from ups.errors import UserError
from ups.fields import Dataset
from ups.track.tick import Tick

_PIECE_BYTES = 1 << 26  # of one read: 64 MiB


def convert(dataset: Dataset, path: str | Path, layout: str, progress: Tick | None = None) -> list[str]:
    """Write a dataset's trajectories to a new file of another layout; returns in words what that layout does not keep.

    What the layout cannot hold at all is refused. The file appears under its name when it is whole, else nothing does.
    """
    path, kind = Path(path), named_layout(layout)
    lost = kind.loses(dataset.header)
    check_space(path, total_bytes(dataset))
    with room_for(path, "or choose another place"), kind.writer(path, dataset.header, len(dataset)) as writer:
        for batch in batches(dataset, len(dataset.times), progress, _PIECE_BYTES):
            writer.write(batch)
    return lost


def layout_for(path: str | Path, layout: str | None) -> str:
    """The name of the layout to write. Several layouts share an extension, so none is guessed from it."""
    if layout is not None:
        return named_layout(layout).name
    fitting = [kind.name for kind in LAYOUTS if kind.extension == Path(path).suffix]
    likely = f"; published files ending in {Path(path).suffix} are {' or '.join(fitting)}" if fitting else ""
    raise UserError(f"{path}: say its layout with --format, one of {', '.join(kind.name for kind in LAYOUTS)}{likely}")
