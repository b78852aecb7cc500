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

from ups.equations import Equation
from ups.fields import Batch, Dataset, Grid
from ups.metrics import nrmse
from ups.rollout.predict import on_grid, read_all

TRAJECTORIES = 32
LEVELS = 4


@dataclass(frozen=True)
class Coarse:
    """The solver on `points` per axis: its nRMSE against the stored solution, its seconds a trajectory."""

    points: int
    nrmse: float
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """`equal` is the cheapest row no worse than the model, `breakeven` the simulations after which training paid."""

    rows: tuple[Coarse, ...]
    model_nrmse: float
    model_seconds: float
    equal: int | None
    breakeven: float | None


def compare(
    parts: Sequence[tuple[Equation, Dataset]], model_nrmse: float, model_seconds: float, training_seconds: float
) -> Comparison:
    """Solve test trajectories again on the stored grid and on ever coarser ones, batched, as the model runs them."""
    batches = [(equation, read_all(data, max(1, TRAJECTORIES // len(parts)))) for equation, data in parts]
    finest = batches[0][1].grid.shape[0]
    rows = tuple(_coarse(batches, finest // 2**level) for level in range(LEVELS) if finest // 2**level >= 8)
    good = [i for i, row in enumerate(rows) if row.nrmse <= model_nrmse]
    equal = min(good, key=lambda i: rows[i].seconds, default=None)
    saved = rows[equal].seconds - model_seconds if equal is not None else 0.0
    return Comparison(rows, model_nrmse, model_seconds, equal, training_seconds / saved if saved > 0 else None)


def _coarse(batches: Sequence[tuple[Equation, Batch]], points: int) -> Coarse:
    errors: list[Tensor] = []
    seconds = 0.0
    for equation, batch in batches:
        values, took = timed(lambda equation=equation, batch=batch: equation.coarse(batch, points))
        seconds += took
        grid = Grid.cell_centred((points,) * batch.grid.dimension, batch.grid.extent)
        fine = on_grid(values.flatten(0, 1), grid, batch.grid, batch.boundary.periodic).view(batch.values.shape)
        transient = batch.values.shape[1] > 1
        errors.append(nrmse(fine, batch.values.double())[:, 1 if transient else 0 :].flatten(1).mean(1))
    count = sum(len(batch) for _, batch in batches)
    return Coarse(points, float(torch.cat(errors).mean()), seconds / count)


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """The second call's time: the first pays for tables and memory."""
    work()
    began = time.perf_counter()
    result = work()
    if result.is_cuda:
        torch.cuda.synchronize()
    return result, time.perf_counter() - began
