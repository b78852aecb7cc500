"""What a configuration leaves open, chosen for its tasks and the device: every choice is a key and the reason for it.

Choices are written into the run's own configuration with all else: a run that goes on elsewhere keeps them.
docs/universal.md and docs/results.md have the measurements.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ups.data.agreement import task_of
from ups.data.sources import equations_of
from ups.fields import Grid

if TYPE_CHECKING:
    from ups.pipeline.config import ComparedConfig, RunConfig


class Choice(NamedTuple):
    """`key` are the names that lead to the setting."""

    key: tuple[str, ...]
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{'.'.join(self.key)} = {self.value}: {self.why}"


# On a GPU these are the settings of docs/universal.md's tables: modes were compared there, the others were not.
OPERATOR = {
    "cuda": {"width": 64, "depth": 4, "modes": 96, "head": 64},
    "cpu": {"width": 24, "depth": 3, "modes": 64, "head": 32},
}
TRAINING = {
    "cuda": {"optimiser": "muon", "learning_rate": 3e-3, "ema": 0.995, "noise": 0.002},
    "cpu": {"optimiser": "muon", "learning_rate": 1e-2, "ema": 0.98, "noise": 0.002},
}
POINTS = {"cuda": 16384, "cpu": 1536}
"""Latent points of a task in a step: about as many as keep the device busy."""
POINTS_3D = {"cuda": 65536, "cpu": 1536}
"""The same where all tasks are of three dimensions: two samples of 32³ on a GPU."""
LATENTS_3D = {"cuda": 2**21, "cpu": 2**12}
"""So many latents of a sample in three dimensions, at most: one for every point of 128³, or of 16³."""
FNO: dict[str, dict[int, dict[str, Any]]] = {
    "cuda": {
        1: {"width": 64, "modes": 64, "training": {"batch_size": 64}},
        2: {"width": 32, "modes": 24, "training": {"batch_size": 16, "learning_rate": 6e-3}},
        3: {"width": 32, "modes": 10, "training": {"batch_size": 4, "learning_rate": 3e-3}},
    },
    "cpu": {
        1: {"width": 32, "modes": 64, "training": {"batch_size": 16}},
        2: {"width": 16, "modes": 8, "training": {"batch_size": 8, "learning_rate": 2.5e-2}},
        3: {"width": 12, "modes": 4, "training": {"batch_size": 2, "learning_rate": 2.5e-2}},
    },
}
"""An FNO's sizes and training, by the dimension of its task."""


def device_of(config: RunConfig) -> str:
    """The kind of device that the run will find here."""
    told = config.runtime.device
    return told if told != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def complete(
    values: dict[str, Any], config: RunConfig, begun: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Choice]]:
    """A configuration's values with what they leave open; what that is. `config` is what the values stand for; `begun`
    are those of its run, if there is one: it keeps the choices of the device that it began on.
    """
    here = device_of(config)
    completed = [_completed(values, config, kind) for kind in sorted(TRAINING, key=lambda kind: kind != here)]
    kept = (found for found in completed if begun and all(_at(begun, c.key) == c.value for c in found[1]))
    return next(kept, completed[0])


def _completed(values: Mapping[str, Any], config: RunConfig, device: str) -> tuple[dict[str, Any], list[Choice]]:
    values = copy.deepcopy(dict(values))
    if isinstance(values.get("compare"), list):
        values["compare"] = {name: {} for name in values["compare"]}
    return values, [choice for choice in _choices(config, device) if _put(values, choice)]


def _put(values: dict[str, Any], choice: Choice) -> bool:
    """Whether there was nothing yet."""
    *sections, last = choice.key
    for section in sections:
        if values.get(section) is None:
            values[section] = {}
        values = values[section]
    if last in values:
        return False
    values[last] = choice.value
    return True


def _at(values: Any, key: tuple[str, ...]) -> Any:
    for name in key:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _choices(config: RunConfig, device: str) -> Iterator[Choice]:
    where = "on a GPU" if device == "cuda" else "on a CPU"
    trials = (
        "the settings that twelve systems were measured with"
        if device == "cuda"
        else "trials on the quickstart's systems"
    )
    training = TRAINING[device]
    if config.training.optimiser != "muon" and "optimiser" in config.training.model_fields_set:
        training = {key: value for key, value in training.items() if key != "learning_rate"}
    for key, value in training.items():
        yield Choice(("training", key), value, f"{trials} {where}")
    if config.training.batch_size is None:
        why = f"latent points of a task in a step that keep the device busy {where}; its samples follow from its grid"
        boxes = all(task_of(name, task).dimension == 3 for name, task in config.tasks.items())
        yield Choice(("training", "sampling", "points"), (POINTS_3D if boxes else POINTS)[device], why)
    for name, task in config.tasks.items():
        if task.make is not None and task.latent_spacing is None:  # of files the grid is not known yet
            yield from _latents(name, equations_of(name, task.make)[0][1].grid, device)
    trained = {("stages", name): stage for name, stage in config.each_stage().items()}
    trained |= {("compare", name): compared for name, compared in config.each_compared().items()}
    for at, settings in trained.items():
        if getattr(settings, "architecture", None) == "spectral":
            for key, value in OPERATOR[device].items():
                yield Choice((*at, key), value, f"{trials} {where}, minutes each")
    for name, compared in config.each_compared().items():
        if compared.architecture == "fno":
            for task, settings in config.tasks.items():
                yield from _fno(("compare", name), compared, task, task_of(task, settings).dimension, device)


def _latents(task: str, grid: Grid, device: str) -> Iterator[Choice]:
    """A latent for every point, unless a box has too many of them."""
    points, most = math.prod(grid.shape), LATENTS_3D[device]
    if grid.dimension < 3 or points <= most:
        return
    cells = [cell for cell in range(2, 9) if all(n % cell == 0 for n in grid.shape)]
    if not cells:
        return  # none divides it; what does not fit is refused (memory.py)
    cell = next((cell for cell in cells if points <= most * cell**3), cells[-1])
    why = f"{points:,} latents, one a point, would take too long a step; each now stands for {cell}³ points"
    yield Choice(("tasks", task, "latent_spacing"), cell * max(grid.spacing), why)


def _fno(at: tuple[str, ...], compared: ComparedConfig, task: str, dimension: int, device: str) -> Iterator[Choice]:
    """For one task, unless the family has it for all."""
    why = f"the best of trials of FNOs in {dimension}D, " + ("15 s each" if device == "cuda" else "a minute each")
    if dimension == 3:
        why = "the best of FNOs in 2D, with as many modes as a box leaves time for"
    sizes = FNO[device].get(dimension, {})
    for key, value in sizes.items():
        if key != "training" and key not in compared.model_fields_set:
            yield Choice((*at, "tasks", task, key), value, why)
    given = set() if compared.training is None else compared.training.model_fields_set
    for key, value in sizes.get("training", {}).items():
        if key not in given:
            yield Choice((*at, "tasks", task, "training", key), value, why)
