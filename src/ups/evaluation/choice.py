"""Whether a task's equation can tell the truth from what an operator makes of it: else nothing can be chosen by it.

Test trajectories are cut into pieces of a few frames. A piece is scored by ‖u(t₁) − u(t₀) − ∫ rate dt‖ over its frames
(`metrics.balance.imbalance`, whose mode of wavenumber zero is the drift of an invariant), a steady solution by its
residual: neither needs the truth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.prepare.row_ranges import spread
from ups.data.sources import Source
from ups.errors import UserError
from ups.fields import Batch
from ups.metrics.balance import imbalance
from ups.models.predictor import Predictor
from ups.rollout.chosen import STRETCH
from ups.rollout.equation import equation_of
from ups.rollout.predict import rollout, steady

if TYPE_CHECKING:  # who does not evaluate does not wait for the solvers
    from ups.equations import Equation

CANDIDATES = 8
"""Among which the truth has to be first."""
TRAJECTORIES, BYTES = 40, 1 << 27
"""At most so many test trajectories are cut up, and of no more bytes."""


def choosable(operator: Predictor, task: str, source: Source, view: str, seed: int) -> float | None:
    """In which share of a test set's pieces the truth is first; None where the task has no equation to score by, or the
    test set too few trajectories.
    """
    try:
        equation = equation_of(operator.tasks[task])
    except UserError:  # which `Chosen` repeats to who wants to choose
        return None
    test = source.tests[view]
    rows = spread(test, TRAJECTORIES, BYTES)
    if len(rows) < 2 or (not equation.steady and len(test.header.times) <= STRETCH):
        return None
    batch = test.read(rows, slice(None))
    return truth_first(operator, equation, batch if equation.steady else pieces(batch, STRETCH), seed)[0]


def pieces(batch: Batch, length: int) -> Batch:
    """Every trajectory in pieces of one frame to start from and so many after it."""
    count = (batch.values.shape[1] - 1) // length
    starts = torch.arange(count) * length
    frames = starts[:, None] + torch.arange(length + 1)
    cut = {"values": batch.values[:, frames].flatten(0, 1), "times": batch.times[:, frames].flatten(0, 1)}
    of = {"parameters": batch.parameters, "static": batch.static}
    cut |= {what: {name: v.repeat_interleave(count, 0) for name, v in each.items()} for what, each in of.items()}
    return replace(batch, **cut, ids=batch.ids.repeat_interleave(count))


@torch.no_grad()
def truth_first(operator: Predictor, equation: Equation, batch: Batch, seed: int) -> tuple[float, float]:
    """Of each true piece and others, the truth plus the operator's errors on pieces of other trajectories: how often
    the truth has the least score, and its score over the mean one of the others.
    """
    given = 0 if equation.steady else 1
    predicted = (steady if equation.steady else rollout)(operator, batch.task, batch)
    truth = batch.values[:, given:]
    errors, generator = predicted - truth, torch.Generator().manual_seed(seed)
    own, others = scored(equation, batch, truth), []
    apart = (batch.ids[:, None] != batch.ids).double()
    for _ in range(CANDIDATES - 1):
        drawn = torch.multinomial(apart, 1, generator=generator)[:, 0]
        others.append(scored(equation, batch, truth + errors[drawn]))
    scores = torch.stack(others)
    return float((own < scores).all(0).double().mean()), float((own / scores.mean(0)).mean())


def scored(equation: Equation, batch: Batch, frames: Float[Tensor, "N T *space C"]) -> Float[Tensor, " N"]:
    """Of one channel, or of all in units of their rms in this batch."""
    whole = frames if equation.steady else torch.cat([batch.values[:, :1], frames], 1)
    units = batch.values.flatten(0, -2).square().mean(0).sqrt()
    return (imbalance(whole, batch.times, equation, batch.parameters, batch.static) / units).norm(dim=1)
