"""Training one model for a run: the operator on all tasks, or an FNO on one task for a given time."""

from __future__ import annotations

import json
import math
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ups.config.schema import FNOConfig, RunConfig, TrainingConfig
from ups.data.known import remembered
from ups.data.pieces import pieces, total_bytes
from ups.data.sampler import sampling_shares
from ups.data.sources import Report, Source
from ups.data.splits import Tick
from ups.data.statistics import statistics
from ups.data.workers import all_cores
from ups.distributed.runtime import Runtime
from ups.durable import write
from ups.fields import Batch, Dataset
from ups.models.propagator import Propagator
from ups.models.saved import Learned, ModelSpec
from ups.rollout.predict import read_all, rollout, steady
from ups.store.fields import CODEC, FieldStore, field_arrays, store_key
from ups.store.ranks import build_on_ranks
from ups.track.open import open_tracker
from ups.track.progress import Progress
from ups.training.losses import relative_l2
from ups.training.profile import StepProfile
from ups.training.trainer import Trainer

VALIDATION = 48
"""At most so many validation trajectories a task are rolled out to choose a checkpoint."""
BLOCKS, TIMED = 5, 6
"""Of each rollout length, so many times so many steps are timed to find an FNO's number of steps."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task ready to train on: what the model is told of it, its store, and its validation trajectories."""

    learned: Learned
    store: FieldStore
    validation: Batch
    share: float


def prepare(
    runtime: Runtime,
    source: Source,
    share: float,
    strides: Mapping[int, float],
    folder: Path,
    dtype: str = "float32",
    workers: int | None = None,
    measured: Report = lambda task, done, total: None,
    stored: Report = lambda task, done, total: None,
) -> Prepared:
    """Statistics of the training split, the store of its normalised fields, and the ranges the model will have seen.

    Rank 0 computes, or finds what it computed for the same data; all ranks, or the worker processes of a single one,
    build; every rank maps the same files. Large data are read by several processes, one for each gigabyte, `workers` or
    all cores at most; the result does not depend on it. `measured` is told the task and its trajectories done and in
    all, `stored` the same in bytes.
    """
    spec = source.spec
    path = folder / spec.name
    readers = max(1, min(workers or all_cores(), total_bytes(source.train) // 10**9))

    def built(done: int, total: int) -> None:
        runtime.crumb.mark("data")
        stored(spec.name, done, total)
        runtime.check_stop(f"{done} of {total} bytes of the store of {spec.name} are kept in {folder}")

    def read(done: int, total: int) -> None:
        runtime.crumb.mark("data")
        measured(spec.name, done, total)
        runtime.check_stop(f"the statistics of {spec.name} will be computed from the first trajectory on")

    def learn() -> list[Any]:
        learned = Learned(
            spec=spec,
            grid=source.train.grid,
            statistics=statistics(source.train, spec, read, readers),
            ranges=_ranges(source.train, spec.parameters, read),
            leads=() if spec.dt is None else tuple(stride * spec.dt for stride in sorted(strides)),
        )
        return [learned.to_dict(), store_key(source.train, learned.normaliser, dtype, read)]

    asked = [repr(spec), sorted(strides), dtype, CODEC]
    described, key = runtime.from_first(
        f"prepare {spec.name}",
        lambda: remembered(folder / f"{spec.name}.learned.json", [source.train], asked, learn),
    )
    learned = Learned.from_dict(described)
    arrays = field_arrays(source.train, learned.normaliser, dtype)
    build_on_ranks(runtime, path, key, arrays, built, workers or readers)
    store = FieldStore(path, source.train, learned.normaliser, key)
    validation = read_all(source.validation, VALIDATION)
    fingerprint = f"{zlib.crc32(validation.values.numpy().tobytes()):08x}"
    runtime.agree(f"validation data of {spec.name}", fingerprint, "give every node the same data files")
    return Prepared(learned, store, validation, share)


def _ranges(dataset: Dataset, names: Sequence[str], tick: Tick) -> dict[str, tuple[float, float]]:
    """The smallest and largest value of each parameter."""
    found: dict[str, tuple[float, float]] = {name: (math.inf, -math.inf) for name in names}
    for rows in pieces(dataset, 1, tick) if names else ():
        seen = dataset.read(rows, slice(0, 1)).parameters
        found = {n: (min(lo, float(seen[n].min())), max(hi, float(seen[n].max()))) for n, (lo, hi) in found.items()}
    return found


def validator(
    tasks: Mapping[str, Prepared], runtime: Runtime
) -> Callable[[Propagator], dict[str, tuple[float, float]]]:
    """This rank's sum of validation errors of each task, and their number: relative L2 per frame of rollouts from the
    first one (or of the solution).

    As in the loss, a frame counts as no smaller than 1 % of the task's rms: one that vanishes must not blind selection.
    Every rank rolls out equally many trajectories, because sharded models compute together; fillers count for nothing.
    """

    capture = runtime.config.capture != "off"

    def validate(model: Propagator) -> dict[str, tuple[float, float]]:
        errors = {}
        for name, task in tasks.items():
            places, real = _share(len(task.validation), runtime.rank, runtime.size)
            batch, learned = task.validation.select(places), task.learned
            if learned.spec.steady:
                prediction, truth = steady(model, learned, batch, capture), batch.values
            else:
                prediction, truth = rollout(model, learned, batch, capture), batch.values[:, 1:]
            prediction, truth = (learned.normaliser.normalise(v)[:real].flatten(0, 1) for v in (prediction, truth))
            errors[name] = (float(relative_l2(prediction, truth).sum()), float(len(truth)))
        return errors

    return validate


def _share(count: int, rank: int, size: int) -> tuple[list[int], int]:
    """A rank's places among `count`, filled up to the longest share by repeating, and how many of them are its own."""
    own = list(range(rank * count // size, (rank + 1) * count // size))
    return own + [own[-1] if own else 0] * (-(-count // size) - len(own)), len(own)


def fit_operator(
    runtime: Runtime, config: RunConfig, tasks: Mapping[str, Prepared], directory: Path, profile: int | None = None
) -> float:
    """Train the operator model on all tasks, tracing `profile` of its steps; its training seconds."""
    operator = config.operator
    spec = ModelSpec(operator.architecture, operator.settings(), tuple(task.learned for task in tasks.values()))
    trainer = _trainer(runtime, spec, tasks, config.training, config.seed, directory)
    around = nullcontext
    written = (directory / "profile" / "profile.md").is_file()  # by the same command, before it was stopped
    if profile is not None and not written and runtime.ranks.attempt == 0:  # after a crash, the end is what matters
        left = config.training.steps - trainer.state.step
        around = StepProfile(profile, directory / "profile", runtime, left).step
    return _fit(trainer, "training the operator", config.training.steps, around)


def fit_fno(runtime: Runtime, config: RunConfig, name: str, task: Prepared, seconds: float, directory: Path) -> float:
    """Train an FNO on one task for about `seconds`: as many steps as its measured speed gives, kept for resuming."""
    settings: FNOConfig = config.fno[name]
    spec = ModelSpec("fno", settings.model_dump(include={"width", "modes", "depth", "padding"}), (task.learned,))
    changes: dict[str, Any] = {"batch_size": settings.batch_size}
    if settings.learning_rate is not None:
        changes["learning_rate"] = settings.learning_rate
    training = config.training.model_copy(update=changes)
    directory.mkdir(parents=True, exist_ok=True)
    budget = directory / "budget.json"
    if not budget.exists():
        rate = _seconds_per_step(runtime, spec, {name: task}, training, config.seed)
        write(budget, json.dumps({"seconds": seconds, "steps": max(50, int(seconds / rate))}).encode())
    steps = json.loads(budget.read_text())["steps"]
    pace = steps / config.training.steps
    training = training.model_copy(
        update={
            "steps": steps,
            "validate_every": max(1, round(pace * training.validate_every)),
            "checkpoint_every": max(1, round(pace * training.checkpoint_every)),
            "warmup": min(training.warmup, steps // 10),
        }
    )
    trainer = _trainer(runtime, spec, {name: task}, training, config.seed, directory)
    return _fit(trainer, f"training an FNO on {name}", steps)


def _trainer(
    runtime: Runtime,
    spec: ModelSpec,
    tasks: Mapping[str, Prepared],
    training: TrainingConfig,
    seed: int,
    directory: Path,
) -> Trainer:
    runtime.crumb.mark("model")
    return Trainer(
        runtime,
        spec.build(seed),
        {name: task.store for name, task in tasks.items()},
        sampling_shares(
            training.sampling,
            {name: task.store.trajectories for name, task in tasks.items()},
            {name: task.share for name, task in tasks.items()},
        ),
        training,
        seed,
        directory,
        {"model": spec.to_dict(), "training": training.model_dump(mode="json"), "seed": seed},
        validator(tasks, runtime),
        open_tracker(directory, runtime.config.tracking, runtime.rank, runtime.ranks.attempt),
    )


def _fit(
    trainer: Trainer, title: str, steps: int, around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> float:
    with Progress(title, total=steps, unit="steps", start=trainer.state.step) as progress:
        seconds = trainer.fit(progress.update, around).seconds
    trainer.events.close()
    return seconds


def _seconds_per_step(
    runtime: Runtime, spec: ModelSpec, tasks: Mapping[str, Prepared], training: TrainingConfig, seed: int
) -> float:
    """The mean time of a step over the rollout schedule, measured on a model that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(runtime, spec, tasks, training, seed, Path(folder))
        ends = [start for start, _ in training.rollout[1:]] + [1.0]
        mean = 0.0
        for (start, _), end in zip(training.rollout, ends, strict=True):
            trainer.state.step = int(start * training.steps) + 1
            for _ in range(3):
                trainer.step()
            blocks = []  # the median of several: a machine that was busy for a moment must not halve the FNO's steps
            for _ in range(BLOCKS):
                began = time.perf_counter()
                for _ in range(TIMED):
                    trainer.step()
                if runtime.device.type == "cuda":
                    torch.cuda.synchronize()
                blocks.append((time.perf_counter() - began) / TIMED)
            mean += (end - start) * median(blocks)
        trainer.events.close()
    return mean
