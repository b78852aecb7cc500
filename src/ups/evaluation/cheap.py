"""Ensembles that cost nothing to train, beside which every real one stands: an operator dressed with noise of the size
of its error, and started from states that are perturbed. Both sizes are those of validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Batch, Conditions, Grid
from ups.metrics.ensembles import crps
from ups.metrics.layout import Mask, mean, space_axes
from ups.models.predictor import Predictor, State, Target
from ups.rollout.members import draws_of_members, ensembles, folded, lead_of_members
from ups.rollout.predict import one_step, rollout, steady

DRESSED, PERTURBED = "dressed", "perturbed"
FACTORS = (1.0, 4.0, 16.0)
"""Of perturbed starts, in units of the error of one step: the best on validation is taken."""


@dataclass(frozen=True, eq=False)
class DressedState(State):
    """`seed` is the last step's."""

    seed: int = 0


class _Around:
    """What both have in common: an operator."""

    chance = True

    def __init__(self, parent: Predictor) -> None:
        self.parent, self.tasks = parent, parent.tasks

    @property
    def like(self) -> Tensor:
        return self.parent.like

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        return self.parent.step(state, lead)

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        return self.parent.start(task, frames, conditions, grid)


class Dressed(_Around):
    """The operator's rollout plus Gaussian noise, independent at every point, of the size of that step's rms error."""

    def __init__(self, parent: Predictor, errors: Float[Tensor, "T C"]) -> None:
        super().__init__(parent)
        self.errors = errors

    def to(self, where: torch.device | torch.dtype | str) -> Dressed:
        self.parent.to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        return DressedState(**vars(self.parent.start(task, frames, conditions, grid)))

    def sample(self, state: State, lead: Float[Tensor, " B"] | None, seed: int, members: int) -> State:
        after = cast(DressedState, self.parent.step(state, lead))
        return replace(after, seed=seed, members=members)

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        values, state = self.parent.decode(replace(state, members=None), target), cast(DressedState, state)
        if state.members is None:
            return values
        size = self.errors[min(state.taken, len(self.errors)) - 1].to(values)
        draws = draws_of_members(state, state.seed, state.members)
        noise = size * draws.normal("dress", values.shape[1:]).to(values).unflatten(0, (state.members, -1))
        return values + (noise if state.mask is None else noise * state.mask[..., None])


class Perturbed(_Around):
    """The operator started from as many states as there are members: the given one plus Gaussian noise of one size."""

    def __init__(self, parent: Predictor, size: Float[Tensor, " C"]) -> None:
        super().__init__(parent)
        self.size = size

    def to(self, where: torch.device | torch.dtype | str) -> Perturbed:
        self.parent.to(where)
        return self

    def sample(self, state: State, lead: Float[Tensor, " B"] | None, seed: int, members: int) -> State:
        state = state if state.members is not None else around(state, self.size, seed, members)
        return self.parent.step(state, lead_of_members(state, lead))

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        values = self.parent.decode(replace(state, members=None), target)
        return values if state.members is None else values.unflatten(0, (state.members, -1))


def around(state: State, size: Float[Tensor, " C"], seed: int, members: int) -> State:
    """A start's members: it plus Gaussian noise of this size, in normalised units, independent at every point."""
    state = folded(state, members)
    normal = draws_of_members(state, seed).normal("start", state.history.shape[1:]).to(state.history)
    return replace(state, history=state.history + size.to(normal) * normal)


def cheap_ensembles(
    predictors: Mapping[str, Predictor], task: str, validation: Batch, given: int, members: int, seed: int
) -> dict[str, Predictor]:
    """Around the last of the predictors that has no chance, sized on validation trajectories."""
    plain = [predictor for predictor in predictors.values() if not predictor.chance]
    if not plain:
        return {}
    parent, spec = plain[-1], plain[-1].tasks[task].spec
    first = 0 if spec.steady else given
    predicted = steady(parent, task, validation) if spec.steady else rollout(parent, task, validation, given)
    mask = validation.mask
    found: dict[str, Predictor] = {DRESSED: Dressed(parent, _rms(predicted, validation.values[:, first:], mask))}
    if spec.steady:
        return found
    normaliser, cells = parent.tasks[task].normaliser, None if mask is None else mask[:, None, ..., None]
    ahead = normaliser.normalise(one_step(parent, task, validation), cells)
    size = _rms(ahead, normaliser.normalise(validation.values[:, 1:], cells), mask).square().mean(0).sqrt()
    tried = [Perturbed(parent, factor * size) for factor in FACTORS]
    found[PERTURBED] = min(tried, key=lambda p: _mean_crps(p, task, validation, given, members, seed))
    return found


def _rms(
    predicted: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"], mask: Mask
) -> Float[Tensor, "T C"]:
    return mean((predicted - truth).square(), (0, *space_axes(truth)), mask).sqrt()


def _mean_crps(predictor: Predictor, task: str, batch: Batch, given: int, members: int, seed: int) -> float:
    mask = batch.mask
    found = ensembles(predictor, task, batch, given, members, seed)
    scores = [crps(values, batch.values[rows, given:], None if mask is None else mask[rows]) for rows, values in found]
    return float(torch.cat(scores).mean())
