"""What all trajectories of a file have in common: known when it is opened, needed before it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.errors import UserError
from ups.fields import Batch, Boundary, Conditions, Grid, Header, TaskSpec, Trajectory


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


def trajectory(header: Header, batch: Batch, row: int) -> Trajectory:
    """One trajectory of a batch that was read from a file with this header."""
    return Trajectory(
        values=batch.values[row],
        channels=header.channels,
        space=batch.grid,
        times=batch.times[row],
        boundary=header.boundary,
        conditions=Conditions(
            {name: float(values[row]) for name, values in batch.parameters.items()},
            {name: values[row] for name, values in batch.static.items()},
            {name: values[row] for name, values in batch.forcings.items()},
        ),
        task=header.task,
        licence=header.licence,
        mask=None if batch.mask is None else batch.mask[row],
    )


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


def header_of(trajectories: Sequence[Trajectory]) -> Header:
    """The header of trajectories that are to go into one file: they must share all but values and parameters."""
    if not trajectories:
        raise UserError("there are no trajectories to write; give at least one")
    first = trajectories[0]
    for number, other in enumerate(trajectories):
        for what, same in (
            ("grid", other.space.same_as(first.space)),
            ("times", torch.equal(other.times, first.times)),
            ("channels", other.channels == first.channels),
            ("boundary", other.boundary == first.boundary),
            ("task", other.task == first.task),
            ("licence", other.licence == first.licence),
            ("names of conditions", _names(other) == _names(first)),
            ("precision", other.values.dtype == first.values.dtype),
        ):
            if not same:
                raise UserError(f"trajectory {number} has another {what} than the first; write them to separate files")
    parameters = {
        name: float(value) if all(t.conditions.parameters[name] == value for t in trajectories) else None
        for name, value in first.conditions.parameters.items()
    }
    return Header(
        task=first.task,
        channels=first.channels,
        grid=first.space,
        times=first.times.double(),
        boundary=first.boundary,
        parameters=parameters,
        static=tuple(first.conditions.static),
        forcings={name: field.dim() > first.space.dimension for name, field in first.conditions.forcings.items()},
        masked=first.mask is not None,
        dtype=first.values.dtype,
        licence=first.licence,
    )


def _names(trajectory: Trajectory) -> tuple[set[str], set[str], set[str], bool]:
    conditions = trajectory.conditions
    return set(conditions.parameters), set(conditions.static), set(conditions.forcings), trajectory.mask is not None


def batch_of(header: Header, trajectories: Sequence[Trajectory]) -> Batch:
    """Trajectories as a batch; they are those the header was made of."""
    return Batch(
        task=header.task,
        values=torch.stack([t.values for t in trajectories]),
        times=header.times.expand(len(trajectories), -1),
        grid=header.grid,
        boundary=header.boundary,
        parameters={
            name: torch.tensor([float(t.conditions.parameters[name]) for t in trajectories], dtype=torch.float64)
            for name in header.parameters
        },
        static={name: torch.stack([t.conditions.static[name] for t in trajectories]) for name in header.static},
        ids=torch.arange(len(trajectories)),
        forcings={name: torch.stack([t.conditions.forcings[name] for t in trajectories]) for name in header.forcings},
        mask=torch.stack([t.mask for t in trajectories if t.mask is not None]) if header.masked else None,
    )


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
