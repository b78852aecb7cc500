"""Every number and every picture's data of a run, from its checkpoints and its test splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.prepare.row_ranges import in_steps
from ups.data.sources import Source
from ups.evaluation.labels import PERSISTENCE
from ups.evaluation.scores import plain, score
from ups.evaluation.solver import compare
from ups.fields import Batch, Dataset, Grid
from ups.metrics import nrmse, power_spectrum
from ups.models.propagator import Propagator
from ups.models.saved import TrainedTask
from ups.rollout.predict import on_grid, one_step, read_all, rollout
from ups.rollout.predict import steady as solve

Fields = Float[Tensor, "N T *space C"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One view of one task: its part of `metrics.json`, the solver beside it, and arrays to draw."""

    metrics: dict[str, Any]
    solver: dict[str, Any] | None
    arrays: dict[str, np.ndarray]


def evaluate(
    predictors: Mapping[str, Propagator],
    model: str,
    learned: TrainedTask,
    source: Source,
    view: str,
    *,
    seed: int,
    resamples: int,
    pictures: int,
    training_seconds: float,
    capture: bool = True,
) -> Evaluation:
    """Judge every predictor that knows the task on one test set, beside persistence, in physical units.

    `predictors` are in the order of the tables; `model` names the one the run is about, which is also set beside the
    solvers. On a GPU steps are replayed as CUDA graphs, unless `capture` is false.
    """
    if PERSISTENCE in predictors:
        raise ValueError(f"a predictor cannot be called {PERSISTENCE!r}: evaluation adds it itself")
    truth = read_all(source.tests[view])
    steady = learned.spec.steady
    target, times = (
        (truth.values, truth.times[0]) if steady else (truth.values[:, 1:], truth.times[0, 1:] - truth.times[0, 0])
    )
    predicted = _predicted(predictors, learned, source, truth, capture)
    views = {
        name: score(learned.spec, fields, target, times, seed, resamples, model=model, grid=truth.grid)
        for name, fields in predicted.items()
    }
    solver = None
    if source.solvers:
        found = compare(
            source.solvers, lambda batch: _hardest(predictors[model], learned, batch, capture), training_seconds
        )
        solver = {k: plain(v) if isinstance(v, float) else v for k, v in asdict(found).items()}
    arrays = _arrays(learned, truth, predicted["one_step" if steady else "rollout"], target, pictures)
    return Evaluation(views, solver, arrays)


def _predicted(
    predictors: Mapping[str, Propagator], learned: TrainedTask, source: Source, truth: Batch, capture: bool
) -> dict[str, dict[str, Fields]]:
    """{view: {predictor: fields}}, with persistence (for a steady task: the mean solution) as the last of them."""
    hardest = {name: _hardest(predictor, learned, truth, capture) for name, predictor in predictors.items()}
    if learned.spec.steady:
        return {"one_step": hardest | {PERSISTENCE: mean_solution(source, truth)}}
    steps = {name: one_step(predictor, learned, truth, capture) for name, predictor in predictors.items()}
    return {
        "one_step": steps | {PERSISTENCE: truth.values[:, :-1]},
        "rollout": hardest | {PERSISTENCE: truth.values[:, :1].expand_as(truth.values[:, 1:])},
    }


def _hardest(predictor: Propagator, learned: TrainedTask, batch: Batch, capture: bool) -> Fields:
    """What a predictor makes of a batch that gives it as little as the task allows: a solve, or a rollout."""
    return (solve if learned.spec.steady else rollout)(predictor, learned, batch, capture)


def mean_solution(source: Source, truth: Batch) -> Fields:
    """For a steady task, what knows nothing of the sample: the mean solution of the training set."""
    total = torch.zeros(*source.train.grid.shape, len(source.train.channels), dtype=torch.float64)
    for rows in in_steps(len(source.train), 256):
        batch = source.train.read(rows, slice(None))
        total += batch.values[:, 0].double().sum(0)
    mean = (total / len(source.train))[None]
    mean = (
        on_grid(mean, source.train.grid, truth.grid, truth.boundary.periodic)
        if _other(source.train, truth.grid)
        else mean
    )
    return mean[:, None].expand(truth.values.shape).to(truth.values.dtype)


def _other(dataset: Dataset, grid: Grid) -> bool:
    return not dataset.grid.same_as(grid)


def _arrays(
    learned: TrainedTask, truth: Batch, predictions: Mapping[str, Fields], target: Fields, pictures: int
) -> dict[str, np.ndarray]:
    """A few trajectories to look at, spread over the test set, and the curves over all of it."""
    chosen = torch.linspace(0, len(truth) - 1, min(pictures, len(truth))).round().long()
    whole = not learned.spec.steady
    arrays = {"chosen": chosen.numpy(), "truth": truth.values[chosen].numpy()}
    arrays |= {"times": (truth.times[0] - truth.times[0, 0]).numpy()}
    arrays |= {f"axis_{i}": p.numpy() for i, p in enumerate(truth.grid.positions)}
    arrays |= {f"static_{n}": f[chosen].numpy() for n, f in truth.static.items()}
    arrays |= {f"parameter_{n}": truth.parameters[n][chosen].numpy() for n in learned.spec.parameters}
    for who, values in predictions.items():
        shown = torch.cat([truth.values[chosen, :1], values[chosen]], 1) if whole else values[chosen]
        arrays[f"prediction_{who}"] = shown.numpy()
        growth = nrmse(values, target).mean((0, 2))
        arrays[f"growth_{who}"] = torch.cat([torch.zeros(1), growth.float()]).numpy() if whole else growth.numpy()
        arrays[f"spectrum_{who}"] = _spectrum(values[:, -1:])
    arrays["spectrum_truth"] = _spectrum(target[:, -1:])
    arrays["wavenumbers"] = power_spectrum(target[:1, -1:])[0].numpy()
    return arrays


def _spectrum(last: Fields) -> np.ndarray:
    """Mean power over samples and channels at the final time."""
    return power_spectrum(last)[1].mean((0, 1, 3)).numpy()
