"""What a person says of their arrays, and what these are then taken for; said in a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.formats.arrays.contents import NamedArray
from ups.fields import Header


@dataclass(frozen=True)
class Told:
    """What a person says of their arrays; what they do not say is found in them, or assumed.

    `axes` has a letter an axis (B trajectories, T time, X Y Z space, C channels); `lengths` the domain's lengths, or
    (lower, upper) pairs; `boundary` is one kind for every side, or a list with one entry an axis, or a mapping of axes
    to kinds; `parameters` have a number for each trajectory, or one for all; `static` fields have the grid's
    shape, with or without an axis of trajectories in front, `forcings` also an axis of time, or that alone; `mask` is
    like a static field, not zero where a cell is part of the domain. Of arrays that lie beside the fields, their names
    are enough.
    """

    axes: str | None = None
    dt: float | None = None
    times: Any = None
    lengths: Any = None
    boundary: Any = None
    channels: Sequence[str] | None = None
    parameters: Mapping[str, Any] | Sequence[str] = field(default_factory=dict)
    static: Mapping[str, Any] | Sequence[str] = field(default_factory=dict)
    forcings: Mapping[str, Any] | Sequence[str] = field(default_factory=dict)
    mask: Any = None
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One line of what is shown: what it is, its value, and how it is known."""

    what: str
    value: str
    how: str = ""


@dataclass(frozen=True, eq=False)
class Understood:
    """`fields` are the arrays of the channels, in order, `axes` a letter for each of their axes, without B where they
    are lists; `points` how many along each axis are kept; `lengths` the frames of each trajectory, `times` when they
    are; `timed` whether anything says so; `offset` the channels that vary little about a large mean. `rows` and `notes`
    say it to a person.
    """

    header: Header
    fields: tuple[NamedArray, ...]
    axes: str
    points: tuple[int, ...]
    lengths: tuple[int, ...]
    times: tuple[Float[Tensor, " _"], ...]
    parameters: Mapping[str, Float[np.ndarray, " B"]]
    static: Mapping[str, tuple[Any, str]]
    forcings: Mapping[str, tuple[Any, str]]
    mask: tuple[Any, str] | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    timed: bool
    offset: tuple[str, ...] = ()

    def noted(self, notes: Mapping[str, Any]) -> Understood:
        return replace(self, header=replace(self.header, notes={**self.header.notes, **notes}))

    def header_of(self, pieces: Sequence[tuple[int, int]], frames: int) -> Header:
        """That of pieces of so many frames, each of a trajectory from a frame on. Equal steps count from the start."""
        if self.header.dt is not None:
            return replace(self.header, times=self.header.times[:frames])
        own = torch.stack([self.times[trajectory][start : start + frames] for trajectory, start in pieces])
        return replace(self.header, times=own[0], own_times=own if (own != own[0]).any() else None)


def shown(found: Understood) -> Iterator[str]:
    """The table, a line a row, and the notes."""
    widths = [max(len(getattr(row, part)) for row in found.rows) for part in ("what", "value")]
    for row in found.rows:
        yield f"  {row.what.ljust(widths[0])}  {row.value.ljust(widths[1])}  {row.how}".rstrip()
    yield from (f"note: {note}" for note in found.notes)
