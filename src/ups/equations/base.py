"""What every equation offers. An equation is a value: it holds what defines its data and nothing of the machinery."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations.schemes.marching import block_means, march
from ups.errors import UserError
from ups.fields import Batch, Boundary, Channel, Grid, Invariant, Kind, TaskSpec

Device = torch.device | str
Static = Mapping[str, Float[Tensor, "B *space"]]
"""Static fields by their names."""
Solution = tuple[Float[Tensor, "B T *space C"], Static]


class Equation(ABC):
    """A family of problems with random data: draw a trajectory by its index, solve it, say what was solved.

    Implementations are frozen dataclasses that derive from it, or from `Equation1D`, so that equal equations are equal
    and hash alike. They have `points`, `frames` and `duration` among their settings (a steady one only the first).
    `title` and `formula` are what people are shown. `solver` says in a few words how solutions are made (files carry
    it), `published_name` is the published name of the same data, `layout` the file layout they are published in, and
    `static` names the fields a solution depends on.

    One field u on equal cells of the unit interval, periodic, without static fields, unless the equation says
    otherwise. All sides are of one kind, `sides`, with the values `wall`. `conserved` are the channels whose means are
    kept, `named` the settings that are parameters of the equation, `told` whether a model is told them, `vectors` names
    the vector that a channel is a component of; `positive` channels are learned as their logarithms.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    formula: ClassVar[str]
    channels: ClassVar[tuple[str, ...]] = ("u",)
    static: ClassVar[tuple[str, ...]] = ()
    steady: ClassVar[bool] = False
    layout: ClassVar[str] = "pdebench-tensor"
    dimension: ClassVar[int] = 1
    interval: ClassVar[tuple[float, float]] = (0.0, 1.0)
    sides: ClassVar[Kind] = "periodic"
    wall: ClassVar[tuple[float, ...]] = ()
    conserved: ClassVar[tuple[str, ...]] = ()
    named: ClassVar[tuple[str, ...]] = ()
    vectors: ClassVar[Mapping[str, str]] = {}
    positive: ClassVar[tuple[str, ...]] = ()
    history: ClassVar[int] = 1
    told: ClassVar[bool] = True
    points: int
    frames: int
    duration: float

    def __post_init__(self) -> None:
        """Refuse what no transient solver can make sense of."""
        if self.points < 4:
            raise UserError(f"{self.name}: points is {self.points}; give at least 4")
        if self.frames < 2:
            raise UserError(f"{self.name}: frames is {self.frames}; give at least 2")
        if not 0 < self.duration < math.inf:
            raise UserError(f"{self.name}: duration is {self.duration}; give a positive time")

    @property
    @abstractmethod
    def solver(self) -> str: ...

    @property
    @abstractmethod
    def published_name(self) -> str: ...

    @property
    def extent(self) -> tuple[tuple[float, float], ...]:
        return (self.interval,) * self.dimension

    @property
    def grid(self) -> Grid:
        return Grid.cell_centred((self.points,) * self.dimension, self.extent)

    @property
    def boundary(self) -> Boundary:
        return Boundary.all(self.sides, self.dimension, self.wall)

    @property
    def parameters(self) -> dict[str, float]:
        return {name: float(getattr(self, name)) for name in self.named}

    @property
    def times(self) -> Float[Tensor, " T"]:
        return frame_times(self.frames, self.duration)

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        return tuple(Invariant(channel, tolerance=1e-5) for channel in self.conserved)

    def task(self) -> TaskSpec:
        return TaskSpec(
            name=self.name,
            dimension=self.dimension,
            channels=tuple(
                Channel(name, "log" if name in self.positive else "identity", self.vectors.get(name))
                for name in self.channels
            ),
            boundary=self.boundary,
            parameters=tuple(self.parameters) if self.told else (),
            static=self.static,
            history=self.history,
            dt=None if self.steady else self.duration / (self.frames - 1),
            steady=self.steady,
            invariants=self.invariants,
            source={"equation": self.name},
        )

    @abstractmethod
    def rate(self, state: Float[Tensor, "B *space C"], static: Static) -> Float[Tensor, "B *space C"]:
        """∂u/∂t as the state and the static fields have it, in a conservative discrete form on the state's own grid.

        What predictions are scored by: `balance` compares frames with its integral; of a steady equation it is the
        residual, zero at the solution. Smooth, second order or better; not the solver's own limited fluxes.
        """

    @abstractmethod
    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T *space C"]:
        """The batch's trajectories solved again from their first frame and static fields, on `points` per axis.

        What a learned simulator is measured against: a solver is cheap when its grid is.
        """

    @abstractmethod
    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        """Values at the times and the static fields of trajectories `ids`, each from (seed, index) alone."""

    def solve(
        self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"] | None = None, device: Device = "cpu"
    ) -> Batch:
        """Trajectories `ids` of the family `seed` at `times` (the equation's own if none are given).

        Computed in float64 and returned as float32. A trajectory depends on (seed, index) alone.
        """
        times = self.times if times is None else times
        values, static = self.solutions(seed, ids, times, device)
        count, device = len(ids), values.device
        return Batch(
            task=self.name,
            values=values.to(torch.float32),
            times=times.to(device).expand(count, -1),
            grid=self.grid,
            boundary=self.boundary,
            parameters={
                name: torch.full((count,), value, dtype=torch.float64, device=device)
                for name, value in self.parameters.items()
            },
            static={name: value.to(torch.float32) for name, value in static.items()},
            ids=torch.tensor(list(ids), dtype=torch.int64, device=device),
        )


class Equation1D(Equation):
    """What equations on an interval have in common. It says how to `advance`, or how to `roll` without that."""

    def advance(self, state: Float[Tensor, "B X"], now: float, later: float, /) -> Float[Tensor, "B X"]:
        """The later state on its own grid."""
        raise NotImplementedError

    def roll(self, u0: Float[Tensor, "B X"], times: Float[Tensor, " T"]) -> Float[Tensor, "B T X"]:
        """The solution started from u0 at t = 0, on u0's own grid."""
        return torch.stack(list(march(self.name, u0, times, self.advance)), 1)

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T X C"]:
        """The same trajectories from their first frame averaged to fewer points, as `roll` solves them there."""
        start = block_means(self.name, batch.values[:, 0, :, 0].double(), points, (1,))
        return self.roll(start, batch.times[0] - batch.times[0, 0])[..., None]


def balance(equation: Equation, batch: Batch) -> Float[Tensor, "B steps *space C"]:
    """How far each step between frames is from what the equation allows: u(t₁) − u(t₀) − ∫ rate dt.

    The integral is the trapezoidal rule over the two frames, so true solutions have a balance of third order in the
    time between frames: compare scores of predictions with each other, or with that of the truth.
    A steady batch has the residual, in one frame.
    """
    values = batch.values.double()
    static = {name: field.double() for name, field in batch.static.items()}
    rates = torch.stack([equation.rate(values[:, t], static) for t in range(values.shape[1])], 1)
    if equation.steady:
        return rates
    dt = batch.times.diff(dim=1).reshape(len(batch), -1, *(1,) * (values.dim() - 2))
    return values.diff(dim=1) - dt * (rates[:, 1:] + rates[:, :-1]) / 2


def frame_times(frames: int, duration: float) -> Float[Tensor, " T"]:
    """`frames` equal steps from 0 to `duration`."""
    return torch.arange(frames, dtype=torch.float64) * (duration / (frames - 1))
