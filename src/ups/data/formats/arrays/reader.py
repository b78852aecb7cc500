"""Arrays, once it is understood what they are, as a Dataset: read where they lie, a trajectory at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped

from ups.data.formats.arrays.conditions import MASK
from ups.data.formats.arrays.contents import Contents, NamedArray, contents_of
from ups.data.formats.arrays.meaning import Told, Understood
from ups.data.formats.arrays.understood import ordered, understood
from ups.data.formats.reading import batch_from, checked_rows, inside, named
from ups.data.tasks import task as registered_task
from ups.data.tasks import tasks
from ups.errors import UserError
from ups.fields import Batch, Dataset, Header, TaskSpec

OPTIONS = tuple(told.name for told in dataclasses.fields(Told))
"""What can be said of a file's arrays."""


class Arrays(Dataset):
    """Trajectories from understood arrays. Of trajectories of several lengths, the pieces of `frames` frames that
    cover them, each trajectory's together: the last begins so that it ends with the trajectory. `pieces` says of each
    its trajectory and first frame.
    """

    def __init__(self, found: Understood, source: str, frames: int | None = None, only: Sequence[int] | None = None):
        self.found, self.source = found, source
        self.frames = frames or min(found.lengths)
        self.pieces = [
            (trajectory, start)
            for trajectory in (range(len(found.lengths)) if only is None else only)
            for start in _starts(found.lengths[trajectory], self.frames)
        ]
        self.header: Header = found.header_of(self.pieces, self.frames)

    def __len__(self) -> int:
        return len(self.pieces)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        """The given pieces at the given frames; NaN and infinities are refused, with the place of the first, but for
        cells outside the mask, which are zero.
        """
        rows = checked_rows(indices, len(self), Path(self.source))
        kept = range(self.frames)[frames]
        pieces = [self.pieces[row] for row in rows]
        dtype = np.float64 if self.header.dtype == torch.float64 else np.float32
        values = np.empty((len(rows), len(kept), *self.grid.shape, len(self.channels)), dtype)
        for place, (trajectory, start) in enumerate(pieces):
            values[place] = self._values(trajectory, slice(start + kept.start, start + kept.stop, kept.step))
        static = {name: self._stacked(each, pieces, kept).astype(dtype) for name, each in self.found.static.items()}
        forcings = {name: self._stacked(each, pieces, kept).astype(dtype) for name, each in self.found.forcings.items()}
        mask = None if self.found.mask is None else torch.from_numpy(self._stacked(self.found.mask, pieces, kept) != 0)
        numbers = [trajectory for trajectory, _ in pieces]
        varying = {
            name: torch.from_numpy(np.ascontiguousarray(self.found.parameters[name][numbers]))
            for name, value in self.header.parameters.items()
            if value is None
        }
        batch = batch_from(self.header, rows, frames, values, static, varying)
        own = self.header.own_times
        batch = dataclasses.replace(
            batch,
            times=batch.times if own is None else own[rows][:, frames],
            forcings={name: torch.from_numpy(np.ascontiguousarray(field)) for name, field in forcings.items()},
            mask=mask,
        )
        batch = inside(batch, rows, Path(self.source))
        self._refuse(batch.values.numpy(), rows, "")
        for what, fields in (("static field", batch.static), ("forcing", batch.forcings)):
            for name, field in fields.items():
                framed = field if self.header.forcings.get(name) and what == "forcing" else field[:, None]
                self._refuse(framed[..., None].numpy(), rows, f"{what} {name!r}")
        return batch

    def _values(self, trajectory: int, frames: slice) -> Float[np.ndarray, "T *space C"]:
        """Of all channels; points that repeat others are left out."""
        found, columns = self.found, []
        for each in found.fields:
            at: dict[str, Any] = dict(zip("XYZ", (slice(n) for n in found.points), strict=False))
            at |= {"T": frames, "B": trajectory, "C": slice(None)}
            axes, stored = found.axes, each.values
            if isinstance(stored, list):
                stored = stored[trajectory]
            part = np.asarray(stored[tuple(at[letter] for letter in axes)])
            columns.append(ordered(part, axes.replace("B", "")))
        return np.concatenate(columns, -1)

    def _stacked(
        self, field: tuple[Any, str], pieces: Sequence[tuple[int, int]], kept: range
    ) -> Shaped[np.ndarray, "B ..."]:
        """A field with a letter for each of its axes, of some pieces; what is the same at all points is repeated."""
        values, letters = field
        at: dict[str, Any] = dict(zip("XYZ", (slice(n) for n in self.found.points), strict=False))
        rest = letters.replace("B", "")
        rows = []
        for trajectory, start in pieces:
            frames = slice(start + kept.start, start + kept.stop, kept.step)
            stored = values[trajectory] if isinstance(values, list) else values
            here = rest if isinstance(values, list) else letters
            part = np.asarray(stored[tuple((at | {"B": trajectory, "T": frames})[letter] for letter in here)])
            part = ordered(part, rest)[..., 0]
            if not set(rest) & set("XYZ"):
                part = np.broadcast_to(part.reshape(-1, *(1,) * self.grid.dimension), (len(part), *self.grid.shape))
            rows.append(part)
        return np.stack(rows) if rows else np.empty((0, *(len(kept),) * ("T" in rest), *self.grid.shape))

    def _refuse(self, values: np.ndarray, rows: Int[np.ndarray, " B"], what: str) -> None:
        if np.isfinite(values).all():
            return
        row, frame, *point, channel = (int(n) for n in np.argwhere(~np.isfinite(values))[0])
        trajectory, start = self.pieces[rows[row]]
        which = what or f"channel {self.channels[channel]!r} at frame {start + frame}"
        raise UserError(
            f"{self.source}: trajectory {trajectory} has NaN or infinite values in {which}, point "
            f"{tuple(point)}; leave the trajectory out or mend it, or give a mask of the points that are in the domain"
        )


def _starts(length: int, frames: int) -> list[int]:
    """Where pieces of so many frames begin that cover all of a trajectory: the last one may overlap."""
    starts = list(range(0, length - frames + 1, frames))
    return starts if starts[-1] + frames == length else [*starts, length - frames]


def open_arrays(path: str | Path, task: str | TaskSpec | None = None, **told: Any) -> Arrays:
    """A file of arrays. Those we wrote say themselves what they are."""
    contents = contents_of(path)
    name = task.name if isinstance(task, TaskSpec) else task
    if contents.header is not None:
        if told:
            raise UserError(f"{path} says itself what its arrays are; leave out {next(iter(told))}")
        return Arrays(_described(contents, named(contents.header, task)), contents.source)
    spec = registered_task(task) if isinstance(task, TaskSpec) else None
    if spec is not None and "channels" not in told and len(contents.arrays) == 1:
        told["channels"] = spec.channel_names
    found = understood(contents, Told(**told), name or contents.stem)
    if not found.timed:
        held = ", ".join(contents.arrays)
        known = [each for each in tasks() if task is None or each.name == name] if spec is None else [spec]
        if lacking := _lacking(contents.arrays, known):
            raise UserError(f"{path} holds {held}, but not {lacking}; add it, or give dt (--dt) of another system")
        raise UserError(
            f"{path} holds {held} in none of the published layouts, and does not say its times; give dt (--dt)"
        )
    return Arrays(found, contents.source)


def _lacking(held: Collection[str], specs: Iterable[TaskSpec]) -> str:
    """What a file that has some of a task's channels lacks to have all; empty where it has all of one, or none."""
    partly = [spec for spec in specs if set(spec.channel_names) & set(held)]
    fewest = min(partly, key=lambda spec: len(set(spec.channel_names) - set(held)), default=None)
    missing = [name for name in fewest.channel_names if name not in held] if fewest else []
    return f"{', '.join(missing)}, which {fewest.name} has too" if fewest and missing else ""


def _described(contents: Contents, header: Header) -> Understood:
    """What the file's own description says, which its arrays must agree with."""
    arrays, count = contents.arrays, None
    space = "XYZ"[: header.grid.dimension]
    varying = [name for name, value in header.parameters.items() if value is None]
    masks = [MASK] if header.masked else []
    for name in (*header.channels, *header.static, *header.forcings, *masks, *varying):
        tail = () if name in header.parameters else header.grid.shape
        timed = name in header.channels or header.forcings.get(name)
        tail = (len(header.times), *tail) if timed else tail
        shape = arrays[name].shape if name in arrays else None
        count = count or (shape or (0,))[0]
        if shape != (count, *tail):
            raise UserError(
                f"{contents.source}: {name!r} has the shape {shape}, but its description says {(count, *tail)}; "
                "make the file again"
            )
    parameters = {
        name: np.asarray(arrays[name].values[()], np.float64) if value is None else np.full(count or 0, value)
        for name, value in header.parameters.items()
    }
    return Understood(
        header,
        tuple(NamedArray(arrays[name].values) for name in header.channels),
        "BT" + space,
        header.grid.shape,
        (len(header.times),) * (count or 0),
        (header.times,) * (count or 0),
        parameters,
        {name: (arrays[name].values, "B" + space) for name in header.static},
        {name: (arrays[name].values, ("BT" if timed else "B") + space) for name, timed in header.forcings.items()},
        (arrays[MASK].values, "B" + space) if header.masked else None,
        (),
        (),
        True,
    )
