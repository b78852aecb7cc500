"""The operator stage: fields in, fields out, relative error over a short rollout."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Batch
from ups.models.propagator import Propagator
from ups.rollout.roll_out import roll_out
from ups.training.losses import LossParts, errors_of


class OperatorStage:
    """Trains a propagator on windows of normalised fields. `noise` is the size of input noise, in the sample's rms;
    `compiled`: errors are computed by compiled code.
    """

    def __init__(self, model: Propagator, noise: float, compiled: bool = False) -> None:
        self.model, self.noise = model, noise
        self._errors_of = torch.compile(errors_of) if compiled else errors_of

    def modules(self) -> Propagator:
        return self.model

    def loss(self, batch: Batch, noise: Float[Tensor, "B H *space C"] | None = None) -> LossParts:
        """Each sample's relative L2 error, mean over the unrolled steps, gradients through the whole rollout.

        A window of a transient task holds its history and the targets; a steady task's only frame is the target, and
        the model starts from zero.
        """
        spec, model, task = self.model.tasks[batch.task], self.model, batch.task
        static = torch.stack([batch.static[name] for name in spec.static], -1) if spec.static else _none(batch)
        if spec.steady:
            states = [model(task, torch.zeros_like(batch.values), static, batch.parameters, None, batch.grid)]
            total, errors = self._errors_of(states, batch.values)
            return LossParts(total, {"steady": errors[0]})
        history, targets = batch.values[:, : spec.history], batch.values[:, spec.history :]
        if noise is not None and self.noise:
            history = history + self.noise * self.model.rms(history) * noise
        lead = (batch.times[:, 1] - batch.times[:, 0]).to(history.dtype)
        steps = targets.shape[1]
        states = roll_out(model, task, history, static, batch.parameters, lead, batch.grid, steps, capture=False)
        total, errors = self._errors_of(list(states), targets)
        return LossParts(total, {f"step_{i + 1}": error for i, error in enumerate(errors)})


def _none(batch: Batch) -> Float[Tensor, "B *space 0"]:
    return batch.values.new_zeros(*batch.values[:, 0, ..., 0].shape, 0)
