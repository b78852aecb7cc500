"""Training one stage of a run, or another network beside it for a given time."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from ups.config.schema import TrainingConfig
from ups.distributed.runtime.start import Runtime
from ups.durable import write
from ups.models.saved import ModelSpec
from ups.track.open import open_tracker
from ups.track.progress import Progress
from ups.training.data import TaskData
from ups.training.profile import StepProfile
from ups.training.stages.operator import OperatorStage
from ups.training.trainer import Trainer

BLOCKS, TIMED = 5, 6
"""Of each rollout length, so many times so many steps are timed to find how many fit into a given time."""


@dataclass(frozen=True, eq=False)
class Plan:
    """One training: a network, on some tasks, how, and where it is kept."""

    title: str
    model: ModelSpec
    tasks: Mapping[str, TaskData]
    training: TrainingConfig
    seed: int
    directory: Path

    def trainer(self, runtime: Runtime) -> Trainer:
        runtime.heartbeat.mark("model")
        stage = OperatorStage(self.model.build(self.seed), self.training, runtime.config, self.model.tasks)
        description = {"model": self.model.to_dict(), "training": self.training.model_dump(mode="json")}
        events = open_tracker(self.directory, runtime.config.tracking, runtime.rank, runtime.ranks.attempt)
        return Trainer(runtime, stage, self.tasks, self.training, self.seed, self.directory, description, events)


def fit(runtime: Runtime, plan: Plan, seconds: float | None = None, profile: int | None = None) -> float:
    """Train to the end; the seconds it took. `seconds`: as many steps as the measured speed allows in that time, kept
    for resuming, instead of the plan's; `profile`: so many steps are traced.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    if seconds is not None:
        plan = _within(runtime, plan, seconds)
    trainer = plan.trainer(runtime)
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    written = (plan.directory / "profile" / "profile.md").is_file()  # by the same command, before it was stopped
    if profile is not None and not written and runtime.ranks.attempt == 0:  # after a crash, the end is what matters
        left = plan.training.steps - trainer.state.step
        around = StepProfile(profile, plan.directory / "profile", runtime, left).step
    with Progress(plan.title, total=plan.training.steps, unit="steps", start=trainer.state.step) as progress:
        taken = trainer.fit(progress.update, around).seconds
    trainer.events.close()
    return taken


def _within(runtime: Runtime, plan: Plan, seconds: float) -> Plan:
    """The plan with the number of steps that fit into a time, and what is counted in steps scaled with it."""
    budget, training = plan.directory / "budget.json", plan.training
    if not budget.exists():
        rate = _seconds_per_step(runtime, plan)
        write(budget, json.dumps({"seconds": seconds, "steps": max(50, int(seconds / rate))}).encode())
    steps = json.loads(budget.read_text())["steps"]
    pace = steps / training.steps
    changes = {
        "steps": steps,
        "validate_every": max(1, round(pace * training.validate_every)),
        "checkpoint_every": max(1, round(pace * training.checkpoint_every)),
        "warmup": min(training.warmup, steps // 10),
    }
    return replace(plan, training=training.model_copy(update=changes))


def _seconds_per_step(runtime: Runtime, plan: Plan) -> float:
    """The mean time of a step over the rollout schedule, measured on a model that is thrown away."""
    training = plan.training
    with tempfile.TemporaryDirectory() as folder:
        trainer = replace(plan, directory=Path(folder)).trainer(runtime)
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
