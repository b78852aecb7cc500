"""A trained propagator (operator model, FNO, U-Net alike) as a predictor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Conditions, Grid
from ups.models.predictor import Deterministic, State, Target
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask
from ups.rollout.captured import stepper
from ups.rollout.unroll import start_history


class OperatorPredictor(Deterministic):
    """Steps on the grid a task was trained on, the only one the model is right on: frames on another one are brought
    there, and states are interpolated to where they are wanted. Differentiable in frames and conditions.

    On a GPU steps are replayed as CUDA graphs where that is possible and `capture` does not forbid it (`captured`);
    all states of one start expect the weights where they lie at its first step.
    """

    def __init__(self, model: Propagator, tasks: Iterable[TrainedTask], capture: bool = True) -> None:
        self.model, self.capture = model, capture
        self.tasks: Mapping[str, TrainedTask] = {learned.spec.name: learned for learned in tasks}

    @property
    def like(self) -> Tensor:
        return next(self.model.parameters())

    def to(self, where: torch.device | torch.dtype | str) -> OperatorPredictor:
        self.model.to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        learned, like = self.tasks[task], self.like
        spec, normaliser = learned.spec, learned.normaliser
        static = normaliser.static(conditions.static, frames).to(like)
        parameters = {
            n: torch.as_tensor(conditions.parameters[n]).to(like).expand(len(frames)) for n in spec.parameters
        }
        if spec.steady:
            given, first = torch.zeros_like(frames[:, :1]).to(like), None
        else:
            given = normaliser.normalise(frames[:, -spec.history :]).to(like)
            first = given[:, -1]
        history, static = learned.brought(given, static, grid)
        return State(task, start_history(history, spec.history), static, parameters, grid, first)

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        def bind():
            when = None if lead is None else lead.to(self.like)
            grid, (history, static) = self.tasks[state.task].grid, (state.history, state.static)
            return stepper(self.model, state.task, history, static, state.parameters, when, grid, self.capture)

        step = state.kept("step", (lead, state.static, state.parameters), bind)
        after = step(state.history)
        return replace(state, history=torch.cat([state.history[:, 1:], after[:, None]], 1), first=None)

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        """Before the first step these are the values of the last frame given, not brought anywhere."""
        learned = self.tasks[state.task]
        target = state.grid if target is None else target
        source, values = (learned.grid, state.history[:, -1]) if state.first is None else (state.grid, state.first)
        read = state.kept("read", (target, source), lambda: learned.reader(target, values, source))
        return self.shared(learned.normaliser.physical(read(values)), state)
