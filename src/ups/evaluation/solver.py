"""The model against its own solver on coarser grids: what error costs what time, and when training has paid off.

A surrogate that is compared with the reference solver alone flatters itself: most of that solver's work buys accuracy
the surrogate does not have. The fair opponent is the coarsest solver of the same error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ups.data.joined import Subset
from ups.data.prepare.row_ranges import row_ranges
from ups.equations import Equation
from ups.fields import Batch, Dataset
from ups.metrics import nrmse
from ups.models.interpolation import on_grid

LEVELS = 4


@dataclass(frozen=True)
class Coarse:
    """The solver on `points` per axis: its nRMSE against the stored solution, its seconds a trajectory."""

    points: int
    nrmse: float
    seconds: float


@dataclass(frozen=True)
class SolverComparison:
    """The model against coarse solvers.

    `equal` is the index of the cheapest row at least as accurate as the model (None: no row is), `breakeven` the number
    of simulations after which training has paid off against that row (None: never, the solver is faster).
    """

    rows: tuple[Coarse, ...]
    model_nrmse: float
    model_seconds: float
    equal: int | None
    breakeven: float | None


def compare(
    parts: Sequence[tuple[Equation, Dataset]],
    predict: Callable[[Batch], Tensor],
    training_seconds: float,
    trajectories: int = 64,
    at_once: int | None = None,
) -> SolverComparison:
    """The model and ever coarser solvers on the same test trajectories, in the same batches, of `at_once` bytes each.

    `predict` gives the model's frames (all but the first, or the only one of a steady task).
    """
    few = [(equation, _spread(data, max(1, trajectories // len(parts)))) for equation, data in parts]
    finest = few[0][1].grid.shape[0]
    coarser = [finest // 2**level for level in range(LEVELS) if finest % 2**level == 0 and finest // 2**level >= 8]
    rows = tuple(
        Coarse(n, *_judged(few, lambda equation, batch, n=n: equation.coarse(batch, n), at_once)) for n in coarser
    )
    model_nrmse, model_seconds = _judged(few, lambda _, batch: predict(batch), at_once)
    good = [i for i, row in enumerate(rows) if row.nrmse <= model_nrmse]
    equal = min(good, key=lambda i: rows[i].seconds, default=None)
    saved = rows[equal].seconds - model_seconds if equal is not None else 0.0
    return SolverComparison(rows, model_nrmse, model_seconds, equal, training_seconds / saved if saved > 0 else None)


def _spread(data: Dataset, most: int) -> Dataset:
    """So many trajectories, evenly over all: every parameter value of joined files is there."""
    places = torch.linspace(0, len(data) - 1, min(len(data), most)).round().long()
    return Subset(data, places.tolist())


def _judged(
    parts: Sequence[tuple[Equation, Dataset]], work: Callable[[Equation, Batch], Tensor], at_once: int | None
) -> tuple[float, float]:
    """Mean nRMSE over the predicted frames, and seconds a trajectory. The first batch of a size is done twice and the
    second call counts: the first one makes tables.
    """
    errors: list[Tensor] = []
    seconds = 0.0
    for equation, data in parts:
        known: set[int] = set()
        for rows in row_ranges(data, len(data.times), at_once):
            batch = data.read(rows, slice(None))
            if len(batch) not in known:
                work(equation, batch)
                known.add(len(batch))
            began = time.perf_counter()
            values = work(equation, batch).cpu()
            seconds += time.perf_counter() - began
            if values.shape[2:-1] != batch.grid.shape:
                values = on_grid(values, batch.grid, batch.boundary.periodic)
            frames = max(1, batch.values.shape[1] - 1)
            errors.append(nrmse(values[:, -frames:], batch.values[:, -frames:].double()).flatten(1).mean(1))
    return float(torch.cat(errors).mean()), seconds / sum(len(data) for _, data in parts)
