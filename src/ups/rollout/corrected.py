"""An operator whose steps a corrector samples: a predictor with chance.

The operator runs ahead from a state u₀, uncorrected, for as many steps as the corrector's horizon. Each step is shown
corrected by an error that was sampled for the time since u₀, of one noise for the whole stretch, so that a member is
smooth in time. The stretch's last state, corrected, is the next u₀, with noise of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Conditions, Grid
from ups.models.corrector import Correction, Guess
from ups.models.predictor import State, Target
from ups.rollout.members import draws_of_members, folded, lead_of_members
from ups.rollout.operator import OperatorPredictor


@dataclass(frozen=True, eq=False)
class CorrectedState(State):
    """`history` is corrected; `ahead` is that of the operator alone since `before`, `since` steps and `elapsed` ago."""

    ahead: Float[Tensor, "B H *own C"] | None = None
    before: Float[Tensor, "B *own C"] | None = None
    noise: Float[Tensor, "B *latent D"] | None = None
    elapsed: Float[Tensor, " B"] | None = None
    since: int = 0


class CorrectedPredictor:
    chance = True

    def __init__(self, operator: OperatorPredictor, correct: Correction, horizon: int) -> None:
        self.operator, self.correct, self.horizon = operator, correct, horizon
        self.tasks = operator.tasks

    @property
    def like(self) -> Tensor:
        return self.operator.like

    def to(self, where: torch.device | torch.dtype | str) -> CorrectedPredictor:
        self.correct.modules().to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        return CorrectedState(**vars(self.operator.start(task, frames, conditions, grid)))

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        """From no noise at all, which the flow leads to the middle of the errors."""
        shape = self.correct.noise_shape(state.task)
        return self.advance(state, lead, state.history.new_zeros(len(state.history), *shape))

    def sample(self, state: State, lead: Float[Tensor, " B"] | None, seed: int, members: int) -> State:
        """All of them in one batch."""
        state = folded(state, members)
        noise = draws_of_members(state, seed).normal("noise", self.correct.noise_shape(state.task))
        return self.advance(state, lead_of_members(state, lead), noise.to(state.history))

    def advance(self, state: State, lead: Float[Tensor, " B"] | None, noise: Float[Tensor, "B *latent D"]) -> State:
        """One lead time further; the noise counts where a stretch begins."""
        assert lead is not None, "a steady task has no steps to be corrected"
        state = cast(CorrectedState, state)
        lead = lead.to(state.history)
        if state.since % self.horizon == 0:
            before, ahead, elapsed, since = state.history[:, -1], state.history, lead, 1
        else:
            assert state.before is not None and state.ahead is not None and state.elapsed is not None
            assert state.noise is not None
            before, ahead, noise = state.before, state.ahead, state.noise
            elapsed, since = state.elapsed + lead, state.since + 1
        after = self.operator.step(replace(state, history=ahead), lead)
        guess = Guess(state.task, before, after.history[:, -1], state.static, state.parameters, elapsed)
        field = self.correct(guess, noise)
        history = torch.cat([state.history[:, 1:], field[:, None]], 1)
        return replace(
            cast(CorrectedState, after),
            history=history,
            ahead=after.history,
            before=before,
            noise=noise,
            elapsed=elapsed,
            since=since,
        )

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        values = self.operator.decode(replace(state, members=None), target)
        return values if state.members is None else values.unflatten(0, (state.members, -1))
