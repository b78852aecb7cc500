"""What all trajectories of a file have in common: known when it is opened, needed before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.fields import Batch, Boundary, Grid, Header, TaskSpec


class Described:
    """Gives a dataset with a header the properties that are its header's."""

    header: Header

    @property
    def task(self) -> str:
        return self.header.task

    @property
    def channels(self) -> tuple[str, ...]:
        return self.header.channels

    @property
    def grid(self) -> Grid:
        return self.header.grid

    @property
    def times(self) -> Float[Tensor, " T"]:
        return self.header.times

    @property
    def boundary(self) -> Boundary:
        return self.header.boundary


def named(header: Header, task: str | TaskSpec | None) -> Header:
    """The header under the name of the task asked for, if any."""
    name = task.name if isinstance(task, TaskSpec) else task
    return replace(header, task=name) if name else header


def common(headers: list[Header]) -> Header:
    """The header of data put together: parameters that differ are said to, licences all hold, and only notes that are
    true of every part stay; the key of generated data is of one file, so it never does.
    """
    first = headers[0]
    if len(headers) == 1:
        return first
    parameters = {
        name: value if all(other.parameters.get(name) == value for other in headers) else None
        for name, value in first.parameters.items()
    }
    licences = dict.fromkeys(word for header in headers for word in header.licence.split("; ") if word)
    notes = {
        name: value
        for name, value in first.notes.items()
        if name != "key" and all(name in other.notes and other.notes[name] == value for other in headers)
    }
    return replace(first, parameters=parameters, licence="; ".join(licences), notes=notes)


def rows_of(header: Header, count: int) -> dict[str, Float[Tensor, " B"]]:
    """The parameters that all trajectories share, as a batch of `count` has them."""
    return {
        name: torch.full((count,), value, dtype=torch.float64)
        for name, value in header.parameters.items()
        if value is not None
    }


def batch_from(
    header: Header,
    rows: Int[np.ndarray, " B"],
    frames: slice,
    values: Float[np.ndarray, "B T *space C"],
    static: Mapping[str, Float[np.ndarray, "B *space"]] | None = None,
    parameters: Mapping[str, Float[Tensor, " B"]] | None = None,
) -> Batch:
    """What a reader has read, as a batch; `parameters` are those that differ between trajectories."""
    return Batch(
        task=header.task,
        values=torch.from_numpy(values),
        times=header.times[frames].expand(len(rows), -1),
        grid=header.grid,
        boundary=header.boundary,
        parameters={**rows_of(header, len(rows)), **(parameters or {})},
        static={name: torch.from_numpy(field) for name, field in (static or {}).items()},
        ids=torch.from_numpy(rows),
    )


def keeping(header: Header, static: bool = False, mask: bool = False) -> Header:
    """The header of what is left in a layout without forcings, and without static fields and mask unless said."""
    return replace(header, static=header.static if static else (), forcings={}, masked=header.masked and mask)


def not_kept(header: Header, kept: Header) -> list[str]:
    """In words, what a header has that the header of what was kept does not."""
    lost = [f"static field {name}" for name in header.static if name not in kept.static]
    lost += [f"forcing {name}" for name in header.forcings if name not in kept.forcings]
    return lost + (["the mask"] if header.masked and not kept.masked else [])
