"""Every number and every picture's data of a run, from its checkpoints and its test splits.

A test set is read, predicted and measured in pieces of `PIECE_BYTES`, and only numbers are kept of a piece: memory does
not grow with the number of trajectories. Ranks take pieces in turn. Where a piece begins follows from the data alone,
so no digit depends on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.joined import Subset
from ups.data.prepare.row_ranges import row_ranges, spread
from ups.data.sources import Source
from ups.distributed.runtime.start import Runtime
from ups.evaluation.cheap import cheap_ensembles
from ups.evaluation.ensembles import EnsembleTest, Scored, entries_of
from ups.evaluation.far import extremes, far_beyond
from ups.evaluation.labels import PERSISTENCE
from ups.evaluation.numbers import Numbers, spectrum
from ups.evaluation.scores import mean_entry, score
from ups.evaluation.solver import compare
from ups.fields import Batch, Dataset, Grid, TaskSpec
from ups.metrics import MetricContext, nrmse, power_spectrum
from ups.metrics.bootstrap import draws
from ups.metrics.layout import Fields, filled
from ups.models.predictor import MeanSolution, Persistence, Predictor
from ups.models.saved import TrainedTask
from ups.rollout.predict import half_steps, one_step, rollout
from ups.rollout.predict import steady as solve
from ups.rollout.schedule import SAME
from ups.track.jsonl import plain
from ups.track.tick import Tick

PIECE_BYTES = 1 << 26
"""Of the trajectories that are predicted and measured at once: 64 MiB, or one trajectory where it has more."""
PICTURE_BYTES = 1 << 27
"""Of each predictor's fields that are kept for pictures; of larger ones fewer frames are."""

VALIDATION = 16
"""At most so many validation trajectories size the cheap ensembles, and of no more bytes than pictures."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One view of one task: its part of `metrics.json`, the nRMSE of every test trajectory by kind of prediction and
    predictor, the solver beside it, arrays to draw, and sentences on data that are unlike the training data.
    """

    metrics: dict[str, Any]
    errors: dict[str, dict[str, list[float | None]]]
    solver: dict[str, Any] | None
    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Piece:
    """What is kept of some trajectories: numbers by kind of prediction and predictor, how far two half steps end from a
    whole one by predictor, the last true frame's spectrum and the extremes of all, and ensembles by predictor.
    """

    numbers: dict[str, dict[str, Numbers]]
    apart: dict[str, Float[Tensor, " N"]]
    spectrum: Float[Tensor, "N K"]
    ends: Float[Tensor, "N two C"]
    ensembles: dict[str, Scored]


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
    runtime: Runtime | None = None,
    tick: Tick | None = None,
) -> Evaluation:
    """Judge every predictor that knows the task on one test set, beside persistence, in physical units.

    `predictors` are in the order of the tables; `model` names the one the run is about, which is also set beside the
    solvers, on `solved` trajectories. A rollout starts from the frames that the test set gives, and those after them
    are predicted and scored; in one step every frame but the first is predicted. Persistence of a steady task is the
    training set's mean solution. Where training had lead times to compare, `half_steps` says how far two steps of half
    the longest end from one step of all of it. Where a predictor has chance, so many members of its hardest view are
    judged as an ensemble, beside cheap ones; all other numbers are of the prediction without chance.

    Fields are measured on the device of the `runtime`, whose ranks share the work; only rank 0 sets solvers beside the
    model and has arrays to draw.
    """
    if PERSISTENCE in predictors:
        raise ValueError(f"a predictor cannot be called {PERSISTENCE!r}: evaluation adds it itself")
    task, test = learned.spec.name, source.tests[view]
    steady, given = learned.spec.steady, 0 if learned.spec.steady else test.header.given
    judged = {name: predictor for name, predictor in predictors.items() if task in predictor.tasks}
    judged |= {PERSISTENCE: MeanSolution(learned, source.train) if steady else Persistence([learned])}
    device = torch.device("cpu") if runtime is None else runtime.device
    grid = Grid(tuple(axis.to(device) for axis in test.grid.positions), test.grid.extent)
    spec, present = _present(learned.spec, test)
    equation = source.solvers[0][0] if source.solvers else None

    def hardest(who: str, batch: Batch) -> Fields:
        """What it makes of a batch that gives it as little as the task allows: a solve, or a rollout."""
        return solve(judged[who], task, batch) if steady else rollout(judged[who], task, batch, given)

    def measured(truth: Batch, kind: str, predict: Callable[[str], Fields], first: int) -> dict[str, Numbers]:
        """Of the frames from `first` on, whose times count from the one before. One predictor's fields at a time."""
        times = truth.times[:, first:] - (0 if steady else truth.times[:, first - 1 : first])
        context = MetricContext(spec, times, grid, truth.mask, equation, truth.parameters, truth.static)
        target = present(truth.values[:, first:])
        return {who: Numbers.of(present(predict(who)), target, context) for who in judged}

    def piece(rows: range, truth: Batch) -> Piece:
        apart: dict[str, Tensor] = {}
        kinds = {"one_step" if steady else "rollout": (lambda who: hardest(who, truth), given)}
        if not steady:
            kinds = {"one_step": (lambda who: one_step(judged[who], task, truth), 1)} | kinds
            if (half := _half(learned, truth)) is not None:
                apart = {who: _apart(judged[who], task, truth, half, present) for who in judged if who != PERSISTENCE}
        numbers = {kind: measured(truth, kind, *how) for kind, how in kinds.items()}
        here = [place - rows.start for place in chosen if rows.start <= place < rows.stop]
        parts = EnsembleTest(task, truth, given, present, here, members, seed + rows.start)
        ensembles = {
            who: parts.judged(who, each, None if each.chance else hardest(who, truth)) for who, each in sampled.items()
        }
        spectra, ends = spectrum(truth.values, truth.mask), extremes(truth.values, truth.mask)
        return Piece(numbers, apart, spectra, ends, ensembles)

    chosen = torch.linspace(0, len(test) - 1, min(pictures, len(test))).round().long().tolist()
    sampled: dict[str, Predictor] = {}
    if any(predictor.chance for predictor in judged.values()):
        few = spread(source.validation, VALIDATION, PICTURE_BYTES)
        held, first = source.validation.read(few, slice(None)).to(device), source.validation.header.given
        trained = {who: predictor for who, predictor in judged.items() if who != PERSISTENCE}
        sampled = judged | cheap_ensembles(trained, task, held, first, members, seed)
    ranges = list(row_ranges(test, len(test.times), PIECE_BYTES))
    pieces = _shared(f"evaluation of {view}", test, device, ranges, piece, runtime, tick)
    whole = {
        kind: {who: Numbers.joined([part.numbers[kind][who] for part in pieces]) for who in judged}
        for kind in pieces[0].numbers
    }
    metrics = {kind: score(found, seed, resamples, model=model) for kind, found in whole.items()}
    if pieces[0].apart:
        apart = {who: torch.cat([part.apart[who] for part in pieces]) for who in pieces[0].apart}
        metrics["one_step"]["half_steps"] = mean_entry(model, apart, draws(len(test), seed, resamples))
    ensembles = {who: Scored.joined([part.ensembles[who] for part in pieces]) for who in sampled}
    if ensembles:
        metrics["one_step" if steady else "rollout"] |= entries_of(model, ensembles, draws(len(test), seed, resamples))
    errors = {kind: {who: plain(n.metrics["nrmse"]) for who, n in found.items()} for kind, found in whole.items()}
    if runtime is not None and runtime.rank > 0:
        return Evaluation(metrics, errors, None, {})
    solver = None
    if source.solvers and solved:
        compared = compare(source.solvers, lambda batch: hardest(model, batch), training_seconds, solved, PIECE_BYTES)
        solver = {k: plain(v) if isinstance(v, float) else v for k, v in asdict(compared).items()}
    arrays = _pictured(learned, test, list(judged), hardest, given, chosen, device)
    arrays |= _curves(test, whole["one_step" if steady else "rollout"], given)
    arrays["spectrum_truth"] = torch.cat([part.spectrum for part in pieces]).mean(0).numpy()
    arrays |= {f"{name}_{who}": array for who, own in ensembles.items() for name, array in own.arrays().items()}
    notes = far_beyond(learned, view, torch.cat([part.ends for part in pieces]))
    return Evaluation(metrics, errors, solver, arrays, tuple(notes))


def _shared(
    what: str,
    test: Dataset,
    device: torch.device,
    ranges: Sequence[range],
    work: Callable[[range, Batch], Piece],
    runtime: Runtime | None,
    tick: Tick | None,
) -> list[Piece]:
    """`work` of every range, in order, on every rank: ranks take ranges in turn."""
    rank, size = (0, 1) if runtime is None else (runtime.rank, runtime.size)

    def own(check: Callable[[], None] = lambda: None) -> list[Piece]:
        done, mine = [], ranges[rank::size]
        with ThreadPoolExecutor(1) as reader:  # reads the next piece while one is predicted and measured
            coming = [reader.submit(test.read, rows, slice(None)) for rows in mine[:1]]
            for rows, after in zip_longest(mine, mine[1:]):
                truth = coming.pop().result().to(device)
                if after is not None:
                    coming.append(reader.submit(test.read, after, slice(None)))
                done.append(work(rows, truth))
                check()
                if tick is not None:
                    tick(rows.stop, ranges[-1].stop)
        return done

    parts = [own()] if runtime is None else runtime.together(what, own)
    return [parts[number % size][number // size] for number in range(len(ranges))]


def _present(spec: TaskSpec, test: Dataset) -> tuple[TaskSpec, Callable[[Fields], Fields]]:
    """The task with the channels that are anything but zero in a test set, and what takes them from fields: against a
    channel that is zero throughout, no error is relative. All, where all are zero. Reads no further than it must.
    """
    seen = torch.zeros(len(spec.channels), dtype=torch.bool)
    for rows in row_ranges(test, len(test.times), PIECE_BYTES):
        batch = test.read(rows, slice(None))
        seen |= filled(batch.values, batch.mask).flatten(0, -2).any(0)
        if seen.all():
            break
    places = seen.nonzero().flatten().tolist() or list(range(len(spec.channels)))
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
    return nrmse(present(twice), present(once), truth.mask).flatten(1).mean(1).double().cpu()


def _pictured(
    learned: TrainedTask,
    test: Dataset,
    names: Sequence[str],
    hardest: Callable[[str, Batch], Fields],
    given: int,
    chosen: Sequence[int],
    device: torch.device,
) -> dict[str, np.ndarray]:
    """A few trajectories to look at, spread over the test set, predicted once more; given frames are true."""
    few, last = Subset(test, chosen), len(test.times) - 1
    one = len(chosen) * test.header.dtype.itemsize * len(test.channels) * math.prod(test.grid.shape)
    frames = torch.linspace(0, last, min(last + 1, max(2, PICTURE_BYTES // one))).round().long()
    parts: dict[str, list[Tensor]] = {}
    for rows in row_ranges(few, len(test.times), PIECE_BYTES):
        truth = few.read(rows, slice(None)).to(device)
        found = {"truth": truth.values[:, frames], **{f"static_{n}": f for n, f in truth.static.items()}}
        found |= {f"parameter_{n}": truth.parameters[n] for n in learned.spec.parameters}
        found |= {} if truth.mask is None else {"mask": truth.mask}
        if test.header.own_times is not None:
            found["own_times"] = (truth.times - truth.times[:, :1])[:, frames]
        for who in names:
            values = torch.cat([truth.values[:, :given], hardest(who, truth)], 1)
            found[f"prediction_{who}"] = values[:, frames]
        for name, tensor in found.items():
            parts.setdefault(name, []).append(tensor.cpu())
    arrays = {"chosen": np.array(chosen), "frames": frames.numpy()}
    return arrays | {name: torch.cat(own).numpy() for name, own in parts.items()}


def _curves(test: Dataset, found: Mapping[str, Numbers], given: int) -> dict[str, np.ndarray]:
    """Error over time and spectra, means over all of the test set."""
    times = test.times[None] if test.header.own_times is None else test.header.own_times  # means of them are drawn over
    arrays = {"times": (times - times[:, :1]).mean(0).numpy()}
    arrays |= {f"axis_{axis}": positions.numpy() for axis, positions in enumerate(test.grid.positions)}
    for who, numbers in found.items():
        arrays[f"growth_{who}"] = torch.cat([torch.zeros(given), numbers.growth.mean(0).float()]).numpy()
        arrays[f"spectrum_{who}"] = numbers.spectrum.mean(0).numpy()
    arrays["wavenumbers"] = power_spectrum(torch.zeros(1, 1, *test.grid.shape, 1))[0].numpy()
    return arrays
