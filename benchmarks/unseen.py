"""A trained model on what it has not seen: another parameter value, a finer grid, four times the trained horizon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from solved import Solved, judged_on, splits
from torch import Tensor

from ups.bench.ratios import Ratio
from ups.data.settings import MakeConfig
from ups.data.sources import equations_of
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Batch
from ups.metrics import nrmse, power_spectrum
from ups.metrics.bootstrap import central, draws, resampled_means
from ups.models.predictor import Predictor
from ups.pipeline.bench import UNIVERSAL
from ups.pipeline.config import load_run
from ups.rollout.predict import read_all, rollout
from ups.training.restore import restored, stage_folder

Errors = Float[Tensor, " N"]
LATE = 4
"""Spectra are of the last of so many parts of a rollout."""
LEAST = 1e-6
"""The part of the energy that an octave must hold to be compared."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model, how the data of its tasks are made, and the seed of these."""

    predictor: Predictor
    makes: Mapping[str, MakeConfig]
    seed: int
    runtime: Runtime

    @property
    def device(self) -> torch.device:
        self.runtime.check_stop("nothing")  # asked for before everything that takes long
        return self.runtime.device

    def chosen(self, tasks: Sequence[str]) -> dict[str, MakeConfig]:
        """Those named, or all; steady ones have no rollouts."""
        if unknown := [task for task in tasks if task not in self.makes]:
            raise UserError(f"the model has no task {unknown[0]!r} whose data are made; it has {', '.join(self.makes)}")
        return {
            name: make
            for name, make in self.makes.items()
            if (not tasks or name in tasks) and not self.predictor.tasks[name].spec.steady
        }

    def rolled(self, task: str, batch: Batch) -> Float[Tensor, "N T *space C"]:
        """The frames after those given."""
        return rollout(self.predictor, task, batch, self.given(task))

    def given(self, task: str) -> int:
        return self.predictor.tasks[task].given

    def errors(self, task: str, batch: Batch) -> Errors:
        return _errors(self.rolled(task, batch), batch.values[:, self.given(task) :])


@contextmanager
def loaded(folder: Path, config: str | None, seed: int | None) -> Iterator[Model]:
    """The model of a run or an export; the latter does not say how data are made: its configuration must be named."""
    if config is None and not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} does not say how its data are made; name its configuration: --config {UNIVERSAL}")
    told = load_run(config or folder / "config.yaml", [])
    seed = told.data_seed if seed is None else seed
    with Runtime.start(told.runtime, seed) as runtime:
        predictor = restored(stage_folder(folder), told.runtime).predictor().to(runtime.device)
        makes = {name: task.make for name, task in told.tasks.items() if task.make and name in predictor.tasks}
        yield Model(predictor, makes, seed, runtime)


def held_out(model: Model, task: str, parameter: str, value: float) -> dict[str, Any]:
    """Rollout errors at each trained value of a parameter and at another one, over the mean of the former."""
    make = model.chosen([task])[task]
    if parameter not in make.values or value in make.values[parameter]:
        raise UserError(
            f"{task} is trained at {parameter} {make.values.get(parameter)}; give a value that is not there"
        )
    other = make.model_copy(update={"values": {**make.values, parameter: [value]}})
    parts = splits(task, make, model.seed, model.device)
    trained = {label: model.errors(task, read_all(part.test)) for label, part in parts}
    new = [
        Solved(equation, len(parts[0][1].test), model.seed, model.device) for _, equation in equations_of(task, other)
    ]
    unseen = torch.cat([model.errors(task, read_all(data)) for data in new])
    return {
        "trained": {label: float(errors.mean()) for label, errors in trained.items()},
        "held out": float(unseen.mean()),
        "ratio": _ratio(unseen, torch.cat(list(trained.values())), model.seed),
    }


def resolution(model: Model, tasks: Sequence[str], points: int) -> dict[str, dict[str, Any]]:
    """Rollout errors on the trained grid, on one of so many points, and of the truth interpolated from that to this: a
    model that computes on its own grid can hardly do better than either.
    """
    found = {}
    for task, make in model.chosen(tasks).items():
        learned = model.predictor.tasks[task]
        if learned.spec.dimension > 1 and not tasks:
            continue
        own, fine = (
            read_all(judged_on(splits(task, make, model.seed, model.device, changes)))
            for changes in ({}, {"points": points})
        )
        if fine.grid.shape <= own.grid.shape:
            raise UserError(f"{task} is trained at {own.grid.shape[0]} points; ask for more than that")
        frames = own.values[:, model.given(task) :]
        read = learned.reader(fine.grid, frames)
        floor = learned.normaliser.physical(read(learned.normaliser.normalise(frames.flatten(0, 1))))
        errors = {
            "trained grid": model.errors(task, own),
            "finer grid": model.errors(task, fine),
            "floor": _errors(floor.unflatten(0, frames.shape[:2]), fine.values[:, model.given(task) :]),
        }
        means = {name: float(values.mean()) for name, values in errors.items()}
        limit = max("trained grid", "floor", key=means.__getitem__)
        found[task] = {
            "points": [own.grid.shape[0], points],
            **means,
            "larger": limit,
            "ratio": _ratio(errors["finer grid"], errors[limit], model.seed, paired=True),
        }
    return found


def horizon(model: Model, tasks: Sequence[str], times: int, spectra: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Rollouts of so many times the trained horizon: values that are no number, and late spectra over the truth's."""
    found = {}
    for task, make in model.chosen(tasks).items():
        equation = equations_of(task, make)[0][1]
        longer = {"frames": times * (equation.frames - 1) + 1, "duration": times * equation.duration}
        test = judged_on(splits(task, make, model.seed, model.device, longer))
        given = model.given(task)
        rows = range(len(test))
        batch = test.read(rows, slice(None) if task in spectra else slice(0, given))
        if task not in spectra:  # only the number of later frames counts
            rest = batch.values[:, -1:].expand(-1, longer["frames"] - given, *batch.values.shape[2:])
            whole = torch.cat([batch.values, rest], 1)
            batch = replace(batch, values=whole, times=test.times.expand(len(test), -1))
        predicted = model.rolled(task, batch)
        wrong = ~predicted.isfinite().flatten(2).all(2)
        found[task] = {
            "steps": predicted.shape[1],
            "trajectories": len(test),
            "not finite": int(wrong.any(1).sum()),
            "first step": 1 + int(wrong.any(0).int().argmax()) if wrong.any() else None,
        }
        if task in spectra:
            late = predicted.shape[1] // LATE
            found[task]["octaves"] = octaves(predicted[:, -late:], batch.values[:, -late:])
    return found


def octaves(
    predicted: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"]
) -> list[dict[str, float | int]]:
    """Mean energy of each octave of wave numbers that holds enough of the truth's, over the truth's."""
    waves, energy = power_spectrum(truth)
    own, true = (e.mean((0, 1)).sum(-1) for e in (power_spectrum(predicted)[1], energy))
    found, first = [], 1
    while first <= int(waves[-1]):
        inside = (waves >= first) & (waves < 2 * first)
        share = float(true[inside].sum() / true.sum())
        if share > LEAST:
            last = min(2 * first - 1, int(waves[-1]))
            ratio = float(own[inside].sum() / true[inside].sum())
            found.append({"first": first, "last": last, "share": share, "ratio": ratio})
        first *= 2
    return found


def _errors(predicted: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"]) -> Errors:
    return nrmse(predicted.cpu(), truth.cpu()).flatten(1).mean(1)


def _ratio(errors: Errors, others: Errors, seed: int, *, paired: bool = False) -> Ratio:
    """Of the means, whose trajectories are drawn again together if they are the same."""
    first = draws(len(errors), seed)
    second = first if paired else draws(len(others), seed + 1)
    low, high = central(resampled_means(errors, first) / resampled_means(others, second))
    return Ratio(float(errors.mean() / others.mean()), float(low), float(high))
