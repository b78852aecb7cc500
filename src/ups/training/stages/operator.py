"""The operator stage: fields in, fields out, relative error over a short rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, create_model
from torch import Tensor

from ups.config.settings import Strict
from ups.data.draws import Draws
from ups.data.sampler import Span
from ups.distributed.runtime.settings import RuntimeConfig
from ups.errors import UserError
from ups.fields import Batch, TaskSpec
from ups.models.architectures import ARCHITECTURES
from ups.models.given import given_channels
from ups.models.operator.model import OperatorModel
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask
from ups.rollout.captured import stepper
from ups.rollout.operator import OperatorPredictor
from ups.rollout.unroll import start_history, unroll
from ups.training.losses import LossParts, errors_of, relative_error
from ups.training.physics import Physics
from ups.training.settings import PhysicsConfig, TrainingConfig
from ups.training.stage import Parent, Scores

FEW_FRAMES = 0.25
"""The share of samples that start as a rollout does, from fewer frames than the history has, the first repeated."""


class OperatorStage:
    """Trains a propagator, of whatever network, on windows of normalised fields."""

    def __init__(
        self,
        model: Propagator,
        training: TrainingConfig,
        runtime: RuntimeConfig,
        tasks: Sequence[TrainedTask] = (),
        name: str = "operator",
        keeps_means: bool = False,
    ) -> None:
        """`tasks` say how many frames rollouts are given to start from; one, where they do not. `keeps_means`: whether
        the network does so by construction.
        """
        self.name, self.model, self.training, self.capture = name, model, training, runtime.capture != "off"
        self.tasks = tuple(tasks)
        self._given = {name: 1 for name in model.tasks} | {task.spec.name: task.given for task in tasks}
        self._several = len(training.stride_table()) > 1
        self._physics = {
            task.spec.name: Physics.of(task, training.physics[task.spec.name], keeps_means)
            for task in tasks
            if any(vars(training.physics.get(task.spec.name, PhysicsConfig())).values())
        }
        self._errors_of = torch.compile(errors_of) if runtime.compile else errors_of

    def trainable(self) -> Propagator:
        return self.model

    def predictor(self) -> OperatorPredictor:
        """The model as it is now, for the tasks that were said."""
        return OperatorPredictor(self.model, self.tasks, self.capture)

    def parents(self) -> Mapping[str, Parent]:
        return {}

    def window(self, step: int) -> Span:
        """As many frames as the schedule unrolls steps."""
        training = self.training
        lengths = [length for start, length in training.rollout if step >= start * training.steps]
        return Span(lengths[-1], training.stride_table())

    def loss(self, batch: Batch, draws: Draws) -> LossParts:
        """Each sample's relative L2 error over that of persistence in one step, mean over the unrolled steps, gradients
        through the whole rollout. So tasks of small and of large changes count alike, and an untrained model has 1 or
        so. Where there are several lead times, errors count per time: a step of twice the lead time counts half, and a
        rollout takes half as many of them.

        A window of a transient task holds its history and the targets; a steady task's only frame is the target, and
        the model starts from zero. `training.noise` is the size of the input noise, in the sample's rms.
        Where rollouts start from fewer frames than the history has, some samples do so here.
        """
        spec, model, task = self.model.tasks[batch.task], self.model, batch.task
        if spec.steady:
            zero, given = torch.zeros_like(batch.values), given_of(batch, spec)
            states = [model(task, zero, given, batch.parameters, None, batch.grid)]
            total, errors = self._errors_of(states, batch.values, batch.mask)
            return self._with_physics(LossParts(total, {"steady": errors[0]}), states, batch, [])
        history, targets = batch.values[:, : spec.history], batch.values[:, spec.history :]
        if self.training.noise:
            noise = draws.normal("noise", history.shape[1:]).to(history.dtype)
            noise = noise if batch.mask is None else noise * batch.mask[:, None, ..., None]
            history = history + self.training.noise * model.rms(history, batch.mask) * noise
        if (given := self._given[task]) < spec.history:
            chosen = draws.uniform("few_frames", ()) < FEW_FRAMES
            few = start_history(history[:, spec.history - given :], spec.history)
            history = torch.where(chosen.view(-1, *(1,) * (history.dim() - 1)), few, history)
        steps = list(steps_of(batch, spec, spec.history, history.dtype))
        lead = steps[0][1]
        states = list(unroll(model, task, history, batch.parameters, batch.grid, steps, capture=False))
        total, errors = self._errors_of(states, targets, batch.mask)
        total = total / model.change(task, lead)
        if self._several and spec.dt is not None:
            total = total * (spec.dt / lead)
        parts = LossParts(total, {f"step_{i + 1}": error for i, error in enumerate(errors)})
        return self._with_physics(parts, states, batch, [when for _, when in steps])

    def _with_physics(self, loss: LossParts, states: list[Tensor], batch: Batch, leads: list[Tensor]) -> LossParts:
        """The loss with what the task's equation adds to it, if that was asked for."""
        if (physics := self._physics.get(batch.task)) is None:
            return loss
        frames = [torch.zeros_like(states[0]), *batch.values.unbind(1)]
        start, *targets = frames[-len(states) - 1 :]
        parts = physics.losses(states, targets, start, leads, batch)
        return LossParts(loss.total + physics.total(parts), {**loss.parts, **parts})

    def validate(self, batch: Batch, draws: Draws) -> Scores:
        """Relative L2 per frame of rollouts from those given (or of the solution), beside persistence's (or zero's).

        As in the loss, a frame counts as no smaller than 1 % of the task's rms: one that vanishes must not blind
        selection.
        """
        spec, model, task, values = self.model.tasks[batch.task], self.model, batch.task, batch.values
        cut_off = None
        if spec.steady:
            start, targets, beside = torch.zeros_like(values), values, given_of(batch, spec)
            step = stepper(model, task, start, beside, batch.parameters, None, batch.grid, self.capture)
            states = [step(start, beside, None)]
        else:
            given = self._given[task]
            start, targets = start_history(values[:, :given], spec.history), values[:, given:]
            steps = steps_of(batch, spec, given, values.dtype)
            states = list(unroll(model, task, start, batch.parameters, batch.grid, steps, self.capture))
            cut_off = model.cut_off(task, start[:, -1], states, batch.mask)
        trivial = [start[:, -1]] * len(states)
        shown = torch.stack([state[0] for state in states])
        errors, beside = (_mean_error(found, targets, batch.mask) for found in (states, trivial))
        return Scores(errors, beside, shown, cut_off)


class OperatorStageSettings(Strict):
    """The operator stage's own settings, besides those of its architecture."""

    architecture: str = "spectral"
    freeze: Literal["shared"] | None = Field(
        default=None,
        description="shared: what serves all tasks stays as it starts; gates, adapters, the rows of fields and "
        "conditions, positions and the modulation are trained",
    )


def operator_settings(given: Mapping[str, Any]) -> type[Strict]:
    """Those of the architecture that is given, and its name."""
    name = given.get("architecture", OperatorStageSettings().architecture)
    own = ARCHITECTURES[name].settings
    return create_model(f"{own.__name__}OfStage", __base__=(own, OperatorStageSettings))


def freeze_shared(model: Propagator) -> None:
    """Leave to train only what is a task's, a field's or a condition's own."""
    if not isinstance(model.network, OperatorModel):
        raise UserError("freeze: shared needs rows by field name, as spectral, pdet_stack and pdet_unet have")
    own = {id(p) for p in model.network.own()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in own)


def _mean_error(
    states: list[Tensor], targets: Float[Tensor, "B T *space C"], mask: Bool[Tensor, "B *space"] | None
) -> Float[Tensor, " B"]:
    return torch.stack([relative_error(state, targets[:, i], mask) for i, state in enumerate(states)]).mean(0)


def given_of(batch: Batch, spec: TaskSpec, frame: int = 0) -> Float[Tensor, "B *space G"]:
    """What a step from a frame of the batch to the next is given beside the state; none where the task has nothing."""
    if spec.static:
        static = torch.stack([batch.static[name] for name in spec.static], -1)
    else:
        static = batch.values.new_zeros(*batch.values[:, 0, ..., 0].shape, 0)
    forcings = [batch.forcings[name] for name in spec.forcings]
    if spec.steady:  # its only frame
        forcings = [field[:, 0] if field.dim() == static.dim() else field for field in forcings]
    return given_channels(static, forcings, batch.mask, frame)


def steps_of(
    batch: Batch, spec: TaskSpec, first: int, dtype: torch.dtype
) -> Iterator[tuple[Float[Tensor, "B *space G"], Float[Tensor, " B"]]]:
    """What each step to the frames from `first` on is given, and its lead time: the same one at equal spacing."""
    given, lead = given_of(batch, spec, first - 1), (batch.times[:, 1] - batch.times[:, 0]).to(dtype)
    for frame in range(first, batch.values.shape[1]):
        if spec.forcings:
            given = given_of(batch, spec, frame - 1)
        if spec.dt is None:
            lead = (batch.times[:, frame] - batch.times[:, frame - 1]).to(dtype)
        yield given, lead
