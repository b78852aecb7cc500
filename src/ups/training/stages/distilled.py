"""The distilled stage: a corrector's sampler in 1, 2 or 4 steps (Song et al., arXiv 2303.01469).

The student is a copy of the corrector's velocity, told how far it leads: x(τ') = x(τ) + (τ' − τ) v(x, τ, τ' − τ). The
way from noise to data is divided into as many stretches as it may take steps; wherever in a stretch it starts, it has
to arrive where the teacher's flow ends that stretch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field

from ups.config.settings import Positive, Strict
from ups.data.draws import Draws
from ups.data.sampler import Span
from ups.errors import UserError
from ups.fields import Batch
from ups.models.corrector import Correction, Corrector, consistency, path
from ups.models.predictor import Predictor
from ups.training.losses import LossParts
from ups.training.settings import TrainingConfig
from ups.training.stage import Parent, Scores
from ups.training.stages.corrector import FlowStage, of_cells

HALVINGS = 2
"""At most, of the way from noise to data: it learns to take 1, 2 and 4 steps (`DistilledSettings.steps`)."""


class DistilledSettings(Strict):
    steps: Literal[1, 2, 4] = Field(default=2, description="of its sampler; it is trained for all three")
    teacher_steps: Positive = Field(default=4, description="of Heun's method, from a place in a stretch to its end")


class DistilledStage:
    def __init__(
        self,
        model: Corrector,
        teacher: FlowStage[Any],
        settings: DistilledSettings,
        training: TrainingConfig,
        checksum: str,
        name: str = "distilled",
    ) -> None:
        self.name, self.model, self.teacher = name, model, teacher
        self.settings, self.training, self.checksum = settings, training, checksum

    def trainable(self) -> Corrector:
        return self.model

    def parents(self) -> Mapping[str, Parent]:
        """The corrector, and with it what it stands on."""
        return {self.teacher.name: Parent(self.teacher.correction().modules(), self.checksum)}

    def window(self, step: int) -> Span:
        return self.teacher.window(step)

    def loss(self, batch: Batch, draws: Draws) -> LossParts:
        """From a drawn place on the path of noise to an error of the operator's, to the end of its stretch."""
        teacher = self.teacher
        with torch.no_grad():
            errors = teacher.errors(batch, draws, self.training.noise)
            context = teacher.model.context(errors.guess)
            data = errors.missing / of_cells(teacher.size(errors, context), errors.missing)
            noise, time = draws.normal("flow", data.shape[1:]).to(data), draws.uniform("time", ()).to(data)
            stretches = (draws.uniform("stretches", ()) * (HALVINGS + 1)).floor().exp2().to(data)
            end = ((time * stretches).floor() + 1) / stretches
            x, _ = path(noise, data, time)
        known, student = (errors.velocity(model, context) for model in (teacher.model, self.model))
        total = consistency(student, known, x, time, end, self.settings.teacher_steps)
        return LossParts(total, {"consistency": total})

    def validate(self, batch: Batch, draws: Draws) -> Scores:
        return self.teacher.judged(self.predictor(), batch, draws)

    def predictor(self) -> Predictor:
        teacher = self.teacher
        correct = Correction(teacher.operator.model, teacher.codec.model, self.model, "jumps", self.settings.steps)
        return teacher.predicting(correct)


def build_distilled(
    name: str,
    settings: DistilledSettings,
    training: TrainingConfig,
    parents: Mapping[str, Any],
    checksums: Mapping[str, str],
) -> DistilledStage:
    teacher = next(iter(parents.values()), None)
    if len(parents) != 1 or not isinstance(teacher, FlowStage):
        raise UserError(f"stage {name!r} distils one corrector; give `on: [NAME]` of it")
    student = copy.deepcopy(teacher.model).requires_grad_(False)  # what it sees is the teacher's, and so is the size
    for part in student.flow_parts():
        part.requires_grad_(True)
    return DistilledStage(student, teacher, settings, training, checksums[teacher.name], name)
