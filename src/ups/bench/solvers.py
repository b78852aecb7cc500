"""The trained model against the solver that made its data: rollouts a second on the same device, and breakeven.

Solvers, as the model, start from the first frame of the reference solution, averaged to their own grid; drawing initial
states and reaching that frame is nobody's work. Their frames are averaged, or interpolated, to the stored grid and
compared with the truth there. The fastest of no larger error than the model's is the fair opponent, and if there is
none, the solver on the reference's own grid.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups.bench.data import KEPT, Data, averaged
from ups.bench.roofline import synchronise
from ups.bench.tasks import DATA_SEED
from ups.distributed.runtime.start import Runtime
from ups.fields import Batch
from ups.metrics import nrmse
from ups.metrics.layout import Fields
from ups.models.interpolation import on_grid
from ups.models.propagator import Propagator
from ups.rollout.unroll import start_history, unroll

TRAJECTORIES = {"cpu": 64, "cuda": 1024}
"""Of the test set, at most: all of it in the benchmarks there are, so that errors are those of the same samples."""
BATCHES = {"cpu": (64,), "cuda": (64, 256, 1024)}
"""Trajectories solved or rolled out at once: the fastest of these counts, for solver and model alike."""
REPEATS = 2
LONG = 5.0
"""Seconds: a run of more is neither repeated nor warmed up for, as what it loads first is nothing beside it, nor are
smaller batches tried.
"""
LEVELS = 5
FEWEST_POINTS = 16


def ladder(data: Data, runtime: Runtime) -> list[dict[str, Any]]:
    """The solver on ever coarser grids: points, nRMSE, seconds a trajectory; the reference's grid comes first."""
    task, device = data.task, runtime.device
    ids = data.test.ids[: TRAJECTORIES[device.type]].tolist()
    start = task.solver.solve(DATA_SEED, ids, task.times[:1], device)
    times = (task.times - task.times[0]).to(device)
    truth = data.test.values[: len(ids), 1:]

    def timed(points: int, until: Float[Tensor, " T"]) -> tuple[Tensor, float]:
        return fastest(lambda part: task.solver.coarse(_until(part, until), points), start, device, runtime.check_stop)

    rows = []
    if data.solver_seconds * max(BATCHES[device.type]) > LONG:
        # Its chunks for the data were smaller than the batches tried here: also in full batches, as if every interval
        # between frames took as long as the first.
        seconds = min(data.solver_seconds, (task.frames - 1) * timed(task.reference, times[:2])[1])
        rows.append({"points": task.reference, "nrmse": 0.0, "seconds": seconds})  # it is the truth
    for level in range(len(rows), LEVELS):
        points = task.reference // 2**level
        if points < FEWEST_POINTS:
            break
        solved, seconds = timed(points, times)
        error = float(nrmse(_stored(data, solved.cpu(), points)[:, 1:], truth).mean())
        rows.append({"points": points, "nrmse": error, "seconds": seconds})
    return rows


def _until(start: Batch, times: Float[Tensor, " T"]) -> Batch:
    """A start as solvers take it: a frame for every time, of which only the first is read; nothing is copied."""
    values = start.values.expand(-1, len(times), *start.values.shape[2:])
    return replace(start, values=values, times=times.expand(len(start), -1))


def _stored(data: Data, values: Fields, points: int) -> Float[Tensor, "N T *space2 C"]:
    """Frames on another grid, brought to the stored one."""
    if points >= data.task.points:
        return averaged(data.task.solver, values, data.task.points)
    return on_grid(values, data.train.grid, data.train.boundary.periodic)


def fastest(
    work: Callable[[Batch], Tensor], batch: Batch, device: torch.device, stop: Callable[[str], None]
) -> tuple[Tensor, float]:
    """What `work` gives for the whole batch, and seconds a trajectory at the best batch size, the largest tried first.

    Trajectories are repeated until they fill a GPU's batch: nobody is slow because the test set is small. `stop` is
    where a wish to stop is heard.
    """
    best, result = float("inf"), torch.zeros(0)
    sizes = sorted(BATCHES[device.type], reverse=True)
    for size in sizes:
        many = max(size, len(batch)) if device.type == "cuda" else len(batch)
        pieces = [batch.select(part.tolist()) for part in (torch.arange(many) % len(batch)).split(size)]
        try:
            for _ in range(1 + REPEATS):  # the first one makes tables and loads kernels
                synchronise(device)
                began = time.perf_counter()
                parts = []
                for piece in pieces:
                    parts.append(work(piece))
                    stop(KEPT)
                synchronise(device)
                took = time.perf_counter() - began
                best, result = min(best, took / many), torch.cat(parts)[: len(batch)]
                if took > LONG:
                    return result, best
        except torch.OutOfMemoryError:
            if size == sizes[-1]:
                raise
    return result, best


@torch.no_grad()
def model_seconds(model: Propagator, data: Data, runtime: Runtime) -> float:
    """Seconds a trajectory of whole rollouts of a trained model, from fields that are on the device to such fields."""
    learned, steps, device = data.learned, data.task.frames - 1, runtime.device
    count = min(TRAJECTORIES[device.type], len(data.test))
    start = data.test.select(range(count)).to(device, torch.float32)

    def work(part: Batch) -> Tensor:
        first = learned.normaliser.normalise(part.values[:, :1])
        history = start_history(first, learned.spec.history)
        static = learned.normaliser.static(part.static, first)
        parameters = {name: part.parameters[name] for name in learned.spec.parameters}
        lead = torch.full((len(part),), data.task.dt, device=device)
        states = unroll(model, learned.spec.name, history, parameters, part.grid, [(static, lead)] * steps)
        return learned.normaliser.physical(torch.stack(list(states), 1))

    return fastest(work, start, device, runtime.check_stop)[1]


def comparison(rows: list[dict[str, Any]], error: float, seconds: float, spent: dict[str, float]) -> dict[str, Any]:
    """A model of this error and these seconds a rollout, beside the solver; `spent` is what it cost before."""
    good = [row for row in rows if row["nrmse"] <= error]
    equal = min(good, key=lambda row: row["seconds"], default=rows[0])
    saved = equal["seconds"] - seconds
    return {
        "rollouts_per_second": 1 / seconds,
        "solver_rollouts_per_second": 1 / rows[0]["seconds"],
        "against_reference": rows[0]["seconds"] / seconds,
        "equal_error_points": equal["points"],
        "equal_error_nrmse": equal["nrmse"],
        "against_equal_error": equal["seconds"] / seconds,
        "breakeven": spent["train"] / saved if saved > 0 else None,
        "breakeven_with_data": (spent["train"] + spent["data"]) / saved if saved > 0 else None,
    }
