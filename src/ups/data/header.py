"""What all trajectories of a file have in common: known when it is opened, needed before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Batch, Boundary, Conditions, Grid, Trajectory


@dataclass(frozen=True, eq=False)
class Header:
    """The description of a data file.

    `parameters` has one entry a name: its value, or None where it differs between trajectories. `forcings` says of each
    whether it depends on time. `notes` are facts about how the data came to be (solver, seed, key), plain values.
    """

    task: str
    channels: tuple[str, ...]
    grid: Grid
    times: Float[Tensor, " T"]
    boundary: Boundary
    parameters: Mapping[str, float | None] = field(default_factory=dict)
    static: tuple[str, ...] = ()
    forcings: Mapping[str, bool] = field(default_factory=dict)
    masked: bool = False
    dtype: torch.dtype = torch.float32
    licence: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steady(self) -> bool:
        return len(self.times) == 1


class Described:
    """Gives a dataset the properties that its header has."""

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
    """The header of data put together: parameters that differ are said to."""
    first = headers[0]
    parameters = {
        name: value if all(other.parameters.get(name) == value for other in headers) else None
        for name, value in first.parameters.items()
    }
    return replace(first, parameters=parameters)
