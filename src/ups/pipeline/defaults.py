"""What a configuration leaves open, chosen for its tasks and the device: every choice is a key and the reason for it.

Choices are written into the run's own configuration with all else: a run that goes on elsewhere keeps them.
docs/universal.md and docs/results.md have the measurements.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ups.data.agreement import task_of
from ups.data.settings import TaskConfig
from ups.data.sources import equations_of, open_files
from ups.fields import Grid

if TYPE_CHECKING:
    from ups.pipeline.config import ComparedConfig, RunConfig


class Choice(NamedTuple):
    """`key` are the names that lead to the setting."""

    key: tuple[str, ...]
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{'.'.join(self.key)} = {'null' if self.value is None else self.value}: {self.why}"


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
LATENTS = {"cuda": {2: 2**18, 3: 2**21}, "cpu": {2: 2**14, 3: 2**12}}
"""So many latents of a sample, at most, by the dimension of its task: one for every point of 512² or 128³ on a GPU, of
128² or 16³ on a CPU. What is bearable in two dimensions is not measured.
"""
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
TRIED = {
    "cuda": {
        1: "the best of five sizes and rates of FNOs on Burgers, 15 s each; no other batch was tried",
        2: "the best of three sizes of FNOs on diffusion-reaction, 15 s each; no other rate or batch was tried",
        3: "the best of five sizes and rates of FNOs on Gray-Scott in a box, 45 s each; no other batch was tried",
    },
    "cpu": {
        1: "the best of trials of FNOs on the quickstart's systems, a minute each",
        2: "the best of trials of FNOs on the quickstart's systems, a minute each",
        3: "the best of FNOs in 2D with fewer modes and samples; none was tried in a box",
    },
}
"""What these were chosen by."""


def device_of(config: RunConfig) -> str:
    """The kind of device that the run will find here."""
    told = config.runtime.device
    return told if told != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def complete(
    values: dict[str, Any], config: RunConfig, root: Path, begun: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[Choice]]:
    """A configuration's values with what they leave open; what that is. `config` is what the values stand for, `root`
    the folder of its data; `begun` are those of its run, if there is one: it keeps the choices of the device that it
    began on.
    """
    here = device_of(config)
    grids = {name: _grid(name, task, root) for name, task in config.tasks.items()}
    completed = [_completed(values, config, grids, kind) for kind in sorted(TRAINING, key=lambda kind: kind != here)]
    kept = (
        found
        for found in completed
        if begun and all(_at(begun, c.key) == c.value for c in found[1] if c.key[0] != "runtime")
    )
    return next(kept, completed[0])


def _grid(name: str, task: TaskConfig, root: Path) -> Grid | None:
    """Of the task's data. None where there are no files yet, and where nothing follows from their grid."""
    if task.make is not None:
        return equations_of(name, task.make)[0][1].grid
    assert task.files is not None
    told = "latent_spacing" in task.model_fields_set or task_of(name, task).dimension == 1
    if told or not all((root / Path(file).expanduser()).exists() for file in task.files.train):
        return None
    return open_files(task_of(name, task), task, root).train.grid


Grids = Mapping[str, Grid | None]


def _completed(
    values: Mapping[str, Any], config: RunConfig, grids: Grids, device: str
) -> tuple[dict[str, Any], list[Choice]]:
    values = copy.deepcopy(dict(values))
    if isinstance(values.get("compare"), list):
        values["compare"] = {name: {} for name in values["compare"]}
    return values, [choice for choice in _choices(config, grids, device) if _put(values, choice)]


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


def _choices(config: RunConfig, grids: Grids, device: str) -> Iterator[Choice]:
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
    yield from _precision(device)
    spacings = {name: _latents(name, config.tasks[name], grid, device) for name, grid in grids.items()}
    if config.training.batch_size is None:
        boxes = all(task_of(name, task).dimension == 3 for name, task in config.tasks.items())
        points = (POINTS_3D if boxes else POINTS)[device]
        why = f"latent points of a task in a step that keep the device busy {where}; its samples follow from its grid"
        told = ((name, _samples(config, name, grid, spacings[name].value, points)) for name, grid in grids.items())
        samples = ", ".join(f"{count} of {name}" for name, count in told if count)
        yield Choice(("training", "sampling", "points"), points, f"{why}: about {samples}" if samples else why)
    yield from spacings.values()
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


def _precision(device: str) -> Iterator[Choice]:
    """And whether the model is compiled."""
    why = "factors of products have 10 bits, sums 23: lower errors on ten of twelve systems in equal time on a GPU"
    yield Choice(("runtime", "tf32"), True, why if device == "cuda" else "no effect on a CPU, where all is float32")
    why = "it took over three minutes for twelve systems on a GPU, before the first step"
    yield Choice(("runtime", "compile"), False, why)


def _latents(name: str, task: TaskConfig, grid: Grid | None, device: str) -> Choice:
    """A latent for every point, unless a plane or a box has too many of them."""
    key = ("tasks", name, "latent_spacing")
    if task.latent_spacing is not None:
        return Choice(key, task.latent_spacing, "as it is told")
    if grid is None:
        return Choice(key, None, "a latent for every point")
    points, most = math.prod(grid.shape), LATENTS[device].get(grid.dimension, math.inf)
    shape = " x ".join(map(str, grid.shape))
    if points <= most:
        return Choice(key, None, f"a latent for each of its {shape} points")
    cells = [cell for cell in range(2, 9) if all(n % cell == 0 for n in grid.shape)]
    if not cells:  # what does not fit is refused (memory.py)
        return Choice(key, None, f"a latent for each of its {shape} points, which no cells of 2 to 8 an axis divide")
    cell = next((cell for cell in cells if points <= most * cell**grid.dimension), cells[-1])
    power = "²" if grid.dimension == 2 else "³"
    why = f"{points:,} latents, one a point, would take too long a step; each now stands for {cell}{power} points"
    return Choice(key, cell * max(grid.spacing), why)


def _samples(config: RunConfig, name: str, grid: Grid | None, spacing: float | None, points: int) -> int | None:
    """Of a task in a step, about; None where that does not follow from its grid alone."""
    if grid is None or config.training.sampling.mode != "cost":
        return None
    patch = replace(task_of(name, config.tasks[name]), latent_spacing=spacing).patch(grid)
    return max(1, round(points * config.tasks[name].share * math.prod(patch) / math.prod(grid.shape)))


def _fno(at: tuple[str, ...], compared: ComparedConfig, task: str, dimension: int, device: str) -> Iterator[Choice]:
    """For one task, unless the family has it for all."""
    why = TRIED[device].get(dimension, "")
    sizes = FNO[device].get(dimension, {})
    for key, value in sizes.items():
        if key != "training" and key not in compared.model_fields_set:
            yield Choice((*at, "tasks", task, key), value, why)
    given = set() if compared.training is None else compared.training.model_fields_set
    for key, value in sizes.get("training", {}).items():
        if key not in given:
            yield Choice((*at, "tasks", task, "training", key), value, why)
