"""The corrector stage: what a frozen operator's rollouts are wrong by, as a distribution (`models/corrector.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.draws import Draws
from ups.data.sampler import Span
from ups.errors import UserError
from ups.fields import Batch, TaskSpec
from ups.models.codec import Codec
from ups.models.corrector import Correction, Corrector, CorrectorSettings, FlowSettings, Guess, Velocity, flow_matching
from ups.models.predictor import Predictor
from ups.models.saved import TrainedTask
from ups.rollout.corrected import CorrectedPredictor, CorrectedState
from ups.rollout.unroll import start_history, unroll
from ups.training.losses import LossParts, relative_error
from ups.training.settings import TrainingConfig
from ups.training.stage import Parent, Scores
from ups.training.stages.codec import CodecStage
from ups.training.stages.operator import OperatorStage, given_of, steps_of

S = TypeVar("S", bound=FlowSettings)

MEMBERS = 4
"""Of the ensembles that validation judges by."""
SMALLEST = 1e-20
"""Of a mean square error: its logarithm is to be taken."""


@dataclass(frozen=True, eq=False)
class Errors:
    """What the operator's predictions are wrong by: `latent` is that of each guess, `missing` what has to be added."""

    guess: Guess
    latent: Float[Tensor, "B *latent D"]
    missing: Float[Tensor, "B *latent D"]

    def velocity(self, model: Corrector, context: Float[Tensor, "B *latent W"]) -> Velocity:
        return lambda x, time, span: model.velocity(self.guess.task, x, time, span, self.latent, context)


class FlowStage(ABC, Generic[S]):
    """Trains a corrector on what a frozen operator is wrong by, as a frozen codec sees it."""

    def __init__(
        self,
        model: Corrector,
        operator: OperatorStage,
        codec: CodecStage,
        settings: S,
        training: TrainingConfig,
        tasks: Sequence[TrainedTask],
        checksums: Mapping[str, str],
        name: str = "corrector",
    ) -> None:
        self.name, self.model, self.training = name, model, training
        self.settings = settings
        self.operator, self.codec, self.checksums = operator, codec, checksums
        self.given = {task.spec.name: task.given for task in tasks}
        self.tasks = tuple(tasks)

    def trainable(self) -> Corrector:
        return self.model

    def parents(self) -> Mapping[str, Parent]:
        modules = {self.operator.name: self.operator.model, self.codec.name: self.codec.model}
        return {name: Parent(modules[name], checksum) for name, checksum in self.checksums.items()}

    def correction(self) -> Correction:
        settings = self.settings
        return Correction(self.operator.model, self.codec.model, self.model, settings.sampler, settings.steps)

    def predictor(self) -> Predictor:
        return self.predicting(self.correction())

    def loss(self, batch: Batch, draws: Draws) -> LossParts:
        """Flow matching, and the learned size s of the error: m/s² − ln(m/s²) − 1 of its mean square m over cells,
        which is never negative and least where s² = ⟨m⟩ (a Gaussian's likelihood but for constants).
        """
        errors = self.errors(batch, draws, self.training.noise)
        context = self.model.context(errors.guess)
        size = self.size(errors, context)
        ratio = errors.missing.square().flatten(1, -2).mean(1).clamp_min(SMALLEST) / size.square()
        off = (ratio - ratio.log() - 1).mean(1)
        data = errors.missing / of_cells(size.detach(), errors.missing)
        noise = draws.normal("flow", data.shape[1:]).to(data)
        flow = flow_matching(errors.velocity(self.model, context), noise, data, draws.uniform("time", ()).to(data))
        return LossParts(flow + off, {"flow": flow, "size": off})

    def size(self, errors: Errors, context: Float[Tensor, "B *latent W"]) -> Float[Tensor, "B D"]:
        task, elapsed = errors.guess.task, errors.guess.elapsed
        return self.model.size(task, elapsed, self.operator.model.change(task, elapsed), context)

    def validate(self, batch: Batch, draws: Draws) -> Scores:
        """The energy score of a few members, relative per frame as the operator's error is, beside that error: the same
        score of an ensemble of one.
        """
        return self.judged(self.predictor(), batch, draws)

    @abstractmethod
    def predicting(self, correct: Correction) -> Predictor:
        """What applies a correction of this kind: this stage's, or what is distilled of it."""

    @abstractmethod
    def window(self, step: int) -> Span: ...

    @abstractmethod
    def errors(self, batch: Batch, draws: Draws, noise: float) -> Errors:
        """Those of the batch's samples; `noise` is that of the inputs, in their rms."""

    @abstractmethod
    def judged(self, predictor: Any, batch: Batch, draws: Draws) -> Scores:
        """What `validate` says of this predictor, or of one distilled."""


class CorrectorStage(FlowStage[CorrectorSettings]):
    def predicting(self, correct: Correction) -> Predictor:
        return CorrectedPredictor(self.operator.predictor(), correct, self.settings.horizon)

    def window(self, step: int) -> Span:
        return Span(self.settings.horizon, self.training.stride_table())

    @torch.no_grad()
    def errors(self, batch: Batch, draws: Draws, noise: float) -> Errors:
        """Those of each sample's start, which is perturbed by so much of its rms, after a number of the operator's
        steps that is drawn from 1 … horizon.
        """
        task, operator, codec = batch.task, self.operator.model, self.codec.model
        spec = operator.tasks[task]
        history, targets = batch.values[:, : spec.history], batch.values[:, spec.history :]
        if noise:
            normal = draws.normal("noise", history.shape[1:]).to(history.dtype)
            history = history + noise * operator.rms(history) * normal
        static, count = given_of(batch, spec), targets.shape[1]
        lead = (batch.times[:, 1] - batch.times[:, 0]).to(history.dtype)
        steps = steps_of(batch, spec, spec.history, history.dtype)
        states = unroll(operator, task, history, batch.parameters, batch.grid, steps, capture=False)
        place = (draws.uniform("steps", ()) * count).long().clamp_max(count - 1)
        rows = torch.arange(len(history), device=history.device)
        predicted, elapsed = torch.stack(list(states), 1)[rows, place], lead * (place + 1)
        latent = codec.encode(task, predicted)
        missing = codec.encode(task, targets[rows, place]) - latent
        return Errors(Guess(task, history[:, -1], predicted, static, batch.parameters, elapsed), latent, missing)

    def judged(self, predictor: Any, batch: Batch, draws: Draws) -> Scores:
        """Over rollouts from the frames given."""
        task, spec, given = batch.task, self.operator.model.tasks[batch.task], self.given[batch.task]
        start, targets = start_history(batch.values[:, :given], spec.history), batch.values[:, given:]
        static, count = given_of(batch, spec), len(batch)
        lead = (batch.times[:, 1] - batch.times[:, 0]).to(start.dtype)
        steps = steps_of(batch, spec, given, start.dtype)
        alone = unroll(self.operator.model, task, start, batch.parameters, batch.grid, steps, False)
        trivial = torch.stack([relative_error(state, targets[:, i]) for i, state in enumerate(alone)]).mean(0)
        shape = (MEMBERS, *predictor.correct.noise_shape(task))
        state: Any = CorrectedState(
            task,
            start.repeat(MEMBERS, *(1,) * (start.dim() - 1)),
            static.repeat(MEMBERS, *(1,) * (static.dim() - 1)),
            {name: value.repeat(MEMBERS) for name, value in batch.parameters.items()},
            batch.grid,
        )
        scores, shown, leads = [], [], lead.repeat(MEMBERS)
        for number in range(targets.shape[1]):
            noise = draws.normal(f"member {number}", shape).to(start).transpose(0, 1).flatten(0, 1)
            state = predictor.advance(state, leads, noise)
            members = state.history[:, -1].unflatten(0, (MEMBERS, count))
            scores.append(relative_energy(members, targets[:, number]))
            shown.append(members[0, 0])
        return Scores(torch.stack(scores).mean(0), trivial, torch.stack(shown))


def of_cells(numbers: Float[Tensor, "B D"], like: Float[Tensor, "B *latent D"]) -> Float[Tensor, "B *ones D"]:
    return numbers.view(len(numbers), *(1,) * (like.dim() - 2), -1)


def relative_energy(members: Float[Tensor, "M B *space C"], target: Float[Tensor, "B *space C"]) -> Float[Tensor, " B"]:
    """(mean ‖u_i − u‖ − ½ mean over i ≠ j of ‖u_i − u_j‖) / ‖u‖: `relative_error`, of an ensemble."""
    errors = torch.stack([relative_error(member, target) for member in members]).mean(0)
    apart = [relative_error(one - other + target, target) for i, one in enumerate(members) for other in members[:i]]
    return errors - torch.stack(apart).mean(0) / 2


def check_corrector_tasks(name: str, tasks: Iterable[TaskSpec]) -> None:
    for task in tasks:
        if task.steady:
            raise UserError(
                f"stage {name!r} corrects rollouts, and task {task.name!r} is steady; leave that task out, or use a "
                "steady stage"
            )
        if task.forcings:
            raise UserError(
                f"stage {name!r} takes no forcings, and task {task.name!r} has {', '.join(task.forcings)}; leave that "
                f"task or the stage out, or do without: tasks.{task.name}.drop=[{', '.join(task.forcings)}]"
            )
        if task.dt is None:
            raise UserError(
                f"stage {name!r} corrects rollouts at equal steps, and those of task {task.name!r} are its own; leave "
                f"that task or the stage out, or use tasks.{task.name}.times=resample"
            )


def build_corrector(
    name: str,
    settings: CorrectorSettings,
    training: TrainingConfig,
    tasks: tuple[TrainedTask, ...],
    seed: int,
    parents: Mapping[str, Any],
    checksums: Mapping[str, str],
) -> CorrectorStage:
    operator, codec = operator_and_codec(name, parents, tasks)
    check_corrector_tasks(name, [task.spec for task in tasks])
    model = seeded_corrector(tasks, codec.model, settings, seed)
    return CorrectorStage(model, operator, codec, settings, training, tasks, checksums, name)


def operator_and_codec(
    name: str, parents: Mapping[str, Any], tasks: Sequence[TrainedTask]
) -> tuple[OperatorStage, CodecStage]:
    """The two parents of a stage that corrects an operator."""
    operators = [stage for stage in parents.values() if isinstance(stage, OperatorStage)]
    codecs = [stage for stage in parents.values() if isinstance(stage, CodecStage)]
    if len(operators) != 1 or len(codecs) != 1 or len(parents) != 2:
        raise UserError(f"stage {name!r} corrects an operator's error as a codec sees it; give `on:` one of each")
    for task in tasks:
        if task.spec.name not in codecs[0].model.frames:
            raise UserError(
                f"stage {name!r} needs a codec of task {task.spec.name!r}, which {codecs[0].name!r} never saw"
            )
    return operators[0], codecs[0]


def seeded_corrector(tasks: Sequence[TrainedTask], codec: Codec, settings: FlowSettings, seed: int) -> Corrector:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Corrector(tasks, codec, settings)
