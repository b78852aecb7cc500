"""A trained propagator (operator model, FNO, U-Net alike) as a predictor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Conditions, Grid, TaskSpec
from ups.models.given import given_channels
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
        return started(self.tasks[task], frames, conditions, grid, self.like)

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        when = None if lead is None else state.kept("lead", (lead,), lambda: lead.to(self.like))
        given = self._given(state)

        def bind():
            grid = self.tasks[state.task].grid
            return stepper(self.model, state.task, state.history, given, state.parameters, when, grid, self.capture)

        after = state.kept("step", (state.parameters,), bind)(state.history, given, when)
        history = torch.cat([state.history[:, 1:], after[:, None]], 1)
        return replace(state, history=history, first=None, taken=state.taken + 1)

    def _given(self, state: State) -> Float[Tensor, "B *own G"]:
        """What this step is given beside the history; what does not change is put together once."""
        timed = {name: field for name, field in state.forcings.items() if field.dim() == state.static.dim()}
        for name, field in timed.items():
            if state.taken + 1 >= field.shape[1]:
                raise UserError(
                    f"the forcing {name!r} of task {state.task!r} has {field.shape[1]} frames, too few for step "
                    f"{state.taken + 1}; give one now and one after each step"
                )
        fields = state.static, state.forcings, state.mask
        if timed:
            return given_channels(state.static, state.forcings.values(), state.mask, state.taken)
        return state.kept("given", fields, lambda: given_channels(state.static, state.forcings.values(), state.mask))

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        return decoded(self.tasks[state.task], state, state.history[:, -1], target)


def started(
    learned: TrainedTask, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid, like: Tensor
) -> State:
    """The frames given and all else, normalised and on the task's own grid."""
    spec, normaliser = learned.spec, learned.normaliser
    mask = _mask(spec, conditions)
    static = normaliser.static(conditions.static, frames, mask).to(like)
    parameters = {n: torch.as_tensor(conditions.parameters[n]).to(like).expand(len(frames)) for n in spec.parameters}
    if spec.steady:
        given, first = torch.zeros_like(frames[:, :1]).to(like), None
    else:
        cells = None if mask is None else mask[:, None, ..., None]
        given = normaliser.normalise(frames[:, -spec.history :], cells).to(like)
        first = given[:, -1]
    forcings = normaliser.forcings(conditions.forcings, frames, mask)
    history, static = learned.brought(given, static, grid)
    forcings = {name: learned.brought_forcing(field.to(like), grid) for name, field in forcings.items()}
    mask = None if mask is None else mask.to(like.device)
    history = start_history(history, spec.history)
    return State(spec.name, history, static, parameters, grid, first, forcings=forcings, mask=mask)


def decoded(
    learned: TrainedTask, state: State, values: Float[Tensor, "B *own C"], target: Target | None
) -> Float[Tensor, "... C"]:
    """Normalised values of the task's own grid where they are wanted, in physical units. Before the first step: those
    of the last frame given, not brought anywhere.
    """
    target = state.grid if target is None else target
    source, values = (learned.grid, values) if state.first is None else (state.grid, state.first)
    read = state.kept("read", (target, source), lambda: learned.reader(target, values, source))
    cells = None if state.mask is None else state.mask[..., None]
    return Deterministic.shared(learned.normaliser.physical(read(values), cells), state)


def _mask(spec: TaskSpec, conditions: Conditions) -> Bool[Tensor, "B *space"] | None:
    if spec.masked and conditions.mask is None:
        raise UserError(f"task {spec.name!r} needs a mask, true inside the domain; give it in the conditions")
    return conditions.mask if spec.masked else None
