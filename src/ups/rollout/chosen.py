"""Test-time computation: of several candidates the one that obeys the equation best.

    search = Chosen(sim.predictor, sim.truth_first, candidates=8, beam=2, budget=64, stretch=4)
    ups.Simulator(search).rollout(u0, steps=40)

A predictor with chance goes on from a state for a stretch of steps, in so many candidates. A stretch is scored by
‖u(t₁) − u(t₀) − ∫ rate dt‖ over its frames (`metrics.balance.imbalance`, whose mean over space is the drift of an
invariant), a steady solution by its residual. From the best of them, the `beam`, candidates go on again, as far ahead
as the budget reaches; then the first stretch of the best path is taken. Whether that pays: docs/generative.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.sampler import mix
from ups.errors import UserError
from ups.fields import Conditions, Grid
from ups.metrics.balance import imbalance
from ups.models.predictor import Deterministic, Predictor, State, Target
from ups.rollout.equation import equation_of
from ups.rollout.members import folded, repeated

if TYPE_CHECKING:  # who only simulates does not wait for the solvers
    from ups.equations import Equation

MOST = 1024
"""Candidates that are computed in one batch."""
STRETCH = 4
"""Steps between choices, and of the pieces by which it is measured whether there is anything to choose by."""
ENOUGH = 0.95
"""Of the cases, so often must the truth have the least score among 8 candidates."""

AnyState = TypeVar("AnyState", bound=State)


@dataclass(frozen=True, eq=False)
class ChosenState(State):
    """Where the parent stands, and the states after it that were chosen already for steps of this lead time."""

    now: State | None = None
    coming: tuple[State, ...] = ()
    lead: Float[Tensor, " B"] | None = None


class Chosen(Deterministic):
    """`truth_first` says of each task how often its equation gives the truth the least score (`Simulator.truth_first`,
    measured with the run); `budget` are the candidates' steps for each step that is taken, at most.
    """

    def __init__(
        self,
        parent: Predictor,
        truth_first: Mapping[str, float],
        candidates: int = 8,
        beam: int = 2,
        budget: int = 64,
        stretch: int = STRETCH,
    ) -> None:
        if not parent.chance:
            raise UserError("all candidates of a predictor without chance are the same; choose from one that has it")
        if not 2 <= candidates <= MOST:
            raise UserError(f"candidates is {candidates}; give a whole number from 2 to {MOST}")
        if not 1 <= beam <= candidates or beam * candidates > MOST:
            raise UserError(f"beam is {beam}; give one from 1 to candidates, and beam × candidates at most {MOST}")
        if budget < candidates:
            raise UserError(f"budget is {budget}; give at least the {candidates} steps of one stretch of candidates")
        if stretch < 1:
            raise UserError(f"stretch is {stretch}; give at least one step")
        self.parent, self.tasks, self.truth_first = parent, parent.tasks, truth_first
        self.candidates, self.beam, self.stretch = candidates, beam, stretch
        self.depth = 1 + (budget - candidates) // (beam * candidates)
        self._equations: dict[str, Equation] = {}

    @property
    def like(self) -> Tensor:
        return self.parent.like

    def to(self, where: torch.device | torch.dtype | str) -> Chosen:
        self.parent.to(where)
        return self

    def start(self, task: str, frames: Float[Tensor, "B T *space C"], conditions: Conditions, grid: Grid) -> State:
        """Tasks whose equation is not known or cannot tell the truth are refused here: others of the same model can be
        chosen among.
        """
        self._equation(task)
        return _at(self.parent.start(task, frames, conditions, grid))

    def _equation(self, task: str) -> Equation:
        if task not in self._equations:
            equation = equation_of(self.tasks[task])
            share = self.truth_first.get(task)
            if share is None:
                raise UserError(
                    f"it is not known how often the equation of task {task!r} tells the truth from 7 candidates: "
                    "measure it with `ups evaluate` of the run"
                )
            if share < ENOUGH:
                raise UserError(
                    f"the equation of task {task!r} tells the truth from 7 candidates in {share:.0%} of cases, and "
                    f"choosing needs {ENOUGH:.0%}; ask for members and take their mean"
                )
            self._equations[task] = equation
        return self._equations[task]

    def step(self, state: State, lead: Float[Tensor, " B"] | None) -> State:
        state = cast(ChosenState, state)
        assert state.now is not None
        coming = state.coming
        if not coming or lead is None or state.lead is None or not torch.equal(lead, state.lead):
            coming = self._searched(state.now, lead)
        return _at(coming[0], coming[1:], lead)

    def decode(self, state: State, target: Target | None = None) -> Float[Tensor, "... C"]:
        now = cast(ChosenState, state).now
        assert now is not None
        return self.shared(self.parent.decode(now, target), state)

    def _searched(self, start: State, lead: Float[Tensor, " B"] | None) -> tuple[State, ...]:
        """The first stretch of the best path; of a steady task the best solution."""
        many, moving = len(start.history), lead is not None
        each = torch.arange(many, device=start.history.device)
        own, length = self.tasks[start.task].grid, self.stretch if moving else 1
        state, total = folded(start, self.candidates), None
        last = self.parent.decode(state, own) if moving else None
        origin = torch.arange(self.candidates, device=each.device)[:, None].expand(-1, many)
        first: list[State] = []
        for stretch in range(self.depth if moving else 1):
            frames = [] if last is None else [last]
            for step in range(length):
                seed = mix(start.taken, stretch, step)
                state = self.parent.sample(state, lead, seed, len(origin))
                frames.append(self.parent.decode(state, own))
                first += [state] if stretch == 0 else []
            scores = self._scores(state, torch.stack(frames, 2), lead)
            total = scores if total is None else total + scores
            if stretch + 1 < self.depth and moving:
                best = total.topk(self.beam, 0, largest=False).indices.repeat_interleave(self.candidates, 0)
                state = _picked(state, (best * many + each).flatten(), len(best))
                total, origin, last = total.gather(0, best), origin.gather(0, best), frames[-1][best, each]
        assert total is not None
        chosen = origin.gather(0, total.argmin(0)[None])[0] * many + each
        return tuple(_picked(found, chosen, None) for found in first)

    def _scores(
        self, state: State, frames: Float[Tensor, "M B T *own C"], lead: Float[Tensor, " B"] | None
    ) -> Float[Tensor, "M B"]:
        """Σ of the squared imbalances of all channels, in units of their rms."""
        normaliser, members = self.tasks[state.task].normaliser, len(frames)
        flat = frames.flatten(0, 1)
        times = torch.arange(flat.shape[1], device=flat.device, dtype=torch.float64).expand(len(flat), -1)
        if lead is not None:
            times = times * repeated(lead.double(), members)[:, None]
        static = normaliser.physical_static(state.static)
        found = imbalance(flat, times, self._equation(state.task), state.parameters, static)
        return (found / normaliser.units().to(found)).square().sum(1).unflatten(0, (members, -1))


def _at(now: State, coming: tuple[State, ...] = (), lead: Float[Tensor, " B"] | None = None) -> ChosenState:
    shown = {field.name: getattr(now, field.name) for field in fields(State)}
    return ChosenState(**shown, now=now, coming=coming, lead=lead)


def _picked(state: AnyState, rows: Int[Tensor, " N"], members: int | None) -> AnyState:
    """The state of some rows of its batch, as so many members."""
    found = {
        field.name: getattr(state, field.name)[rows]
        for field in fields(state)
        if isinstance(getattr(state, field.name), Tensor)
    }
    named = {
        name: {key: value[rows] for key, value in getattr(state, name).items()} for name in ("parameters", "forcings")
    }
    return replace(state, **found, **named, members=members, tables={})
