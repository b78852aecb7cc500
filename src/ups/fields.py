"""The words every room speaks.

Shapes use one alphabet: B batch, H history, T time, X Y Z space, P points, C channels, D latent width; channels are
last at every border. Values are physical (never normalised) unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ups.errors import UserError

AXES = ("x", "y", "z")

Kind = Literal["periodic", "value", "flux", "robin", "reflecting", "open"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Side:
    """What holds on one side of an axis: the kind, and the prescribed value (or flux) per channel.

    0 for all if empty; channels beyond those given have none prescribed.
    """

    kind: Kind
    value: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"boundary kind {self.kind!r} is unknown; use one of {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(f'{v:g}' for v in self.value)}" if any(self.value) else self.kind


@dataclass(frozen=True)
class Boundary:
    sides: tuple[tuple[Side, Side], ...]

    def __post_init__(self) -> None:
        for axis, (lower, upper) in enumerate(self.sides):
            if (lower.kind == "periodic") != (upper.kind == "periodic"):
                raise UserError(f"axis {AXES[axis]} is periodic on one side only; make both sides periodic or neither")

    @classmethod
    def all(cls, kind: Kind, dimension: int, value: tuple[float, ...] = ()) -> Boundary:
        """The same kind on every side: `Boundary.all("periodic", 1)`."""
        return cls(((Side(kind, value), Side(kind, value)),) * dimension)

    @property
    def kinds(self) -> str:
        """In words: `periodic/periodic, open/value`."""
        return ", ".join("/".join(side.kind for side in pair) for pair in self.sides)

    @property
    def periodic(self) -> tuple[bool, ...]:
        return tuple(lower.kind == "periodic" for lower, _ in self.sides)


@dataclass(frozen=True, eq=False)
class Grid:
    """A rectangular grid that knows where its points truly are.

    `positions[i]` are the coordinates along axis i (float64, increasing), `extent[i]` the domain's (lower, upper).
    Cell centres and nodes differ by half a cell: taking one for the other costs more error than most models have.
    """

    positions: tuple[Float[Tensor, "_"], ...]
    extent: tuple[tuple[float, float], ...]

    @classmethod
    def cell_centred(cls, shape: Sequence[int], extent: Sequence[tuple[float, float]] | None = None) -> Grid:
        """Points in the middle of n equal cells: x_i = lower + (i + 1/2) L / n."""
        return cls._uniform(shape, extent, 0.5)

    @classmethod
    def nodal(cls, shape: Sequence[int], extent: Sequence[tuple[float, float]] | None = None) -> Grid:
        """Points at x_i = lower + i L / n: index 0 on the lower wall, the upper end not stored."""
        return cls._uniform(shape, extent, 0.0)

    @classmethod
    def _uniform(cls, shape: Sequence[int], extent: Sequence[tuple[float, float]] | None, offset: float) -> Grid:
        spans = tuple((float(a), float(b)) for a, b in extent) if extent is not None else ((0.0, 1.0),) * len(shape)
        positions = tuple(
            lower + (torch.arange(n, dtype=torch.float64) + offset) * ((upper - lower) / n)
            for n, (lower, upper) in zip(shape, spans, strict=True)
        )
        return cls(positions, spans)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(p) for p in self.positions)

    @property
    def dimension(self) -> int:
        return len(self.positions)

    @property
    def lengths(self) -> tuple[float, ...]:
        return tuple(upper - lower for lower, upper in self.extent)

    @property
    def spacing(self) -> tuple[float, ...]:
        """Mean distance between neighbours along each axis."""
        return tuple(
            float(p[-1] - p[0]) / (len(p) - 1) if len(p) > 1 else length
            for p, length in zip(self.positions, self.lengths, strict=True)
        )

    def points(self) -> Float[Tensor, "P dim"]:
        """All points in row-major order, as a list of coordinates."""
        return torch.stack(torch.meshgrid(*self.positions, indexing="ij"), -1).reshape(-1, self.dimension)

    def same_as(self, other: Grid) -> bool:
        return (
            self.extent == other.extent
            and self.shape == other.shape
            and all(torch.equal(a, b.to(a.device)) for a, b in zip(self.positions, other.positions, strict=True))
        )


@dataclass(frozen=True, eq=False)
class Conditions:
    """What a solution depends on besides its start: PDE parameters, static fields, forcings, the shape of its domain.

    `static` fields have the grid's shape; a `forcing` may have a time axis before that, with its field now and after
    each step to come. `mask` is True where a cell is part of the domain; without one, all are.
    """

    parameters: Mapping[str, float | Tensor] = field(default_factory=dict)
    static: Mapping[str, Tensor] = field(default_factory=dict)
    forcings: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One solution: a field over time. A steady problem has T = 1."""

    values: Float[Tensor, "T *space C"]
    channels: tuple[str, ...]
    space: Grid
    times: Float[Tensor, " T"]
    boundary: Boundary
    conditions: Conditions = field(default_factory=Conditions)
    task: str = ""
    licence: str = ""
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        expected = (len(self.times), *self.space.shape, len(self.channels))
        if tuple(self.values.shape) != expected:
            raise UserError(
                f"trajectory of task {self.task!r} has values of shape {tuple(self.values.shape)}, but its times, "
                f"space and channels say {expected} (time, space, channels)"
            )


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows of several trajectories of one task on one grid. A forcing has a time axis where it depends on time.

    `mask` is True where a cell is part of a trajectory's domain, None where all are; fields are zero in other cells.
    """

    task: str
    values: Float[Tensor, "B T *space C"]
    times: Float[Tensor, "B T"]
    grid: Grid
    boundary: Boundary
    parameters: Mapping[str, Float[Tensor, " B"]]
    static: Mapping[str, Float[Tensor, " B *space"]]
    ids: Int[Tensor, " B"]
    forcings: Mapping[str, Float[Tensor, " B *space"] | Float[Tensor, "B T *space"]] = field(default_factory=dict)
    mask: Bool[Tensor, " B *space"] | None = None

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        return tuple(self.values.shape)

    def select(self, places: Sequence[int]) -> Batch:
        """Some of the trajectories, in the order given."""
        rows = torch.tensor(places, dtype=torch.long)
        return self.mapped(lambda tensor: tensor[rows.to(tensor.device)], self.ids[rows.to(self.ids.device)])

    def mapped(self, change: Callable[[Tensor], Tensor], ids: Int[Tensor, " N"] | None = None) -> Batch:
        """The same with `change` applied to each tensor that a step computes from, always in the same order; `ids` are
        given where it is of other trajectories then.
        """
        return replace(
            self,
            values=change(self.values),
            times=change(self.times),
            parameters={name: change(value) for name, value in self.parameters.items()},
            static={name: change(value) for name, value in self.static.items()},
            ids=self.ids if ids is None else ids,
            forcings={name: change(value) for name, value in self.forcings.items()},
            mask=None if self.mask is None else change(self.mask),
        )

    def to(self, where: torch.device | str, dtype: torch.dtype | None = None) -> Batch:
        """On another device, and its fields and parameters in another precision."""
        moved = self.mapped(lambda tensor: tensor.to(where, dtype if tensor.is_floating_point() else None))
        return replace(moved, times=self.times.to(where))


@dataclass(frozen=True)
class Channel:
    """A stored field: its name, the transform under which it is learned, and the vector it is a component of."""

    name: str
    transform: Literal["identity", "log", "standardised"] = "identity"
    vector: str | None = None


@dataclass(frozen=True)
class Invariant:
    """A quantity the exact solution keeps: the spatial mean of `channel`, to `tolerance` of the channel's rms."""

    channel: str
    tolerance: float = 1e-5


@dataclass(frozen=True)
class TaskSpec:
    """What a task is, independent of where its data lie and of any model.

    `latent_spacing` is the distance between the model's latent points; it belongs to the task, so inputs of any
    resolution meet the same operator. None is a latent for every point of the training data. `dt` is the time between
    frames, None where the data are to say it, and of trained tasks where each step has its own; a steady task has none.
    `masked` says whether every trajectory has a mask. `source` says where data come from:
    {"equation": name, ...} or {"path": ...}. `units` are words for people, by channel, parameter, axis and "time".
    """

    name: str
    dimension: int
    channels: tuple[Channel, ...]
    boundary: Boundary
    latent_spacing: float | None = None
    parameters: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    forcings: tuple[str, ...] = ()
    masked: bool = False
    history: int = 1
    dt: float | None = None
    steady: bool = False
    invariants: tuple[Invariant, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.dimension <= 3:
            raise UserError(f"task {self.name!r}: dimension is {self.dimension}; use 1, 2 or 3")
        if len(self.boundary.sides) != self.dimension:
            raise UserError(
                f"task {self.name!r}: boundary names {len(self.boundary.sides)} axes, dimension says {self.dimension}"
            )
        if not self.channels:
            raise UserError(f"task {self.name!r}: give at least one channel")
        if self.dt is not None and not (math.isfinite(self.dt) and self.dt > 0):
            raise UserError(f"task {self.name!r}: dt is {self.dt}; give a positive time")
        if self.steady and self.dt is not None:
            raise UserError(f"task {self.name!r}: a steady task has no dt; leave it out")
        walls = [side for pair in self.boundary.sides for side in pair if side.kind == "value"]
        if self.steady and any(value != 0 for side in walls for value in side.value):
            raise UserError(f"task {self.name!r}: a steady task starts from zero, so its wall values must be zero")
        spacing = self.latent_spacing
        if spacing is not None and not (math.isfinite(spacing) and spacing > 0):
            raise UserError(f"task {self.name!r}: latent_spacing is {spacing}; give a positive length")

    @property
    def channel_names(self) -> tuple[str, ...]:
        return tuple(channel.name for channel in self.channels)

    @property
    def given(self) -> tuple[str, ...]:
        """What a step is given beside the state, a channel each: static fields, every forcing at the step's start and
        at its end, and the mask.
        """
        ends = (f"forcing_{name}{end}" for name in self.forcings for end in ("", "_end"))
        return (*(f"static_{name}" for name in self.static), *ends, *(("mask",) if self.masked else ()))

    def patch(self, grid: Grid) -> tuple[int, ...]:
        """Points along each axis that share a latent: as many as make up the latent spacing on this grid, at most 8."""
        if self.latent_spacing is None:
            return (1,) * grid.dimension
        return tuple(min(8, max(1, round(self.latent_spacing / spacing))) for spacing in grid.spacing)


@dataclass(frozen=True, eq=False)
class Header:
    """What all trajectories of a dataset have in common: known when it is opened, needed before it is written.

    `own_times` are those of each trajectory where they differ; `times` are then the first's. `parameters` has one entry
    a name: its value, or None where it differs between trajectories. `forcings` says of each whether it depends on
    time. `notes` are facts about how the data came to be (solver, seed, key), plain values. `test_at` is the
    end of the data that publications test on, `given` the number of first frames that they give to a model there: what
    follows is predicted and scored.
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
    test_at: Literal["first", "last"] = "first"
    given: int = 1
    own_times: Float[Tensor, "N T"] | None = None

    @property
    def units(self) -> dict[str, str]:
        """As far as the data say them, by channel, parameter, axis and "time"."""
        return dict(self.notes.get("units", {}))

    @property
    def steady(self) -> bool:
        return len(self.times) == 1

    @property
    def dt(self) -> float | None:
        """The time between frames, None where it is not the same between all frames of all trajectories."""
        if self.steady:
            return None
        times = self.times[None] if self.own_times is None else self.own_times
        dt = float(times[0, -1] - times[0, 0]) / (times.shape[1] - 1)
        return dt if dt > 0 and float((times.diff() - dt).abs().max()) <= 1e-4 * dt else None


class Dataset(Protocol):
    """Trajectories of one task on one grid, read lazily. Task, channels, grid, times and boundary are the header's."""

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

    def __getitem__(self, index: int) -> Trajectory:
        """One trajectory, whole; negative ones count from the end. A dataset can be iterated."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"trajectory {index} is not among the {len(self)} of this dataset")
        batch, header = self.read([index % len(self)], slice(None)), self.header
        conditions = Conditions(
            {name: float(values[0]) for name, values in batch.parameters.items()},
            {name: values[0] for name, values in batch.static.items()},
            {name: values[0] for name, values in batch.forcings.items()},
        )
        mask = None if batch.mask is None else batch.mask[0]
        return Trajectory(
            batch.values[0], self.channels, self.grid, batch.times[0], self.boundary, conditions, self.task,
            header.licence, mask,
        )  # fmt: skip

    def __len__(self) -> int: ...
    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        """The given trajectories at the given frames, reading only those bytes."""
        ...
