"""What every equation offers. An equation is a value: it holds what defines its data and nothing of the machinery."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.distributed.runtime.host import host_memory
from ups.equations.schemes.marching import block_means, doublings, march
from ups.errors import UserError
from ups.fields import Batch, Boundary, Channel, Grid, Invariant, Kind, TaskSpec

Device = torch.device | str
Static = Mapping[str, Float[Tensor, "B *space"]]
"""Static fields by their names."""
Solution = tuple[Float[Tensor, "B T *space C"], Static]


STATES = 4
"""Fields that a solver holds at once, at least."""


class Equation(ABC):
    """A family of problems with random data: draw a trajectory by its index, solve it, say what was solved.

    Implementations are frozen dataclasses, so that equal equations are equal and hash alike. They have `points`,
    `frames` and `duration` among their settings (a steady one only the first). `title` and `formula` are what people
    are shown. `method` says in a few words how solutions are made (files carry it), `file` is the published name of the
    same data, both with settings in braces (`{n}` is the number of points solved on); `layout` is the file layout they
    are published in, and `static` names the fields a solution depends on.

    One field u on equal cells of the unit interval, periodic, without static fields, unless the equation says
    otherwise. All sides are of one kind, `sides`, with the values `wall`. `conserved` are the channels whose means are
    kept, `named` the settings that are parameters of the equation, `told` whether a model is told them, `vectors` names
    the vector that a channel is a component of; `positive` channels are learned as their logarithms. `closed` says
    whether a stored frame tells its own `rate`. Solutions are solved on at least `fewest` points an axis.

    A transient one says how to `advance` a state on its own grid, or how to `roll` without that; states are (B, *space)
    of one channel, (B, *space, C) of several.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    formula: ClassVar[str]
    method: ClassVar[str]
    file: ClassVar[str]
    fewest: ClassVar[int] = 0
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
    closed: ClassVar[bool] = True
    points: int
    frames: int
    duration: float

    def __post_init__(self) -> None:
        """Refuse what no transient solver can make sense of."""
        self.require("points", self.points >= 4, "give at least 4")
        self.require("frames", self.frames >= 2, "give at least 2")
        self.require("duration", 0 < self.duration < math.inf, "give a positive time")

    def require(self, setting: str, fine: bool, remedy: str) -> None:
        if not fine:
            raise UserError(f"{self.name}: {setting} is {getattr(self, setting)!r}; {remedy}")

    def check_memory(self) -> None:
        """Refuse a grid of which not even one trajectory can be solved: its state and a few like it, in float64, and
        the frames that are kept of it.
        """
        points, frames = float(self.points) ** self.dimension, 1 if self.steady else self.frames
        solved = STATES * points * self.refinement**self.dimension
        needed, room = 8 * len(self.channels) * (solved + points * frames), host_memory()
        if needed > room:
            raise UserError(
                f"{self.name}: a trajectory of {self.points:,} points an axis and {frames:,} frames needs at least "
                f"{needed / 1e9:,.0f} GB of memory to be solved, and there are {room / 1e9:,.0f}; give fewer points "
                "(--points) or frames (--frames)"
            )

    @property
    def solver(self) -> str:
        return self.method.format(**self._words())

    @property
    def published_name(self) -> str:
        return self.file.format(**self._words())

    def _words(self) -> dict[str, Any]:
        kinds = {field.name: field.type for field in fields(self)}  # pyright: ignore[reportArgumentType]
        values = {k: float(v) if kinds[k] in (float, "float") else v for k, v in vars(self).items()}
        return {**values, "n": self.points * self.refinement}

    @property
    def refinement(self) -> int:
        """How many internal points a stored one has along each axis."""
        return doublings(self.points, self.fewest)

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

    def refine(
        self, values: Float[Tensor, "B *space C"], static: Static, iterations: int
    ) -> Float[Tensor, "B *space C"]:
        """A steady solution after so many iterations of the solver, started from the given fields."""
        raise UserError(f"{self.name} has no solver that goes on from a guess; do without refining")

    def advance(self, state: Float[Tensor, "B *state"], now: float, later: float, /) -> Float[Tensor, "B *state"]:
        """The later state on its own grid."""
        raise NotImplementedError

    def roll(self, start: Float[Tensor, "B *state"], times: Float[Tensor, " T"], /) -> Float[Tensor, "B T *state"]:
        """The solution started from `start` at t = 0, on its own grid."""
        return torch.stack(list(march(self.name, start, times, self.advance)), 1)

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T *space C"]:
        """The batch's trajectories solved again from their first frame and static fields, averaged to `points` an axis.

        What a learned simulator is measured against: a solver is cheap when its grid is.
        """
        first, single = batch.values[:, 0].double(), len(self.channels) == 1
        start = block_means(self.name, first[..., 0] if single else first, points, range(1, 1 + self.dimension))
        rolled = self.roll(start, batch.times[0] - batch.times[0, 0])
        return rolled[..., None] if single else rolled

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


def balance(
    equation: Equation, values: Float[Tensor, "B T *space C"], times: Float[Tensor, "B T"], static: Static
) -> Float[Tensor, "B steps *space C"]:
    """How far each step between frames is from what the equation allows: u(t₁) − u(t₀) − ∫ rate dt.

    The integral is the trapezoidal rule over the two frames, so true solutions have a balance of third order in the
    time between frames: compare scores of predictions with each other, or with that of the truth.
    Steady fields have the residual, in one frame.
    """
    values = values.double()
    static = {name: field.double() for name, field in static.items()}
    rates = torch.stack([equation.rate(values[:, t], static) for t in range(values.shape[1])], 1)
    if equation.steady:
        return rates
    dt = times.diff(dim=1).reshape(len(values), -1, *(1,) * (values.dim() - 2))
    return values.diff(dim=1) - dt * (rates[:, 1:] + rates[:, :-1]) / 2


def frame_times(frames: int, duration: float) -> Float[Tensor, " T"]:
    """`frames` equal steps from 0 to `duration`."""
    return torch.arange(frames, dtype=torch.float64) * (duration / (frames - 1))
