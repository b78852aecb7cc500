"""The cached stage: an operator that lives in a frozen codec's latents, trained on the store of them alone.

What it is given and what it is judged by are fields: rollouts are encoded at their start and decoded where they are
looked at. It steps through latents of 8 to 64 times fewer numbers, and never encodes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from pydantic import create_model

from ups.config.settings import Strict
from ups.data.draws import Draws
from ups.data.sampler import Span
from ups.errors import UserError
from ups.fields import Batch, TaskSpec
from ups.models.architectures import ARCHITECTURES
from ups.models.propagator import Propagator
from ups.rollout.latent import LatentPredictor
from ups.rollout.unroll import start_history, unroll
from ups.training.losses import LossParts, relative_error
from ups.training.stage import Parent, Scores, Stage
from ups.training.stages.codec import CodecStage
from ups.training.stages.operator import OperatorStage, steps_of

if TYPE_CHECKING:  # who only loads a model does not wait for data
    from ups.distributed.runtime.start import Runtime
    from ups.training.data import TaskData


class CachedStageSettings(Strict):
    """The cached stage's own settings, besides those of its architecture."""

    architecture: str = "spectral"


def cached_settings(given: Mapping[str, Any]) -> type[Strict]:
    """Those of the architecture that is given, and its name."""
    own = ARCHITECTURES[given.get("architecture", CachedStageSettings().architecture)].settings
    return create_model(f"{own.__name__}OfCachedStage", __base__=(own, CachedStageSettings))


class CachedStage:
    def __init__(self, operator: OperatorStage, codec: CodecStage, checksum: str) -> None:
        """`operator`: of the tasks in latents."""
        self.name, self.operator, self.codec, self.checksum = operator.name, operator, codec, checksum

    def trainable(self) -> Propagator:
        return self.operator.model

    def parents(self) -> Mapping[str, Parent]:
        return {self.codec.name: Parent(self.codec.model, self.checksum)}

    def window(self, step: int) -> Span:
        return self.operator.window(step)

    def loss(self, batch: Batch, draws: Draws) -> LossParts:
        """The operator's, of windows of latents."""
        return self.operator.loss(batch, draws)

    def validate(self, batch: Batch, draws: Draws) -> Scores:
        """For trajectories of fields: relative L2 per decoded frame of rollouts from those given, as the operator is
        judged, beside persistence's.
        """
        from ups.training.latents import in_latents

        task, operator, decode = batch.task, self.operator, self.codec.model.decode
        own = next(learned for learned in operator.tasks if learned.spec.name == task)
        given, latents = own.given, in_latents(batch, own, self.codec.model)
        start = start_history(latents.values[:, :given], own.spec.history)
        steps = steps_of(latents, own.spec, given, start.dtype)
        states = unroll(operator.model, task, start, batch.parameters, own.grid, steps, operator.capture)
        last, *frames = batch.values[:, given - 1 :].unbind(1)
        errors, shown = [], []
        for state, frame in zip(states, frames, strict=True):
            decoded = decode(task, state)
            errors.append(relative_error(decoded, frame))
            shown.append(decoded[0])
        trivial = [relative_error(last, frame) for frame in frames]
        return Scores(torch.stack(errors).mean(0), torch.stack(trivial).mean(0), torch.stack(shown))

    def predictor(self) -> LatentPredictor:
        return LatentPredictor(self.operator.predictor(), self.codec.model, self.codec.tasks)


def codec_among(name: str, parents: Mapping[str, Stage]) -> CodecStage:
    codec = next(iter(parents.values()), None)
    if len(parents) != 1 or not isinstance(codec, CodecStage):
        raise UserError(f"stage {name!r} steps through a codec's latents; give `on: [NAME]` of one")
    return codec


def check_cached_tasks(name: str, tasks: Iterable[TaskSpec]) -> None:
    for task in tasks:
        if task.steady:
            raise UserError(
                f"stage {name!r} steps through latents, and task {task.name!r} is steady; leave that task out"
            )


def cached_tasks(
    name: str, runtime: Runtime, tasks: Mapping[str, TaskData], parents: Mapping[str, Stage], workers: int | None
) -> dict[str, TaskData]:
    """What the stage is trained on: the tasks in the latents of its codec, in stores that are built if need be."""
    from ups.training.latents import latents_of

    codec = codec_among(name, parents)
    check_cached_tasks(name, [task.learned.spec for task in tasks.values()])
    return {task: latents_of(runtime, data, codec, workers) for task, data in tasks.items()}
