"""What is predicted from what: one step from every frame, a rollout from the frames given, a steady solve from nothing.

Whoever predicts, predictions are in physical units, on the grid of the trajectories and where these lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.prepare.row_ranges import in_steps, spread
from ups.data.sampler import mix
from ups.fields import Batch, Conditions, Dataset, TaskSpec
from ups.models.predictor import Predictor, State

CHUNK = 64
"""So many trajectories are predicted at once, at most."""
POINTS = 2**19
"""Their points, at most, unless one trajectory has more: what a network holds of a step grows with them."""


def read_all(dataset: Dataset, most: int | None = None) -> Batch:
    """A whole split, or `most` trajectories spread evenly over it."""
    return dataset.read(spread(dataset, most or len(dataset)), slice(None))


def advance(
    predictor: Predictor,
    state: State,
    leads: Iterable[Float[Tensor, " B"] | None],
    members: int | None = None,
    seed: int = 0,
) -> Iterator[State]:
    """Yield the states that follow, each one lead time after the last; of so many members, if any are said."""
    for number, lead in enumerate(leads):
        if members is None:
            state = predictor.step(state, lead)
        else:
            state = predictor.sample(state, lead, mix(seed, number), members)
        yield state


@torch.no_grad()
def rollout(predictor: Predictor, task: str, batch: Batch, given: int = 1) -> Float[Tensor, "N T *space C"]:
    """Every frame after the first `given` of each trajectory, predicted from these alone."""
    parts = []
    for part in chunks(batch):
        state = predictor.start(task, part.values[:, :given], conditions_of(part, given - 1), part.grid)
        states = advance(predictor, state, leads_of(part, predictor.tasks[task].spec, given))
        parts.append(torch.stack([predictor.decode(state) for state in states], 1).to(part.values.device))
    return torch.cat(parts)


@torch.no_grad()
def one_step(predictor: Predictor, task: str, batch: Batch) -> Float[Tensor, "N T *space C"]:
    """Frames 1 … T−1, each predicted from the true frames before it, of which the first has only one."""
    parts = []
    spec = predictor.tasks[task].spec
    for part in chunks(batch):
        frames = []
        for t, lead in enumerate(leads_of(part, spec, 1), start=1):
            past = part.values[:, max(0, t - spec.history) : t]
            state = predictor.start(task, past, conditions_of(part, t - 1, steps=1), part.grid)
            frames.append(predictor.decode(predictor.step(state, lead)))
        parts.append(torch.stack(frames, 1).to(part.values.device))
    return torch.cat(parts)


@torch.no_grad()
def half_steps(
    predictor: Predictor, task: str, batch: Batch, half: int
) -> tuple[Float[Tensor, "N S *space C"], Float[Tensor, "N S *space C"]]:
    """Two steps of `half` frames each, and one of as many as both, from the same true frames: the two ends.

    Starts are so far apart that the steps follow one another through the trajectories.
    """
    twice, once = [], []
    for part in chunks(batch):
        history, frames = predictor.tasks[task].spec.history, part.values.shape[1]
        lead = part.times[:, 1] - part.times[:, 0]
        ends: tuple[list[Tensor], list[Tensor]] = ([], [])
        for t in range(0, max(1, frames - 2 * half), 2 * half):
            for end, stride in zip(ends, (half, 2 * half), strict=True):
                past = [t - lag * stride for lag in reversed(range(history)) if lag * stride <= t]
                state = predictor.start(task, part.values[:, past], conditions_of(part, t, stride), part.grid)
                *_, state = advance(predictor, state, [stride * lead] * (2 * half // stride))
                end.append(predictor.decode(state))
        twice.append(torch.stack(ends[0], 1).to(part.values.device))
        once.append(torch.stack(ends[1], 1).to(part.values.device))
    return torch.cat(twice), torch.cat(once)


@torch.no_grad()
def steady(predictor: Predictor, task: str, batch: Batch) -> Float[Tensor, "N 1 *space C"]:
    """The solutions of a steady task."""
    parts = []
    for part in chunks(batch):
        state = predictor.start(task, torch.zeros_like(part.values), conditions_of(part), part.grid)
        parts.append(predictor.decode(predictor.step(state, None))[:, None].to(part.values.device))
    return torch.cat(parts)


def chunks(batch: Batch, most: int = CHUNK) -> Iterator[Batch]:
    """A few trajectories at a time."""
    for rows in in_steps(len(batch), max(1, min(most, POINTS // math.prod(batch.grid.shape)))):
        yield batch.select(rows)


def conditions_of(batch: Batch, now: int = 0, stride: int = 1, steps: int | None = None) -> Conditions:
    """What a prediction from frame `now` on depends on, in steps of `stride` frames; only for so many, if said."""
    space = batch.grid.dimension
    forcings = {
        name: field[:, now::stride][:, : None if steps is None else steps + 1]
        if field.dim() == space + 2 and field.shape[1] > 1
        else field.reshape(len(field), *batch.grid.shape)
        for name, field in batch.forcings.items()
    }
    return Conditions(batch.parameters, batch.static, forcings, batch.mask)


def leads_of(batch: Batch, spec: TaskSpec, first: int) -> Iterator[Float[Tensor, " B"]]:
    """The lead time of the step to each frame from `first` on: one for all, or each its own."""
    lead = batch.times[:, 1] - batch.times[:, 0]
    for frame in range(first, batch.values.shape[1]):
        yield lead if spec.dt is not None else batch.times[:, frame] - batch.times[:, frame - 1]
