"""The codec stage: single frames of all tasks into latents and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from pydantic import Field

from ups.config.settings import PositiveFloat
from ups.data.draws import Draws
from ups.data.sampler import Span
from ups.errors import UserError
from ups.fields import Batch, TaskSpec
from ups.models.codec import Codec, CodecSettings
from ups.models.predictor import Persistence
from ups.models.saved import TrainedTask
from ups.training.losses import LossParts, relative_error
from ups.training.stage import Parent, Scores


class CodecStageSettings(CodecSettings):
    inverse: PositiveFloat = Field(default=0.1, description="weight of the inverse encoding, E(D(z)) = z")
    latent: PositiveFloat = Field(default=1e-3, description="weight of (⟨z²⟩ − 1)², which keeps latents at one size")


class CodecStage:
    """Trains encoder and decoder; what stands on it meets them frozen."""

    def __init__(
        self, model: Codec, settings: CodecStageSettings, tasks: Sequence[TrainedTask], name: str = "codec"
    ) -> None:
        self.model, self.settings, self.name = model, settings, name
        self.tasks = {task.spec.name: task for task in tasks}

    def trainable(self) -> Codec:
        return self.model

    def parents(self) -> Mapping[str, Parent]:
        return {}

    def window(self, step: int) -> Span:
        """The frames of a task's history, of which it takes the last: one."""
        return Span(0)

    def loss(self, batch: Batch, draws: Draws) -> LossParts:
        """‖D(E(u)) − u‖ / ‖u‖, and so that latents can be trusted where a sampler leads them: the inverse encoding
        ‖E(D(z)) − z‖ / ‖z‖ of z = E(u), and a bound on their size.
        """
        task, field = batch.task, batch.values[:, -1]
        latent = self.model.encode(task, field)
        decoded = self.model.decode(task, latent)
        field_error = relative_error(decoded, field)
        latent_error = relative_error(self.model.encode(task, decoded), latent.detach())
        size = (latent.square().flatten(1).mean(1) - 1).square()
        total = field_error + self.settings.inverse * latent_error + self.settings.latent * size
        return LossParts(total, {"decoding": field_error, "encoding": latent_error, "size": size})

    def validate(self, batch: Batch, draws: Draws) -> Scores:
        """The relative error of every frame, beside that of nothing at all."""
        frames = batch.values.flatten(0, 1)
        decoded = self.model.decode(batch.task, self.model.encode(batch.task, frames))
        errors = relative_error(decoded, frames).unflatten(0, batch.values.shape[:2]).mean(1)
        return Scores(errors, torch.ones_like(errors), decoded[: batch.values.shape[1]])

    def predictor(self) -> Persistence:
        """Of no task: a codec predicts nothing."""
        return Persistence(())


def check_codec_tasks(name: str, tasks: Iterable[TaskSpec]) -> None:
    """That can be said of them without their grids."""
    for task in tasks:
        if task.masked:
            raise UserError(
                f"stage {name!r} compresses whole grids, and task {task.name!r} has masks; leave that task or the "
                f"stage out, or do without masks: tasks.{task.name}.drop=[mask]"
            )


def build_codec(tasks: tuple[TrainedTask, ...], settings: CodecStageSettings, seed: int, name: str) -> CodecStage:
    check_codec_tasks(name, [task.spec for task in tasks])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CodecStage(Codec(tasks, settings), settings, tasks, name)
