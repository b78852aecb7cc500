"""A stage of one's own: it corrects the steps of a trained operator, which stays as it is.

    plugins: [toy_stage.py]
    stages:
      operator: {width: 32}
      bias: {on: [operator], training: {steps: 200}}

A gain and a bias for each channel, both zero before training: u + (1 + g) (û − u) + b, in normalised units, where û is
the operator's step from u.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

import ups
from ups.config.settings import Strict
from ups.data.draws import Draws
from ups.data.sampler import Span
from ups.errors import UserError
from ups.fields import Batch, Conditions, Grid
from ups.models.predictor import Deterministic, Predictor, State, Target
from ups.rollout.unroll import start_history
from ups.training.kinds import StageContext, StageKind
from ups.training.losses import LossParts, errors_of
from ups.training.stage import Parent, Scores
from ups.training.stages.operator import OperatorStage, steps_of


class BiasSettings(Strict):
    gain: bool = True


class Correction(nn.Module):
    """All that is trained: a gain and a bias for each channel of each task."""

    def __init__(self, channels: Mapping[str, int], gain: bool) -> None:
        super().__init__()
        self.bias = nn.ParameterDict({task: nn.Parameter(torch.zeros(count)) for task, count in channels.items()})
        self.gain = nn.ParameterDict({task: nn.Parameter(torch.zeros(count)) for task, count in channels.items()})
        self.gain.requires_grad_(gain)

    def forward(
        self, task: str, before: Float[Tensor, "B *space C"], after: Float[Tensor, "B *space C"]
    ) -> Float[Tensor, "B *space C"]:
        return after + self.gain[task] * (after - before) + self.bias[task]


class BiasStage:
    def __init__(self, context: StageContext) -> None:
        if len(context.parents) != 1:
            raise UserError(f"stage {context.name!r} corrects one operator; give `on: [NAME]` of it")
        self.name, self.context = context.name, context
        self.parent_name, parent = next(iter(context.parents.items()))
        if not isinstance(parent, OperatorStage):
            raise UserError(f"stage {context.name!r} corrects an operator, and {self.parent_name!r} is none")
        self.parent = parent
        self.given = {task.spec.name: task.given for task in context.tasks}
        channels = {task.spec.name: len(task.spec.channels) for task in context.tasks if not task.spec.steady}
        if len(channels) < len(context.tasks):
            raise UserError(f"stage {context.name!r} corrects steps, and a steady task has none; leave that task out")
        self.correction = Correction(channels, context.settings.gain)

    def trainable(self) -> Correction:
        return self.correction

    def parents(self) -> Mapping[str, Parent]:
        return {self.parent_name: Parent(self.parent.model, self.context.checksums[self.parent_name])}

    def window(self, step: int) -> Span:
        """One step is enough for so few numbers."""
        return Span(1, self.context.training.stride_table())

    def loss(self, batch: Batch, draws: Draws) -> LossParts:
        history = self.parent.model.tasks[batch.task].history
        states = self.states(batch, batch.values[:, :history], history)
        total, _ = errors_of(list(states), batch.values[:, history:], batch.mask)
        return LossParts(total, {"corrected": total})

    def validate(self, batch: Batch, draws: Draws) -> Scores:
        """A rollout from the frames given, beside that of the operator alone, which this stage has to beat."""
        given, history = self.given[batch.task], self.parent.model.tasks[batch.task].history
        start, targets = start_history(batch.values[:, :given], history), batch.values[:, given:]
        corrected, _ = errors_of(list(self.states(batch, start, given)), targets, batch.mask)
        alone, _ = errors_of(list(self.states(batch, start, given, corrected=False)), targets, batch.mask)
        return Scores(corrected, alone)

    def states(
        self, batch: Batch, history: Float[Tensor, "B H *space C"], first: int, corrected: bool = True
    ) -> Iterator[Float[Tensor, "B *space C"]]:
        """Those of the frames from `first` on."""
        task, model = batch.task, self.parent.model
        for given, lead in steps_of(batch, model.tasks[task], first, history.dtype):
            state = model(task, history, given, batch.parameters, lead, batch.grid)
            state = self.correction(task, history[:, -1], state) if corrected else state
            yield state
            history = torch.cat([history[:, 1:], state[:, None]], 1)

    def predictor(self) -> CorrectedPredictor:
        return CorrectedPredictor(self.parent.predictor(), self.correction)


class CorrectedPredictor(Deterministic):
    """The operator's predictor, each of its steps corrected."""

    def __init__(self, parent: Predictor, correction: Correction) -> None:
        self.parent, self.correction, self.tasks = parent, correction, parent.tasks

    @property
    def like(self) -> Tensor:
        return self.parent.like

    def to(self, where: torch.device | torch.dtype | str) -> CorrectedPredictor:
        self.parent.to(where)
        self.correction.to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        return self.parent.start(task, frames, conditions, grid)

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        after = self.parent.step(state, lead)
        corrected = self.correction(state.task, state.history[:, -1], after.history[:, -1])
        return replace(after, history=torch.cat([after.history[:, :-1], corrected[:, None]], 1))

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        return self.parent.decode(state, target)


ups.register_stage(StageKind("bias", lambda given: BiasSettings, BiasStage))
