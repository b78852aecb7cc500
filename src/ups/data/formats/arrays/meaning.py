"""What a person says of their arrays, and what these are then taken for; said in a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ups.data.formats.arrays.contents import NamedArray
from ups.fields import Header


@dataclass(frozen=True)
class Told:
    """What a person says of their arrays; what they do not say is found in them, or assumed.

    `axes` has a letter an axis (B trajectories, T time, X Y Z space, C channels); `lengths` the domain's lengths, or
    (lower, upper) pairs; `boundary` is one kind for every side, or a list with one entry an axis, or a mapping of axes
    to kinds; `parameters` have a number for each trajectory, or one for all; `static` fields have the grid's
    shape, with or without an axis of trajectories in front.
    """

    axes: str | None = None
    dt: float | None = None
    times: Any = None
    lengths: Any = None
    boundary: Any = None
    channels: Sequence[str] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    static: Mapping[str, Any] = field(default_factory=dict)
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
    are lists; `points` how many along each axis are kept; `lengths` the frames of each trajectory; `timed` whether
    anything says when frames are; `offset` the channels that vary little about a large mean. `rows` and `notes` say it
    to a person.
    """

    header: Header
    fields: tuple[NamedArray, ...]
    axes: str
    points: tuple[int, ...]
    lengths: tuple[int, ...]
    parameters: Mapping[str, Float[np.ndarray, " B"]]
    static: Mapping[str, tuple[Any, str]]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    timed: bool
    offset: tuple[str, ...] = ()

    def noted(self, notes: Mapping[str, Any]) -> Understood:
        return replace(self, header=replace(self.header, notes={**self.header.notes, **notes}))

    def header_of(self, frames: int) -> Header:
        """That of pieces of so many frames."""
        return replace(self.header, times=self.header.times[:frames])


def shown(found: Understood) -> Iterator[str]:
    """The table, a line a row, and the notes."""
    widths = [max(len(getattr(row, part)) for row in found.rows) for part in ("what", "value")]
    for row in found.rows:
        yield f"  {row.what.ljust(widths[0])}  {row.value.ljust(widths[1])}  {row.how}".rstrip()
    yield from (f"note: {note}" for note in found.notes)
