"""The steady stage: solutions as a distribution, around a frozen operator's one, given the coefficient as far as it is
known (`models/corrector.py`); refined by the equation's own solver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field

from ups.data.draws import Draws
from ups.data.sampler import Span
from ups.errors import UserError
from ups.fields import Batch, TaskSpec
from ups.models.corrector import Correction, Corrector, FlowSettings, Guess
from ups.models.saved import TrainedTask
from ups.rollout.equation import equation_of
from ups.rollout.steady import SteadyPredictor
from ups.training.losses import relative_error
from ups.training.settings import TrainingConfig
from ups.training.stage import Scores
from ups.training.stages.corrector import (
    MEMBERS,
    Errors,
    FlowStage,
    operator_and_codec,
    relative_energy,
    seeded_corrector,
)
from ups.training.stages.operator import given_of

if TYPE_CHECKING:
    from ups.equations import Equation


class SteadySettings(FlowSettings):
    refine: Annotated[int, Field(ge=0)] = Field(
        default=0, description="iterations of the equation's own solver that every sample is refined by"
    )


class SteadyStage(FlowStage[SteadySettings]):
    @cached_property
    def solvers(self) -> Mapping[str, Equation]:
        return {task.spec.name: solver_of(task) for task in self.tasks} if self.settings.refine else {}

    def predicting(self, correct: Correction) -> SteadyPredictor:
        return SteadyPredictor(self.operator.predictor(), correct, self.solvers, self.settings.refine)

    def window(self, step: int) -> Span:
        """The solution, which is its only frame."""
        return Span(0)

    @torch.no_grad()
    def errors(self, batch: Batch, draws: Draws, noise: float) -> Errors:
        task, codec, solution = batch.task, self.codec.model, batch.values[:, -1]
        static = given_of(batch, self.operator.model.tasks[task])
        zero = torch.zeros_like(batch.values)
        predicted = self.operator.model(task, zero, static, batch.parameters, None, batch.grid)
        latent = codec.encode(task, predicted)
        missing = codec.encode(task, solution) - latent
        return Errors(Guess.solution(task, predicted, static, batch.parameters), latent, missing)

    def judged(self, predictor: Any, batch: Batch, draws: Draws) -> Scores:
        """The energy score of a few members, not refined, beside the operator's error."""
        errors, solution = self.errors(batch, draws, 0.0), batch.values[:, -1]
        predicted, shape = errors.guess.predicted, predictor.correct.noise_shape(batch.task)
        members = [
            predictor.correct(errors.guess, draws.normal(f"member {number}", shape).to(predicted))
            for number in range(MEMBERS)
        ]
        energy = relative_energy(torch.stack(members), solution)
        return Scores(energy, relative_error(predicted, solution), members[0][:1])


def solver_of(learned: TrainedTask) -> Equation:
    """The equation, refused where it has no solver to refine by."""
    equation, spec = equation_of(learned), learned.spec
    if varied := spec.source.get("varied"):
        raise UserError(f"task {spec.name!r} is of several {varied[0]}, which no solver is told of; use refine=0")
    ones = {name: torch.ones(1, *learned.grid.shape) for name in equation.static}
    equation.refine(torch.zeros(1, *learned.grid.shape, len(spec.channels)), ones, 0)
    return equation


def check_steady_tasks(name: str, tasks: Iterable[TaskSpec]) -> None:
    for task in tasks:
        if not task.steady:
            raise UserError(
                f"stage {name!r} samples solutions of steady tasks, and task {task.name!r} is none; leave that task "
                "out, or use a corrector"
            )
        if task.forcings:
            raise UserError(
                f"stage {name!r} takes no forcings, and task {task.name!r} has {', '.join(task.forcings)}; leave that "
                f"task or the stage out, or do without: tasks.{task.name}.drop=[{', '.join(task.forcings)}]"
            )


def build_steady(
    name: str,
    settings: SteadySettings,
    training: TrainingConfig,
    tasks: tuple[TrainedTask, ...],
    seed: int,
    parents: Mapping[str, Any],
    checksums: Mapping[str, str],
) -> SteadyStage:
    operator, codec = operator_and_codec(name, parents, tasks)
    check_steady_tasks(name, [task.spec for task in tasks])
    model: Corrector = seeded_corrector(tasks, codec.model, settings, seed)
    stage = SteadyStage(model, operator, codec, settings, training, tasks, checksums, name)
    _ = stage.solvers  # refused now, not after training
    return stage
