"""A trained model on what it has not seen: another parameter value, a finer grid, four times the trained horizon; and
how many of its parameters serve several tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float
from solved import Solved, judged_on, splits
from torch import Tensor

from ups.bench.ratios import Ratio
from ups.data.settings import MakeConfig
from ups.data.sources import equations_of
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.evaluation.labels import PERSISTENCE
from ups.fields import Batch
from ups.metrics import nrmse, power_spectrum
from ups.metrics.bootstrap import central, draws, resampled_means
from ups.models.predictor import Persistence
from ups.models.propagator import Guards
from ups.pipeline.bench import UNIVERSAL
from ups.pipeline.config import load_run
from ups.rollout.operator import OperatorPredictor
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

    predictor: OperatorPredictor
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
        assert isinstance(predictor, OperatorPredictor), "what universal trains"
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
    """Rollouts of so many times the trained horizon: errors at its end and at theirs, values that are no number, the
    share of values that guards cut off, and late spectra over the truth's.
    """
    found = {}
    for task, make in model.chosen(tasks).items():
        equation = equations_of(task, make)[0][1]
        longer = {"frames": times * (equation.frames - 1) + 1, "duration": times * equation.duration}
        batch = read_all(judged_on(splits(task, make, model.seed, model.device, longer)))
        with _clamped(model.predictor, task) as clamped:
            predicted = model.rolled(task, batch)
        truth, last = batch.values[:, model.given(task) :], equation.frames - 1 - model.given(task)
        still = rollout(Persistence(model.predictor.tasks.values()), task, batch, model.given(task))
        wrong = ~predicted.isfinite().flatten(2).all(2)
        found[task] = {
            "steps": predicted.shape[1],
            "trajectories": len(batch),
            "error": {"1": _at(predicted, truth, last), str(times): _at(predicted, truth, -1)},
            PERSISTENCE: _at(still, truth, -1),
            "clamped": clamped.share,
            "not finite": int(wrong.any(1).sum()),
            "first step": 1 + int(wrong.any(0).int().argmax()) if wrong.any() else None,
        }
        if task in spectra:
            late = predicted.shape[1] // LATE
            found[task]["octaves"] = octaves(predicted[:, -late:], truth[:, -late:])
    return found


def serving_several(model: Model) -> dict[str, float]:
    """How many of the model's parameters, and what share, more than one task's loss has a gradient on."""
    network = model.predictor.model.requires_grad_(True)
    served = {name: torch.zeros(p.shape, dtype=torch.int16) for name, p in network.named_parameters()}
    draw = torch.Generator().manual_seed(0)
    for task, learned in model.predictor.tasks.items():
        spec, space = learned.spec, (2, *learned.grid.shape)
        history = torch.randn(2, spec.history, *learned.grid.shape, len(spec.channels), generator=draw)
        static = torch.rand(*space, len(spec.given), generator=draw).to(model.device)
        parameters = {name: torch.full((2,), learned.ranges[name][0]).to(model.device) for name in spec.parameters}
        lead = None if spec.steady else torch.full((2,), learned.leads[0]).to(model.device)
        network.zero_grad()
        network(task, history.to(model.device), static, parameters, lead, learned.grid).square().sum().backward()
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                served[name] += (parameter.grad != 0).cpu()
    network.zero_grad()
    network.requires_grad_(False)
    whole = sum(count.numel() for count in served.values())
    several = sum(int((count > 1).sum()) for count in served.values())
    return {"parameters": whole, "serving several": several, "share": several / whole}


class _Count:
    """Values that guards were given, and those that they cut off."""

    given = 0
    cut = 0

    @property
    def share(self) -> float:
        return self.cut / max(1, self.given)


@contextmanager
def _clamped(predictor: OperatorPredictor, task: str) -> Iterator[_Count]:
    """What the guards of a task cut off meanwhile; steps are eager, since recorded ones tell nobody."""
    count, captured = _Count(), predictor.capture

    def look(guards: Any, given: tuple[Tensor | None, ...]) -> None:
        if guards.limited:
            state, last, mask = given
            lower, upper = guards.limits(last, mask)
            count.given += cast(Tensor, state).numel()
            count.cut += int(((state < lower) | (state > upper)).sum())

    guards = predictor.model.get_submodule(f"guards_{task}")
    assert isinstance(guards, Guards)
    handle, predictor.capture = guards.register_forward_pre_hook(look), False
    try:
        yield count
    finally:
        handle.remove()
        predictor.capture = captured


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


def _at(predicted: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"], frame: int) -> float:
    """The mean error of one frame."""
    return float(_errors(predicted[:, [frame]], truth[:, [frame]]).mean())


def _errors(predicted: Float[Tensor, "N T *space C"], truth: Float[Tensor, "N T *space C"]) -> Errors:
    return nrmse(predicted.cpu(), truth.cpu()).flatten(1).mean(1)


def _ratio(errors: Errors, others: Errors, seed: int, *, paired: bool = False) -> Ratio:
    """Of the means, whose trajectories are drawn again together if they are the same."""
    first = draws(len(errors), seed)
    second = first if paired else draws(len(others), seed + 1)
    low, high = central(resampled_means(errors, first) / resampled_means(others, second))
    return Ratio(float(errors.mean() / others.mean()), float(low), float(high))
