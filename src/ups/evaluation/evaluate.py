"""Every number and every picture's data of a run, from its checkpoints and its test splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ups.data.sources import Source
from ups.evaluation.labels import PERSISTENCE
from ups.evaluation.scores import score
from ups.evaluation.solver import compare
from ups.fields import Batch
from ups.metrics import nrmse, power_spectrum
from ups.metrics.layout import Fields
from ups.models.predictor import MeanSolution, Persistence, Predictor
from ups.models.saved import TrainedTask
from ups.rollout.predict import one_step, read_all, rollout
from ups.rollout.predict import steady as solve
from ups.track.jsonl import plain


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One view of one task: its part of `metrics.json`, the nRMSE of every test trajectory by kind of prediction and
    predictor, the solver beside it, and arrays to draw.
    """

    metrics: dict[str, Any]
    errors: dict[str, dict[str, list[float | None]]]
    solver: dict[str, Any] | None
    arrays: dict[str, np.ndarray]


def evaluate(
    predictors: Mapping[str, Predictor],
    model: str,
    learned: TrainedTask,
    source: Source,
    view: str,
    *,
    seed: int,
    resamples: int,
    pictures: int,
    training_seconds: float,
    solved: int = 64,
) -> Evaluation:
    """Judge every predictor that knows the task on one test set, beside persistence, in physical units.

    `predictors` are in the order of the tables; `model` names the one the run is about, which is also set beside the
    solvers, on `solved` trajectories. A rollout starts from the frames that the test set gives, and those after them
    are predicted and scored; in one step every frame but the first is predicted. Persistence of a steady task is the
    training set's mean solution.
    """
    if PERSISTENCE in predictors:
        raise ValueError(f"a predictor cannot be called {PERSISTENCE!r}: evaluation adds it itself")
    task, steady = learned.spec.name, learned.spec.steady
    judged = {name: predictor for name, predictor in predictors.items() if task in predictor.tasks}
    judged |= {PERSISTENCE: MeanSolution(learned, source.train) if steady else Persistence([learned])}
    truth, given = read_all(source.tests[view]), source.tests[view].header.given

    def hardest(predictor: Predictor, batch: Batch) -> Fields:
        """What it makes of a batch that gives it as little as the task allows: a solve, or a rollout."""
        return solve(predictor, task, batch) if steady else rollout(predictor, task, batch, given)

    metrics, errors = {}, {}

    def judge(kind: str, predicted: Mapping[str, Fields], first: int) -> None:
        """Of the frames from `first` on, whose times count from the one before."""
        times = truth.times[0, first:] - (0 if steady else truth.times[0, first - 1])
        target = truth.values[:, first:]
        metrics[kind] = score(learned.spec, predicted, target, times, seed, resamples, model=model, grid=truth.grid)
        errors[kind] = {name: plain(nrmse(values, target).flatten(1).mean(1)) for name, values in predicted.items()}

    if not steady:
        judge("one_step", {name: one_step(p, task, truth) for name, p in judged.items()}, 1)
    predicted = {name: hardest(predictor, truth) for name, predictor in judged.items()}
    judge("one_step" if steady else "rollout", predicted, 0 if steady else given)
    solver = None
    if source.solvers and solved:
        found = compare(source.solvers, lambda batch: hardest(judged[model], batch), training_seconds, solved)
        solver = {k: plain(v) if isinstance(v, float) else v for k, v in asdict(found).items()}
    arrays = _arrays(learned, truth, predicted, 0 if steady else given, pictures)
    return Evaluation(metrics, errors, solver, arrays)


def _arrays(
    learned: TrainedTask, truth: Batch, predictions: Mapping[str, Fields], given: int, pictures: int
) -> dict[str, np.ndarray]:
    """A few trajectories to look at, spread over the test set, and the curves over all of it; given frames are true."""
    chosen = torch.linspace(0, len(truth) - 1, min(pictures, len(truth))).round().long()
    target = truth.values[:, given:]
    arrays = {"chosen": chosen.numpy(), "truth": truth.values[chosen].numpy()}
    arrays |= {"times": (truth.times[0] - truth.times[0, 0]).numpy()}
    arrays |= {f"axis_{i}": p.numpy() for i, p in enumerate(truth.grid.positions)}
    arrays |= {f"static_{n}": f[chosen].numpy() for n, f in truth.static.items()}
    arrays |= {f"parameter_{n}": truth.parameters[n][chosen].numpy() for n in learned.spec.parameters}
    for who, values in predictions.items():
        arrays[f"prediction_{who}"] = torch.cat([truth.values[chosen, :given], values[chosen]], 1).numpy()
        growth = nrmse(values, target).mean((0, 2))
        arrays[f"growth_{who}"] = torch.cat([torch.zeros(given), growth.float()]).numpy()
        arrays[f"spectrum_{who}"] = _spectrum(values[:, -1:])
    arrays["spectrum_truth"] = _spectrum(target[:, -1:])
    arrays["wavenumbers"] = power_spectrum(target[:1, -1:])[0].numpy()
    return arrays


def _spectrum(last: Fields) -> np.ndarray:
    """Mean power over samples and channels at the final time."""
    return power_spectrum(last)[1].mean((0, 1, 3)).numpy()
