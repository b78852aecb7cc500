"""An operator in a codec's latents: it encodes the frames given, steps there, and decodes what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Conditions, Grid
from ups.models.codec import Codec
from ups.models.geometry import averaged
from ups.models.predictor import Deterministic, State, Target
from ups.models.saved import TrainedTask
from ups.rollout.operator import OperatorPredictor, decoded, started


class LatentPredictor(Deterministic):
    """`tasks` are those of fields, as the codec was trained on them; the operator's own are of latents."""

    watched = False
    """To look at every state of a rollout would cost more than the rollout."""

    def __init__(self, operator: OperatorPredictor, codec: Codec, tasks: Mapping[str, TrainedTask]) -> None:
        self.operator, self.codec = operator, codec
        self.tasks: Mapping[str, TrainedTask] = {name: tasks[name] for name in operator.tasks}

    @property
    def like(self) -> Tensor:
        return self.operator.like

    def to(self, where: torch.device | torch.dtype | str) -> LatentPredictor:
        self.operator.to(where)
        self.codec.to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        learned, own = self.tasks[task], self.operator.tasks[task]
        state = started(learned, frames, conditions, grid, self.like)
        latents = self.codec.encode(task, state.history.flatten(0, 1)).unflatten(0, state.history.shape[:2])
        static = averaged(state.static, learned.grid, own.grid, learned.spec.boundary.periodic)
        forcings = {name: own.brought_forcing(field, learned.grid) for name, field in state.forcings.items()}
        return replace(state, history=latents, static=static, forcings=forcings)

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        return self.operator.step(state, lead)

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        learned, values = self.tasks[state.task], state.first
        if values is None:
            values = self.codec.decode(state.task, state.history[:, -1])
        return decoded(learned, state, values, target)
