"""What every equation offers. An equation is a value: it holds what defines its data and nothing of the machinery."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Batch, Boundary, Grid, TaskSpec


class Equation(Protocol):
    """A family of problems with random data: draw a trajectory by its index, solve it, say what was solved.

    Implementations are frozen dataclasses, so that equal equations are equal and hash alike. `solver` says in a few
    words how solutions are made (files carry it), `published_name` is the PDEBench name of the same data, and `static`
    names the fields a solution depends on.
    """

    name: ClassVar[str]
    channels: ClassVar[tuple[str, ...]]
    static: ClassVar[tuple[str, ...]]
    steady: ClassVar[bool]

    @property
    def solver(self) -> str: ...
    @property
    def published_name(self) -> str: ...
    @property
    def grid(self) -> Grid: ...
    @property
    def boundary(self) -> Boundary: ...
    @property
    def parameters(self) -> dict[str, float]: ...
    @property
    def times(self) -> Float[Tensor, " T"]: ...

    def solve(
        self,
        seed: int,
        ids: Sequence[int],
        times: Float[Tensor, " T"] | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Trajectories `ids` of the family `seed` at `times` (the equation's own if none are given).

        Computed in float64 and returned as float32. A trajectory depends on (seed, index) alone.
        """
        ...

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T *space C"]:
        """The batch's trajectories solved again from their first frame and static fields, on `points` per axis.

        What a learned simulator is measured against: a solver is cheap when its grid is.
        """
        ...

    def task(self) -> TaskSpec: ...


def frame_times(frames: int, duration: float) -> Float[Tensor, " T"]:
    """`frames` equal steps from 0 to `duration`."""
    return torch.arange(frames, dtype=torch.float64) * (duration / (frames - 1))


def check_transient(name: str, points: int, frames: int, duration: float) -> None:
    """Refuse what no transient one-dimensional solver can make sense of."""
    if points < 4:
        raise UserError(f"{name}: points is {points}; give at least 4")
    if frames < 2:
        raise UserError(f"{name}: frames is {frames}; give at least 2")
    if not 0 < duration < math.inf:
        raise UserError(f"{name}: duration is {duration}; give a positive time")


def solved_batch(
    equation: Equation,
    ids: Sequence[int],
    times: Float[Tensor, " T"],
    values: Float[Tensor, "B T *space C"],
    static: dict[str, Tensor] | None = None,
) -> Batch:
    """Pack float64 solutions as the float32 batch that readers and writers pass around."""
    count, device = len(ids), values.device
    return Batch(
        task=equation.name,
        values=values.to(torch.float32),
        times=times.to(device).expand(count, -1),
        grid=equation.grid,
        boundary=equation.boundary,
        parameters={
            name: torch.full((count,), value, dtype=torch.float64, device=device)
            for name, value in equation.parameters.items()
        },
        static={name: value.to(torch.float32) for name, value in (static or {}).items()},
        ids=torch.tensor(list(ids), dtype=torch.int64, device=device),
    )
