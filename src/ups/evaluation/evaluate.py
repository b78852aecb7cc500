"""Every number and every picture's data of a run, from its checkpoints and its test splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.sources import Source
from ups.evaluation.cheap import cheap_ensembles
from ups.evaluation.ensembles import EnsembleTest, entries_of
from ups.evaluation.labels import PERSISTENCE
from ups.evaluation.scores import mean_entry, score
from ups.evaluation.solver import compare
from ups.fields import Batch, TaskSpec
from ups.metrics import MetricContext, nrmse, power_spectrum
from ups.metrics.bootstrap import draws
from ups.metrics.layout import Fields, Mask
from ups.models.predictor import MeanSolution, Persistence, Predictor
from ups.models.saved import TrainedTask
from ups.rollout.predict import half_steps, one_step, read_all, rollout
from ups.rollout.predict import steady as solve
from ups.rollout.schedule import SAME
from ups.track.jsonl import plain

VALIDATION = 16
"""At most so many validation trajectories size the cheap ensembles."""


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
    members: int = 16,
) -> Evaluation:
    """Judge every predictor that knows the task on one test set, beside persistence, in physical units.

    `predictors` are in the order of the tables; `model` names the one the run is about, which is also set beside the
    solvers, on `solved` trajectories. A rollout starts from the frames that the test set gives, and those after them
    are predicted and scored; in one step every frame but the first is predicted. Persistence of a steady task is the
    training set's mean solution. Where training had lead times to compare, `half_steps` says how far two steps of half
    the longest end from one step of all of it. Where a predictor has chance, so many members of its hardest view are
    judged as an ensemble, beside cheap ones; all other numbers are of the prediction without chance.
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

    spec, present = _present(learned.spec, truth)
    metrics, errors = {}, {}

    def judge(kind: str, predicted: Mapping[str, Fields], first: int) -> None:
        """Of the frames from `first` on, whose times count from the one before."""
        times = truth.times[:, first:] - (0 if steady else truth.times[:, first - 1 : first])
        target, predicted = present(truth.values[:, first:]), {who: present(p) for who, p in predicted.items()}
        equation = source.solvers[0][0] if source.solvers else None
        context = MetricContext(spec, times, truth.grid, truth.mask, equation, truth.parameters, truth.static)
        metrics[kind] = score(context, predicted, target, seed, resamples, model=model)
        errors[kind] = {
            who: plain(nrmse(values, target, truth.mask).flatten(1).mean(1)) for who, values in predicted.items()
        }

    if not steady:
        judge("one_step", {name: one_step(p, task, truth) for name, p in judged.items()}, 1)
        if (half := _half(learned, truth)) is not None:
            apart = {name: _apart(p, task, truth, half, present) for name, p in judged.items() if name != PERSISTENCE}
            metrics["one_step"]["half_steps"] = mean_entry(model, apart, draws(len(truth), seed, resamples))
    predicted = {name: hardest(predictor, truth) for name, predictor in judged.items()}
    judge("one_step" if steady else "rollout", predicted, 0 if steady else given)
    first, chosen, drawn_arrays = 0 if steady else given, _chosen(truth, pictures), {}
    if any(predictor.chance for predictor in judged.values()):
        test = EnsembleTest(task, truth, given, present, chosen, members, seed)
        held, of = read_all(source.validation, VALIDATION), {w: p for w, p in judged.items() if w != PERSISTENCE}
        judged |= cheap_ensembles(of, task, held, source.validation.header.given, members, seed)
        scored = {who: test.judged(who, p, None if p.chance else predicted[who]) for who, p in judged.items()}
        metrics["one_step" if steady else "rollout"] |= entries_of(model, scored, draws(len(truth), seed, resamples))
        drawn_arrays = {f"{name}_{who}": array for who, own in scored.items() for name, array in own.arrays.items()}
    solver = None
    if source.solvers and solved:
        found = compare(source.solvers, lambda batch: hardest(judged[model], batch), training_seconds, solved)
        solver = {k: plain(v) if isinstance(v, float) else v for k, v in asdict(found).items()}
    arrays = _arrays(learned, truth, predicted, first, chosen, present)
    return Evaluation(metrics, errors, solver, arrays | drawn_arrays)


def _present(spec: TaskSpec, truth: Batch) -> tuple[TaskSpec, Callable[[Fields], Fields]]:
    """The task with the channels that are anything but zero in a test set, and what takes them from fields: against a
    channel that is zero throughout, no error is relative. All, where all are zero.
    """
    places = truth.values.flatten(0, -2).any(0).nonzero().flatten().tolist() or list(range(len(spec.channels)))
    if len(places) == len(spec.channels):
        return spec, lambda fields: fields
    channels = tuple(spec.channels[place] for place in places)
    names = {channel.name for channel in channels}
    kept = tuple(invariant for invariant in spec.invariants if invariant.channel in names)
    return replace(spec, channels=channels, invariants=kept), lambda fields: fields[..., places]


def _half(learned: TrainedTask, truth: Batch) -> int | None:
    """Half of the most frames that a step may span in the trained range of lead times; None where half is too short."""
    if len(learned.leads) < 2 or learned.spec.dt is None:
        return None
    dt = float(truth.times[0, 1] - truth.times[0, 0])
    half = int(max(learned.leads) / dt * (1 + SAME) / 2)
    return half if half and half * dt * (1 + SAME) >= min(learned.leads) else None


def _apart(
    predictor: Predictor, task: str, truth: Batch, half: int, present: Callable[[Fields], Fields]
) -> Float[Tensor, " N"]:
    """The nRMSE of two half steps, were one whole step the truth: 0 for a simulator that is one at every lead time."""
    twice, once = half_steps(predictor, task, truth, half)
    return nrmse(present(twice), present(once), truth.mask).flatten(1).mean(1).double()


def _arrays(
    learned: TrainedTask,
    truth: Batch,
    predictions: Mapping[str, Fields],
    given: int,
    chosen: Int[Tensor, " S"],
    present: Callable[[Fields], Fields],
) -> dict[str, np.ndarray]:
    """A few trajectories to look at, spread over the test set, and the curves over all of it; given frames are true."""
    target = truth.values[:, given:]
    arrays = {"chosen": chosen.numpy(), "truth": truth.values[chosen].numpy()}
    arrays |= {"times": (truth.times[0] - truth.times[0, 0]).numpy()}
    arrays |= {f"axis_{i}": p.numpy() for i, p in enumerate(truth.grid.positions)}
    arrays |= {f"static_{n}": f[chosen].numpy() for n, f in truth.static.items()}
    arrays |= {f"parameter_{n}": truth.parameters[n][chosen].numpy() for n in learned.spec.parameters}
    for who, values in predictions.items():
        arrays[f"prediction_{who}"] = torch.cat([truth.values[chosen, :given], values[chosen]], 1).numpy()
        growth = nrmse(present(values), present(target), truth.mask).mean((0, 2))
        arrays[f"growth_{who}"] = torch.cat([torch.zeros(given), growth.float()]).numpy()
        arrays[f"spectrum_{who}"] = _spectrum(values[:, -1:], truth.mask)
    arrays["spectrum_truth"] = _spectrum(target[:, -1:], truth.mask)
    arrays["wavenumbers"] = power_spectrum(target[:1, -1:])[0].numpy()
    return arrays


def _chosen(truth: Batch, pictures: int) -> Int[Tensor, " S"]:
    return torch.linspace(0, len(truth) - 1, min(pictures, len(truth))).round().long()


def _spectrum(last: Fields, mask: Mask) -> np.ndarray:
    """Mean power over samples and channels at the final time."""
    return power_spectrum(last, mask)[1].mean((0, 1, 3)).numpy()
