"""Solutions of a steady task, sampled: the operator's, corrected by an error that a flow draws, then refined by so many
iterations of the equation's own solver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Conditions, Grid
from ups.models.corrector import Correction, Guess
from ups.models.predictor import State, Target
from ups.rollout.members import draws_of_members, folded
from ups.rollout.operator import OperatorPredictor

if TYPE_CHECKING:  # who does not refine does not wait for the solvers
    from ups.equations import Equation


class SteadyPredictor:
    chance = True

    def __init__(
        self, operator: OperatorPredictor, correct: Correction, solvers: Mapping[str, Equation], iterations: int
    ) -> None:
        """`solvers` are the equations of the tasks, on their own grids, if anything is refined."""
        self.operator, self.correct = operator, correct
        self.solvers, self.iterations = solvers, iterations
        self.tasks = operator.tasks

    @property
    def like(self) -> Tensor:
        return self.operator.like

    def to(self, where: torch.device | torch.dtype | str) -> SteadyPredictor:
        self.correct.modules().to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        return self.operator.start(task, frames, conditions, grid)

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        """From no noise at all, which the flow leads to the middle of the errors."""
        solved = self.operator.step(state, None)
        return self._sampled(
            solved, solved.history.new_zeros(len(solved.history), *self.correct.noise_shape(state.task))
        )

    def sample(self, state: State, lead: Float[Tensor, " B"] | None, seed: int, members: int) -> State:
        """The operator solves once for all members."""
        solved = folded(self.operator.step(state, None), members)
        noise = draws_of_members(solved, seed).normal("noise", self.correct.noise_shape(state.task))
        return self._sampled(solved, noise.to(solved.history))

    def _sampled(self, solved: State, noise: Float[Tensor, "B *latent D"]) -> State:
        field = self.correct(
            Guess.solution(solved.task, solved.history[:, -1], solved.static, solved.parameters), noise
        )
        return replace(solved, history=self._refined(solved, field)[:, None])

    def _refined(self, state: State, field: Float[Tensor, "B *own C"]) -> Float[Tensor, "B *own C"]:
        if not self.iterations:
            return field
        normaliser = self.tasks[state.task].normaliser
        static = normaliser.physical_static(state.static)
        refined = self.solvers[state.task].refine(normaliser.physical(field), static, self.iterations)
        return normaliser.normalise(refined.to(field))

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        values = self.operator.decode(replace(state, members=None), target)
        return values if state.members is None else values.unflatten(0, (state.members, -1))
