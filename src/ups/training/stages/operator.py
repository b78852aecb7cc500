"""The operator stage: fields in, fields out, relative error over a short rollout."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Batch
from ups.models.propagator import Propagator
from ups.rollout.roll_out import roll_out
from ups.training.losses import LossParts, relative_l2


class OperatorStage:
    """Trains a propagator on windows of normalised fields. `noise` is the size of input noise, in the sample's rms."""

    def __init__(self, model: Propagator, noise: float) -> None:
        self.model, self.noise = model, noise

    def modules(self) -> Propagator:
        return self.model

    def loss(self, batch: Batch, noise: Float[Tensor, "B H *space C"] | None = None) -> LossParts:
        """Each sample's relative L2 error, mean over the unrolled steps, gradients through the whole rollout.

        A window of a transient task holds its history and the targets; a steady task's only frame is the target, and
        the model starts from zero.
        """
        spec = self.model.tasks[batch.task]
        static = torch.stack([batch.static[name] for name in spec.static], -1) if spec.static else _none(batch)
        if spec.steady:
            target = batch.values[:, 0]
            start = torch.zeros_like(target)[:, None]
            prediction = self.model(batch.task, start, static, batch.parameters, None, batch.grid)
            steady = relative_l2(prediction, target)
            return LossParts(steady, {"steady": steady})
        history, targets = batch.values[:, : spec.history], batch.values[:, spec.history :]
        if noise is not None and self.noise:
            history = history + self.noise * self.model.rms(history) * noise
        lead = (batch.times[:, 1] - batch.times[:, 0]).to(history.dtype)
        steps, model, task = targets.shape[1], self.model, batch.task
        states = roll_out(model, task, history, static, batch.parameters, lead, batch.grid, steps, capture=False)
        errors = [relative_l2(state, targets[:, i]) for i, state in enumerate(states)]
        return LossParts(torch.stack(errors).mean(0), {f"step_{i + 1}": e for i, e in enumerate(errors)})


def _none(batch: Batch) -> Float[Tensor, "B *space 0"]:
    return batch.values.new_zeros(*batch.values[:, 0, ..., 0].shape, 0)
