"""A rollout that was checked, and its computing: alone, or with others like it in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ups.data.prepare.row_ranges import in_steps
from ups.fields import Conditions, Grid
from ups.models.predictor import Predictor, State, Target
from ups.models.saved import TrainedTask
from ups.rollout.predict import POINTS, advance
from ups.rollout.result import Rollout
from ups.rollout.schedule import Schedule
from ups.rollout.trust import Departures


@dataclass(frozen=True, eq=False)
class Question:
    """`frames` are (B, T, *space, C) on `grid`, `batched` says whether they came with B; `schedule` is None of a steady
    task; values are wanted at `target`; `notes` are what is to be warned of already.
    """

    learned: TrainedTask
    frames: Tensor
    conditions: Conditions
    grid: Grid
    target: Target
    schedule: Schedule | None
    members: int
    seed: int
    batched: bool
    notes: tuple[str, ...]

    @property
    def points(self) -> int:
        """Of a state, where it is wanted."""
        return math.prod(self.target.shape) if isinstance(self.target, Grid) else len(self.target)

    @property
    def steps(self) -> int:
        """That are computed."""
        return 1 if self.schedule is None else sum(count for _, count in self.schedule.runs)

    @property
    def states(self) -> int:
        """That are kept until the end, of each sample and member."""
        return 1 if self.schedule is None else len(self.schedule.needed)

    @property
    def bytes(self) -> int:
        """Of the states of all members, and of a copy."""
        numbers = len(self.frames) * self.members * self.states * self.points * len(self.learned.spec.channels)
        return 2 * numbers * self.frames.element_size()

    def kind(self) -> Hashable:
        """Questions of one kind can be computed together: what chance there is depends on the place in a batch."""
        of = self.conditions
        return (
            self.learned.spec.name,
            tuple(self.frames.shape[1:]),
            _place(self.grid),
            _place(self.target),
            None if self.schedule is None else self.schedule.runs,
            tuple(tuple(field.shape[1:]) for field in of.forcings.values()),
            self.members if self.members == 1 else id(self),
        )


def _place(where: Target) -> Hashable:
    if isinstance(where, Grid):
        return (where.extent, tuple(p.numpy().tobytes() for p in where.positions))
    return (tuple(where.shape), where.numpy().tobytes())


def answer(predictor: Predictor, question: Question) -> Rollout:
    """Its rollout, computed at once."""
    computing = answers(predictor, [question])
    while True:
        try:
            next(computing)
        except StopIteration as end:
            return end.value[0]


def answers(predictor: Predictor, questions: Sequence[Question]) -> Generator[None, None, list[Rollout]]:
    """The rollouts of questions of one kind. Pauses after every step, so that others can have their turn or it can be
    given up. Members that are too many for one batch come a few at a time.
    """
    first, frames = questions[0], _joined([q.frames for q in questions])
    conditions = _conditions([q.conditions for q in questions])
    start = predictor.start(first.learned.spec.name, frames, conditions, first.grid)
    counts = [len(q.frames) for q in questions]
    watched = [Departures(q.learned, q.conditions.mask) for q in questions]
    most = first.members
    if predictor.chance:
        most = max(1, POINTS // (len(frames) * math.prod(first.grid.shape)))
    pieces = []
    for part in in_steps(first.members, most):
        begun = replace(start, earlier=part.start)
        pieces.append((yield from _states(predictor, first, begun, len(part), counts, watched)))
    parts = _joined(pieces).split(counts, 1)
    return [_rollout(*of) for of in zip(questions, parts, watched, strict=True)]


def _states(
    predictor: Predictor,
    first: Question,
    state: State,
    members: int,
    counts: Sequence[int],
    watched: Sequence[Departures],
) -> Generator[None, None, Tensor]:
    """Those wanted of so many members, (M, B, N, *points, C)."""
    schedule, alone = first.schedule, first.members == 1
    needed = {0} if schedule is None else set(schedule.needed.tolist())
    states: list[Tensor] = []
    every = getattr(predictor, "watched", True)

    def see(values: Tensor, place: int) -> None:
        """Of the states of every member and sample, (M, B, *points, C), those wanted are kept."""
        for departures, part in zip(watched, values.split(counts, 1), strict=True):
            departures.see(part.flatten(0, 1), place)
        if place in needed:
            states.append(values)

    if schedule is not None:
        see(torch.stack([predictor.decode(state, first.target)] * members), 0)
    leads = [None] if schedule is None else schedule.leads(state.history)
    first_place = 0 if schedule is None else 1
    for place, after in enumerate(
        advance(predictor, state, leads, None if alone else members, first.seed), first_place
    ):
        if every or place in needed:
            values = predictor.decode(after, first.target)
            see(values[None] if alone else values, place)
        yield
    return torch.stack(states, 2)


def _rollout(question: Question, states: Tensor, departures: Departures) -> Rollout:
    """Of the states kept of every member and sample, (M, B, N, *points, C)."""
    spec, schedule, members = question.learned.spec, question.schedule, question.members
    when = torch.zeros(1, dtype=torch.float64) if schedule is None else schedule.when
    values = states if schedule is None else schedule.read(states.flatten(0, 1)).unflatten(0, (members, -1))
    values = values if question.batched else values[:, 0]
    values = values if members > 1 else values[0]
    warnings = (*question.notes, *departures.notes())  # also of steps that are not wanted
    return Rollout(values, when, spec.channel_names, spec.name, warnings, question.target, spec.units, members)


def _conditions(each: Sequence[Conditions]) -> Conditions:
    def joined(of: Callable[[Conditions], Mapping[str, float | Tensor]]) -> dict[str, Tensor]:
        return {name: _joined([torch.as_tensor(of(one)[name]) for one in each]) for name in of(each[0])}

    masks = [one.mask for one in each if one.mask is not None]
    return Conditions(
        joined(lambda one: one.parameters),
        joined(lambda one: one.static),
        joined(lambda one: one.forcings),
        _joined(masks) if masks else None,
    )


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
