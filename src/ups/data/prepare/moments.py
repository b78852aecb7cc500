"""Means, spreads and changes of every field of a dataset, exact in their sums, in the form of The Well's stats.yaml.

    mean, std, rms                      of u over trajectories, frames and space
    mean_delta, std_delta, rms_delta    of u(t + dt) − u(t)

Each frame of each trajectory is summed alone and the sums are added exactly (fsum), so neither the pieces in which the
data are read, nor their order, nor the number of workers can change a digit. Deviations are taken from the frame's own
mean before they are squared: with a mean of 1e8 and a spread of 1, E[u²] − E[u]² would have no digit left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ups import durable
from ups.data.formats.well.reader import grouped
from ups.data.generate.workers import in_workers
from ups.data.prepare.row_ranges import in_steps
from ups.errors import UserError
from ups.fields import Dataset, Header
from ups.track.tick import Tick

KINDS = ("mean", "std", "rms", "mean_delta", "std_delta", "rms_delta")
BLOCK_BYTES = 1 << 26  # of one read: 64 MiB

Moments = dict[str, dict[str, float]]
"""Of each field: mean, std and rms, and the three of its changes where it changes in time."""
_Sums = dict[str, np.ndarray]
"""Of each field ("u") and its changes ("u delta"): mean, mean squared deviation and mean square of every frame."""


def moments(dataset: Dataset, workers: int = 1, progress: Tick | None = None) -> Moments:
    """One pass over a dataset. `progress(done, total)` counts pieces.

    A piece is read at a time (a worker), of which three numbers are kept for every field, trajectory and frame, and
    three for its change: 48 bytes, which sums that no order may change have to remember.
    """
    if len(dataset) == 0:
        raise UserError(f"{dataset.task}: there are no trajectories to take statistics of")
    sums: dict[str, list[np.ndarray]] = {}
    pieces = list(_pieces(dataset))
    for done, (_, found) in enumerate(in_workers(partial(_sums, dataset), pieces, min(workers, len(pieces)))):
        for name, array in found.items():
            sums.setdefault(name, []).append(array)
        if progress is not None:
            progress(done + 1, len(pieces))
    names = [name for name in sums if not name.endswith(" delta")]
    return {
        name: _pooled(sums[name], "") | (_pooled(sums[delta], "_delta") if (delta := f"{name} delta") in sums else {})
        for name in names
    }


def _pieces(dataset: Dataset) -> Iterator[tuple[range, slice]]:
    """Whole trajectories, several at once if they are small, or runs of frames of one if it is large."""
    frames = len(dataset.times)
    frame_bytes = dataset.header.dtype.itemsize * math.prod(dataset.grid.shape) * max(1, len(dataset.channels))
    if frame_bytes * frames <= BLOCK_BYTES:
        step = BLOCK_BYTES // (frame_bytes * frames)
        yield from ((rows, slice(0, frames)) for rows in in_steps(len(dataset), step))
        return
    step = max(1, BLOCK_BYTES // frame_bytes)
    for row in range(len(dataset)):
        yield from ((range(row, row + 1), slice(part.start, part.stop)) for part in in_steps(frames, step))


def _sums(dataset: Dataset, piece: tuple[range, slice]) -> _Sums:
    """A piece's sums. One frame more is read where there is one, for the change to it."""
    rows, frames = piece
    more = slice(frames.start, min(frames.stop + 1, len(dataset.times)))
    batch = dataset.read(rows, more)
    length = frames.stop - frames.start
    found: _Sums = {}

    def add(name: str, values: np.ndarray) -> None:
        """Values of (trajectories, frames, points)."""
        values = np.ascontiguousarray(values, dtype=np.float64)
        found[name] = _frame_sums(values[:, :length], inside)
        if values.shape[1] > 1:
            found[f"{name} delta"] = _frame_sums(np.diff(values, axis=1), inside)

    inside = None if batch.mask is None else batch.mask.cpu().numpy().reshape(len(rows), 1, -1)
    values = batch.values.cpu().numpy().reshape(len(rows), more.stop - more.start, -1, len(dataset.channels))
    for number, name in enumerate(dataset.channels):
        add(name, values[..., number])
    for name, field in batch.forcings.items():
        if field.dim() == batch.values.dim() - 1:
            add(name, field.cpu().numpy().reshape(*values.shape[:3]))
    if frames.start == 0:
        constant = {name: field for name, field in batch.forcings.items() if name not in found}
        for name, field in {**batch.static, **constant}.items():
            add(name, field.cpu().numpy().reshape(len(rows), 1, -1))
    return found


def _frame_sums(values: np.ndarray, inside: np.ndarray | None) -> np.ndarray:
    """(3, frames): reduced along the last axis alone, so that a frame's sums do not depend on its neighbours; of the
    cells inside the domain.
    """
    where: dict[str, Any] = {} if inside is None else {"where": inside}
    mean = values.mean(-1, **where)
    spread = np.square(values - mean[..., None]).mean(-1, **where)
    square = np.square(values).mean(-1, **where)
    return np.stack([mean, spread, square]).reshape(3, -1)


def _pooled(parts: Sequence[np.ndarray], suffix: str) -> dict[str, float]:
    means, spreads, squares = (np.concatenate([part[kind] for part in parts]) for kind in range(3))
    mean = math.fsum(means) / len(means)
    variance = (math.fsum(spreads) + math.fsum(np.square(means - mean))) / len(means)
    rms = math.sqrt(math.fsum(squares) / len(squares))
    return {f"mean{suffix}": mean, f"std{suffix}": math.sqrt(variance), f"rms{suffix}": rms}


def by_kind(found: Moments) -> dict[str, dict[str, float]]:
    """The same, a kind of number first and then a field, as The Well has them."""
    return {kind: {name: numbers[kind] for name, numbers in found.items() if kind in numbers} for kind in KINDS}


def well_stats(header: Header, numbers: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """`stats.yaml` as plain data: {"mean": {field: number, or a list with one a component}, "std": …}.

    `numbers` has the same six keys (mean, std, rms and those of the difference between frames) with one number a
    channel, static field and forcing; what does not vary in time has only the first three.
    """
    fields = grouped(header.channels, header.grid.dimension)
    content: dict[str, dict[str, Any]] = {}
    for key in KINDS:
        given = numbers[key]
        content[key] = {
            name: float(given[name]) if parts == (name,) else [float(given[part]) for part in parts]
            for name, parts in fields
            if all(part in given for part in parts)
        }
        others = (*header.static, *header.forcings, "mask")
        content[key] |= {name: float(given[name]) for name in others if name in given}
    return content


def statistics_path(data: Path) -> Path:
    return (data if data.is_dir() else data.parent) / "stats.yaml"


def write_statistics(form: Mapping[str, Any], path: Path) -> None:
    """As YAML; floats read back equal. Statistics of other data under that name are not overwritten."""
    text = yaml.safe_dump(dict(form), sort_keys=True).encode()
    if path.exists() and path.read_bytes() != text:
        raise UserError(f"{path} exists and holds other statistics; remove it or choose another path with --out")
    durable.write(path, text)


def moments_table(found: Moments) -> str:
    """The numbers as a table, a field a line."""
    rows = [("field", *KINDS)]
    rows += [
        (name, *(f"{numbers[kind]:.5g}" if kind in numbers else "-" for kind in KINDS))
        for name, numbers in found.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
