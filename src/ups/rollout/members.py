"""Members of an ensemble in one batch: a whole batch of each member after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.draws import Draws
from ups.fields import Batch
from ups.metrics.ensembles import Members
from ups.models.predictor import Predictor, State
from ups.rollout.predict import CHUNK, advance, chunks, conditions_of, leads_of

AnyState = TypeVar("AnyState", bound=State)

MOST = 2**24
"""Numbers that the members of a few trajectories may have together."""


def repeated(values: Float[Tensor, "B *any"], members: int) -> Float[Tensor, "M_B *any"]:
    return values.repeat(members, *(1,) * (values.dim() - 1))


def folded(state: AnyState, members: int) -> AnyState:
    """The state with so many members, all alike; itself where it has them already."""
    if state.members is not None:
        return state
    return replace(
        state,
        history=repeated(state.history, members),
        static=repeated(state.static, members),
        parameters={name: repeated(value, members) for name, value in state.parameters.items()},
        first=None if state.first is None else repeated(state.first, members),
        members=members,
        tables={},
        forcings={name: repeated(field, members) for name, field in state.forcings.items()},
        mask=None if state.mask is None else state.mask.repeat(members, *(1,) * (state.mask.dim() - 1)),
    )


def lead_of_members(state: State, lead: Float[Tensor, " B"] | None) -> Float[Tensor, " M_B"] | None:
    """One tensor for all steps of one lead time: what is bound to it is kept."""
    if lead is None or state.members is None:
        return lead
    members = state.members
    return state.kept("leads", (lead,), lambda: repeated(lead, members))


def draws_of_members(state: State, seed: int, shared: int = 1) -> Draws:
    """One place a member and sample, which does not depend on how many members come in one batch; `shared`: of so many
    members the state is kept once.
    """
    assert state.members is not None
    rows = shared * len(state.history)
    first = state.earlier * (rows // state.members)
    slots = torch.arange(first, first + rows, device=state.history.device)
    return Draws(seed, "members", torch.zeros((), dtype=torch.long), slots)


@torch.no_grad()
def ensembles(
    predictor: Predictor, task: str, batch: Batch, given: int, members: int, seed: int
) -> Iterator[tuple[slice, Members]]:
    """Rollouts from the frames given (or steady solutions), a few trajectories at a time: which, and their members."""
    spec = predictor.tasks[task].spec
    done, most = 0, max(1, min(CHUNK, MOST // (members * batch.values[0].numel())))
    for part in chunks(batch, most):
        rows, done = slice(done, done + len(part)), done + len(part)
        frames = torch.zeros_like(part.values) if spec.steady else part.values[:, :given]
        conditions = conditions_of(part) if spec.steady else conditions_of(part, given - 1)
        state = predictor.start(task, frames, conditions, part.grid)
        leads = [None] if spec.steady else leads_of(part, spec, given)
        states = advance(predictor, state, leads, members, seed + rows.start)
        yield rows, torch.stack([predictor.decode(state) for state in states], 2).to(part.values.device)
