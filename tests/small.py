"""Small trainings: the quickstart in seconds, and one of two tasks on any ranks, for tests that compare ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ups.data.draws import Draws
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import statistics
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import Advection, Darcy, Equation
from ups.fields import Batch, Header
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask, description
from ups.store.fields import FieldStore
from ups.track.open import open_tracker
from ups.training import trainer as training
from ups.training.data import TaskData
from ups.training.settings import TrainingConfig
from ups.training.stage import Scores
from ups.training.stages.operator import OperatorStage
from ups.training.trainer import Trainer

EQUATIONS = ((Advection(points=32, beta=0.4, frames=9, duration=0.8), 12), (Darcy(points=16), 10))
SETTINGS = {"width": 8, "depth": 2, "modes": 4, "experts": 2, "head": 8, "conditions": 8}

SMALLER = [
    "tasks.advection.make.trajectories=20",
    "tasks.advection.make.settings.frames=11",
    "tasks.advection.make.settings.duration=0.5",
    "tasks.burgers.make.trajectories=20",
    "tasks.burgers.make.settings.frames=11",
    "tasks.burgers.make.settings.duration=0.5",
    "tasks.darcy.make.trajectories=30",
    "tasks.darcy.make.settings.points=32",
    "stages.operator.width=12",
    "stages.operator.depth=1",
    "stages.operator.modes=8",
    "stages.operator.head=8",
    "compare.fno.tasks.advection.width=8",
    "compare.fno.tasks.burgers.width=8",
    "compare.fno.tasks.darcy.width=4",
    "training.steps=40",
    "training.validate_every=20",
    "training.checkpoint_every=20",
    "evaluation.resamples=100",
    "data.workers=1",
    "runtime.threads=1",
]
"""The quickstart in a few seconds: the same tasks and phases, too little of each to learn much."""

GENERATIVE = [
    "tasks.kuramoto_sivashinsky.make.trajectories=20",
    "tasks.kuramoto_sivashinsky.make.settings.points=32",
    "tasks.kuramoto_sivashinsky.make.settings.frames=7",
    "tasks.kuramoto_sivashinsky.make.settings.duration=6.0",
    "tasks.kuramoto_sivashinsky.make.settings.warm_up=20.0",
    *(f"stages.{stage}.{size}" for stage in ("operator", "codec", "corrector") for size in ("width=8", "depth=1")),
    "stages.corrector.horizon=2",
    "stages.corrector.steps=1",
    *(f"stages.{stage}.training.steps=10" for stage in ("codec", "corrector", "distilled")),
    "training.steps=20",
    "training.validate_every=10",
    "evaluation.members=3",
    "evaluation.resamples=100",
    "evaluation.solved=0",
    "data.workers=1",
    "runtime.threads=1",
]
"""The same of `ups run generative`, on 32 points."""


TOY: dict[str, Any] = {
    "name": "toy",
    "tasks": {
        "burgers": {
            "make": {
                "equation": "burgers",
                "trajectories": 30,
                "settings": {"points": 32, "frames": 9, "duration": 0.5},
            }
        }
    },
    "data": {"seed": 0, "workers": 1},
    "stages": {"operator": {"width": 8, "depth": 1, "modes": 8, "head": 8}},
    "training": {"steps": 20, "batch_size": 4, "validate_every": 20, "checkpoint_every": 20},
    "evaluation": {"resamples": 100, "pictures": 1, "solved": 0},
    "runtime": {"device": "cpu", "threads": 1},
}
"""A whole run of one task in a second or two."""


class Solved:
    """A few solved trajectories as a Dataset."""

    def __init__(self, equation: Equation, count: int) -> None:
        self.batch = equation.solve(0, range(count))
        self.task, self.channels = equation.name, equation.channels
        self.grid, self.times, self.boundary = equation.grid, equation.times, equation.boundary
        self.header = Header(
            self.task, self.channels, self.grid, self.times, self.boundary, static=tuple(self.batch.static)
        )

    def __len__(self) -> int:
        return len(self.batch)

    def read(self, indices, frames: slice) -> Batch:
        part = self.batch.select(list(indices))
        return replace(part, values=part.values[:, frames], times=part.times[:, frames])


@lru_cache
def prepared(folder: Path) -> tuple[ModelSpec, dict[str, TaskData]]:
    """The model's description and the tasks, whose stores are built by whoever comes first."""
    tasks = {}
    for equation, count in EQUATIONS:
        data, spec = Solved(equation, count), equation.task()
        scales = statistics(data, spec)
        ranges = {"beta": (0.4, 0.4)} if spec.parameters else {}
        learned = TrainedTask(spec, data.grid, scales, ranges, () if spec.steady else (spec.dt or 0.0,))
        store = FieldStore.build(folder / spec.name, data, Normaliser(spec, scales))
        held = learned.normaliser.batch(data.read(range(3), slice(None)))
        tasks[spec.name] = TaskData(learned, store, held, 1.0)
    return ModelSpec("spectral", SETTINGS, tuple(task.learned for task in tasks.values())), tasks


class Marked(OperatorStage):
    """The operator stage, whose validation errors are given."""

    marks: Iterator[float]

    def validate(self, batch: Batch, draws: Draws) -> Scores:
        ones = torch.ones(len(batch), dtype=torch.float64)
        return Scores(next(self.marks, 1.0) * ones, ones)


def small_trainer(
    runtime: Runtime,
    data: Path,
    run: Path,
    held: dict[str, Batch] | None = None,
    marks: Iterable[float] | None = None,
    **changes: Any,
) -> Trainer:
    """A Trainer of both tasks, 4 + 3 samples a step unless told otherwise.

    `held` replaces the validation trajectories, `marks` the validation errors, one a task and validation.
    """
    spec, tasks = prepared(data)
    tasks = {name: replace(task, validation=held[name]) if held else task for name, task in tasks.items()}
    settings = {
        "steps": 20,
        "batch_size": 7,
        "sampling": {"mode": "shares"},
        "noise": 0.01,
        "rollout": [(0.0, 1), (0.5, 2)],
        "warmup": 2,
        "clip": 0.2,
        "ema": 0.9,
        "validate_every": 1000,
        "checkpoint_every": 1000,
        "precision": "float64",
    }
    run.mkdir(parents=True, exist_ok=True)
    config = TrainingConfig(**(settings | changes))
    stage = (OperatorStage if marks is None else Marked)(spec.build(0), config, runtime.config, spec.tasks)
    if isinstance(stage, Marked):
        stage.marks = iter(marks or ())
    events = open_tracker(run, (), runtime.rank, runtime.ranks.attempt)
    settings = {"architecture": spec.architecture, **spec.settings}
    described = description("operator", "operator", settings, spec.tasks, 0)
    return Trainer(runtime, stage, tasks, config, 0, run, described, events)


def operator_stage(model: Propagator, noise: float = 0.0) -> OperatorStage:
    return OperatorStage(model, TrainingConfig(noise=noise), RuntimeConfig(device="cpu"))


def draws_of(batch: Batch, seed: int = 0) -> Draws:
    return Draws(seed, "operator", torch.tensor(0), torch.arange(len(batch)))


class Descent(torch.optim.SGD):
    """Gradient descent, whose path is linear in the gradient's rounding. Torch's fused one has no form for shards, and
    the others do not know the flag that skips a step.
    """

    def step(self, closure=None):
        self.found_inf = None
        return super().step(closure)


def use_sgd() -> None:
    training.build_optimiser = lambda module, config: Descent(module.parameters(), lr=0.05, momentum=0.9)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train_small(
    data: Path, run: Path, steps: int = 20, sgd: bool = False, runtime: dict[str, Any] | None = None, **changes: Any
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses (over all ranks) and every tensor of the state after `steps` steps, on whatever ranks the process is."""
    before = training.build_optimiser
    if sgd:
        use_sgd()
    try:
        with Runtime.start(RuntimeConfig(device="cpu", threads=1, **(runtime or {})), 0) as rt:
            trainer = small_trainer(rt, data, run, **changes)
            losses = []
            while trainer.state.step < steps:
                sums, _ = trainer.step()
                total = rt.sum(torch.stack([sums[task] for task in trainer.stores]))
                losses.append(float(total.mean()))
            return losses, {name: whole(tensor) for name, tensor in trainer._tensors().items()}
    finally:
        training.build_optimiser = before
