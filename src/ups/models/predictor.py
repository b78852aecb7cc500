"""What evaluation, simulator, report and server hold instead of a model.

    state = predictor.start("burgers", frames, Conditions({"nu": nu}), grid)
    state = predictor.step(state, lead)                             # or sample(state, lead, seed, members)
    predictor.decode(state)                                         # (B, *space, C) on the grid of the frames

Physical units go in and come out; what lies between is the predictor's own. An operator, an FNO and a U-Net are one
predictor each (`rollout.operator`); here are those that need no model, and a family of predictors as one. Users
register theirs, `ups.register_predictor(UntrainedPredictor("solver", build))`, which `compare: {solver: {}}` then sets
beside the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.config.named import Registry
from ups.config.settings import Strict
from ups.data.prepare.row_ranges import batches
from ups.fields import Conditions, Dataset, Grid
from ups.models.interpolation import reader
from ups.models.saved import TrainedTask

Target = Grid | Float[Tensor, "P dim"]
"""Where values are wanted: on a grid, or at points of the domain."""


@dataclass(frozen=True, eq=False)
class State:
    """Where a prediction stands. `history` are the last frames as the predictor keeps them: an operator's normalised
    and on the task's own grid, as are the static fields.

    Forcings and mask are kept like the static fields; `taken` counts the steps since the start, each of which has its
    own place on a forcing's axis of time. `grid` is that of the frames given; `first` the last of these on it,
    normalised, until the first step is taken: its channels are a field's, a history's may be a latent's. `members` of a
    sampled state: they are folded into the batch, except that a predictor without chance keeps what they share once;
    decoded values have them as first axis. Of an ensemble that is drawn in pieces, `earlier` members were drawn before
    these. `tables` keeps what all states of one start can use.
    """

    task: str
    history: Float[Tensor, "B H *own C"]
    static: Float[Tensor, "B *own S"]
    parameters: Mapping[str, Float[Tensor, " B"]]
    grid: Grid
    first: Float[Tensor, "B *space F"] | None = None
    members: int | None = None
    tables: dict[str, Any] = field(default_factory=dict, repr=False)
    forcings: Mapping[str, Float[Tensor, "B ..."]] = field(default_factory=dict)
    mask: Bool[Tensor, "B *own"] | None = None
    taken: int = 0
    earlier: int = 0

    def kept(self, name: str, of: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """What was made of these very objects before, or what is made of them now."""
        known = self.tables.get(name)
        if known is None or any(a is not b for a, b in zip(known[0], of, strict=True)):
            known = self.tables[name] = (of, make())
        return known[1]


class Predictor(Protocol):
    @property
    def tasks(self) -> Mapping[str, TrainedTask]:
        """Those it can predict."""
        ...

    @property
    def chance(self) -> bool:
        """Whether its members differ."""
        ...

    @property
    def like(self) -> Tensor:
        """A tensor where it computes and as exact as it computes; inputs elsewhere are brought there."""
        ...

    def to(self, where: torch.device | torch.dtype | str) -> Predictor:
        """Move to a device, or compute in another precision."""
        ...

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        """From the frames given, the last one is now. Of more than the predictor needs it takes the last, of fewer it
        repeats the first. A steady task starts from nothing: of its frames only the shape counts.
        """
        ...

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        """One lead time later; a steady task has none, and is solved. What chance there is, is left out."""
        ...

    def sample(self, state: State, lead: Float[Tensor, " B"] | None, seed: int, members: int) -> State:
        """The same with chance, for so many members; the seed is this step's alone. `state` has none yet, or as many
        from the step before.
        """
        ...

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        """(B, *space, C) on the grid of the frames given or on another one, or (B, P, C) at points; of a sampled state
        with the members before B.
        """
        ...


class Deterministic:
    """What predictors without chance have in common: a sample is a step, computed once and shared by all members."""

    chance = False

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        return state

    def sample(self, state: State, lead: Float[Tensor, " B"] | None, seed: int, members: int) -> State:
        return replace(self.step(state, lead), members=members)

    @staticmethod
    def shared(values: Float[Tensor, "B *points C"], state: State) -> Float[Tensor, "... C"]:
        return values if state.members is None else values.expand(state.members, *values.shape)


class _Trivial(Deterministic):
    """Knows no equation: it never changes."""

    def __init__(self, tasks: Iterable[TrainedTask]) -> None:
        self.tasks: Mapping[str, TrainedTask] = {learned.spec.name: learned for learned in tasks}
        self.like = torch.zeros(())

    def to(self, where: torch.device | torch.dtype | str) -> Self:
        self.like = self.like.to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        return State(task, frames[:, -1:], frames.new_zeros(*frames[:, -1, ..., 0].shape, 0), {}, grid)


class Persistence(_Trivial):
    """The last given frame, for ever."""

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        values = state.history[:, -1]
        if target is not None and not (isinstance(target, Grid) and target.same_as(state.grid)):
            learned = self.tasks[state.task]
            read = learned.reader(target, values, state.grid)
            values = learned.normaliser.physical(read(learned.normaliser.normalise(values)))
        return self.shared(values, state)


class MeanSolution(_Trivial):
    """For a steady task, what knows nothing of the sample: the mean solution of a dataset, the training set, at each
    point of those whose domain it is in.
    """

    def __init__(self, learned: TrainedTask, dataset: Dataset) -> None:
        super().__init__((learned,))
        total = torch.zeros(*dataset.grid.shape, len(dataset.channels), dtype=torch.float64)
        counted = torch.zeros(*dataset.grid.shape, 1, dtype=torch.float64)
        for batch in batches(dataset, 1):  # zero in cells that a mask excludes
            total += batch.values[:, 0].double().sum(0)
            counted += len(batch) if batch.mask is None else batch.mask.sum(0)[..., None]
        self._mean, self._grid = (total / counted.clamp_min(1))[None], dataset.grid

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        periodic = self.tasks[state.task].spec.boundary.periodic
        read = reader(self._grid, periodic, state.grid if target is None else target, {}, self._mean)
        values = read(self._mean).to(state.history)
        return self.shared(values.expand(len(state.history), *values.shape[1:]), state)


class PerTask:
    """A predictor for each task, by its name: a family of FNOs is one predictor."""

    def __init__(self, predictors: Mapping[str, Predictor]) -> None:
        self.predictors = dict(predictors)
        self.tasks: Mapping[str, TrainedTask] = {name: p.tasks[name] for name, p in self.predictors.items()}
        self.chance = any(p.chance for p in self.predictors.values())

    @property
    def like(self) -> Tensor:
        return next(iter(self.predictors.values())).like

    def to(self, where: torch.device | torch.dtype | str) -> PerTask:
        for predictor in self.predictors.values():
            predictor.to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        return self.predictors[task].start(task, frames, conditions, grid)

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        return self.predictors[state.task].step(state, lead)

    def sample(self, state: State, lead: Float[Tensor, " B"] | None, seed: int, members: int) -> State:
        return self.predictors[state.task].sample(state, lead, seed, members)

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        return self.predictors[state.task].decode(state, target)


@dataclass(frozen=True)
class UntrainedPredictor:
    """Needs no training. `build(tasks, settings)` gives the predictor of those of the run's tasks that it knows, its
    `tasks`; `settings` checks what a configuration says, `takes` which of `models.network.CONDITIONS` it can use.
    """

    name: str
    build: Callable[[Mapping[str, TrainedTask], Any], Predictor]
    settings: type[Strict] = Strict
    takes: tuple[str, ...] = ()


PREDICTORS = Registry[UntrainedPredictor]("predictor", {})


def register_predictor(predictor: UntrainedPredictor) -> UntrainedPredictor:
    """Make a predictor known by its name, which no other may have."""
    return PREDICTORS.add(predictor.name, predictor)
