"""Training one stage of a run, or another network beside it for a given time.

A folder holds what one plan trained: checkpoints, events, and `stage.json`, the settings it was trained with. A plan
that is trained to its end is known by its checkpoint's manifest alone, without building a model.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ups import checkpoint
from ups.config.settings import Strict, decisive
from ups.distributed.launch.run_directory import refuse_differences
from ups.distributed.runtime.start import Runtime
from ups.durable import read_json, write
from ups.errors import UserError
from ups.models.saved import description
from ups.track.open import open_tracker
from ups.track.progress import Progress
from ups.training.data import TaskData
from ups.training.kinds import STAGES, StageContext
from ups.training.optimisers import learning_rate
from ups.training.profile import StepProfile
from ups.training.restore import CHECKPOINTS, checksum_of, restored
from ups.training.settings import TrainingConfig
from ups.training.stage import Stage
from ups.training.trainer import Trainer
from ups.training.warm_start import warm_start

BLOCKS, TIMED = 5, 6
"""Of each rollout length, so many times so many steps are timed to find how many fit into a given time."""
FEWEST = 50
"""Steps of a training that is given a time, however short."""


@dataclass(frozen=True, eq=False)
class Plan:
    """One training: a kind of stage with its settings, on some tasks, how, and where it is kept.

    `shares` are those of its tasks, whose data may not be there yet. `on`: the stages it stands on, whose folders lie
    in `parents`, or beside `directory`; `start`: whose weights it starts from, new tasks as `like`. `asked`: the
    training before it was fitted into a time. `workers`: processes that prepare what it reads; all cores if not said.
    """

    title: str
    name: str
    kind: str
    settings: Strict
    tasks: Mapping[str, TaskData]
    shares: Mapping[str, float]
    training: TrainingConfig
    seed: int
    directory: Path
    on: tuple[str, ...] = ()
    start: Path | None = None
    like: str | None = None
    asked: TrainingConfig | None = None
    parents: Path | None = None
    workers: int | None = None
    threads: int | None = None

    def _parents(self) -> dict[str, Path]:
        return {name: (self.parents or self.directory.parent) / name for name in self.on}

    def build(self, runtime: Runtime) -> tuple[Stage, Mapping[str, TaskData], dict[str, Any]]:
        """The untrained stage, what it reads, and what its checkpoints say of it."""
        kind, folders = STAGES[self.kind], self._parents()
        parents = {name: restored(folder) for name, folder in folders.items()}
        checksums = {name: checksum_of(folder) for name, folder in folders.items()}
        data = kind.reads(self.name, runtime, self.tasks, parents, self.workers)
        tasks = tuple(task.learned for task in data.values())
        stage = kind.build(
            StageContext(self.name, self.settings, tasks, self.training, runtime.config, self.seed, parents, checksums)
        )
        return stage, data, description(self.name, self.kind, self.settings.model_dump(mode="json"), tasks, self.seed)

    def trainer(self, runtime: Runtime) -> Trainer:
        runtime.heartbeat.mark("model")
        stage, data, described = self.build(runtime)
        events = open_tracker(self.directory, runtime.config.tracking, runtime.rank, runtime.ranks.attempt)
        if self.start is not None and not checkpoint.steps(self.directory / CHECKPOINTS):
            note = warm_start(stage.trainable(), self.start, self.like)
            events.write("warm_start", **vars(note))
            if runtime.rank == 0:
                print(note)
        return Trainer(runtime, stage, data, self.training, self.seed, self.directory, described, events)

    def trained_with(self) -> dict[str, Any]:
        """What decides the result, as plain values."""
        return {
            "kind": self.kind,
            "settings": decisive(self.settings),
            "training": decisive(self.asked or self.training) | {"steps": self.training.steps, "seconds": None},
            "tasks": dict(self.shares),
            "on": {name: checksum_of(folder) for name, folder in self._parents().items()},
            "start": None if self.start is None else str(self.start),
            "like": self.like,
        }


def progress_of(directory: Path) -> dict[str, Any] | None:
    """Steps and seconds of a training so far, and the step whose weights were chosen; None before its first save."""
    manifest = checkpoint.peek(directory / CHECKPOINTS)
    return None if manifest is None else manifest.content["progress"]


def fit(runtime: Runtime, plan: Plan, seconds: float | None = None, profile: int | None = None) -> dict[str, Any]:
    """Train to the end, unless it is there already; the training's progress then.

    `seconds`: as many steps as the measured speed allows in that time, kept for resuming, instead of the plan's own
    seconds or steps. `profile`: so many steps are traced.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    seconds = seconds or (plan.asked or plan.training).seconds
    if seconds is not None:
        plan = _within(runtime, plan, seconds)
    note = runtime.from_first(f"settings of {plan.title}", lambda: settled(plan, keep=True))
    if note and runtime.rank == 0:
        print(f"note: {note}")
    table = plan.directory / "profile" / "profile.md"
    traced = profile is not None and not table.is_file()  # else by the same command, before it was stopped
    done = runtime.from_first(f"progress of {plan.title}", lambda: progress_of(plan.directory))
    if done is not None and done["step"] == plan.training.steps and done["best"] is not None:  # else it diverged
        if traced:
            raise UserError(f"{plan.directory} is trained already: there is no step left to profile; use another name=")
        return done
    with _on_threads(plan.threads or torch.get_num_threads()):
        return _trained(runtime, plan, profile if traced else None)


def _trained(runtime: Runtime, plan: Plan, profile: int | None) -> dict[str, Any]:
    trainer = plan.trainer(runtime)
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    if profile is not None and runtime.ranks.attempt == 0:  # after a crash, the end is what matters
        left = plan.training.steps - trainer.state.step
        around = StepProfile(profile, plan.directory / "profile", runtime, left).step
    with Progress(plan.title, total=plan.training.steps, unit="steps", start=trainer.state.step) as progress:
        state = trainer.fit(progress.update, around)
    trainer.events.close()
    return vars(state)


def settled(plan: Plan, keep: bool = False) -> str | None:
    """Refuse to go on with other settings than those the folder was trained with, except for more steps, of which the
    note tells; `keep` the settings.
    """
    path, ours, note = plan.directory / "stage.json", plan.trained_with(), None
    done = progress_of(plan.directory)
    if done is not None and path.is_file():
        theirs = read_json(path)
        before, now = theirs["training"].pop("steps"), plan.training.steps
        ours["training"].pop("steps")
        refuse_differences(str(plan.directory), ours, theirs)
        if now < before and done["step"] > now:
            raise UserError(
                f"{plan.directory} is trained to step {done['step']}, which training.steps={now} cannot take back; "
                "use another name="
            )
        if now != before:
            old = learning_rate(plan.training.model_copy(update={"steps": before}), done["step"])
            new = learning_rate(plan.training, done["step"])
            note = (
                f"training.steps was {before} and is {now}: {plan.title} goes on from step {done['step']}; the "
                f"learning rate, at {old:.2g} in the old schedule, goes on at {new:.2g} and down to zero again"
            )
        ours["training"]["steps"] = now
    if keep:
        write(path, (json.dumps(ours, indent=1, sort_keys=True) + "\n").encode())
    return note


def budgeted(plan: Plan) -> Plan:
    """The plan with the number of steps that its time was found to allow, and what is counted in steps scaled with it;
    as it is where that is not known, or not asked for.
    """
    known = _budget(plan)
    if known is None:
        return plan
    training, steps = plan.asked or plan.training, known["steps"]
    pace = steps / training.steps
    changes = {
        "steps": steps,
        "validate_every": max(1, round(pace * training.validate_every)),
        "checkpoint_every": max(1, round(pace * training.checkpoint_every)),
        "warmup": min(training.warmup, steps // 10),
    }
    return replace(plan, training=training.model_copy(update=changes), asked=training, threads=known.get("threads"))


def _budget(plan: Plan) -> dict[str, Any] | None:
    """The seconds that were asked for, and the steps that they were found to allow."""
    path = plan.directory / "budget.json"
    return read_json(path) if path.is_file() else None


def _within(runtime: Runtime, plan: Plan, seconds: float) -> Plan:
    """The plan with the number of steps that fit into a time: rank 0's measure counts, once.

    More time than before, because what it is measured by trained for longer, gives more steps of the same speed.
    """
    known = runtime.from_first(f"budget of {plan.title}", lambda: _budget(plan))
    if known is None or seconds > 1.05 * known["seconds"]:
        if known is None:
            measured = {n: _seconds_per_step(runtime, plan, n) for n in _threads(runtime)}
            threads, rate = min(measured.items(), key=lambda each: each[1])
            known = {"threads": threads}
        else:
            rate = known["seconds"] / known["steps"]
        found = known | {"seconds": seconds, "steps": max(FEWEST, int(seconds / rate))}
        text = json.dumps(found).encode()
        runtime.from_first(f"steps of {plan.title}", lambda: write(plan.directory / "budget.json", text))
    return budgeted(plan)


def _threads(runtime: Runtime) -> list[int]:
    """Numbers of threads to choose among: small models are faster on one, where other processes want the cores."""
    told = runtime.config.threads is not None or "OMP_NUM_THREADS" in os.environ
    free = runtime.device.type == "cpu" and runtime.size == 1 and not told and runtime.threads > 1
    return [1, runtime.threads] if free else [runtime.threads]


@contextmanager
def _on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds_per_step(runtime: Runtime, plan: Plan, threads: int) -> float:
    """The mean time of a step over the rollout schedule, measured on a model that is thrown away."""
    training = plan.asked or plan.training
    with tempfile.TemporaryDirectory() as folder, _on_threads(threads):
        thrown_away = replace(plan, directory=Path(folder), parents=plan.directory.parent)
        trainer = thrown_away.trainer(runtime)
        ends = [start for start, _ in training.rollout[1:]] + [1.0]
        mean = 0.0
        for (start, _), end in zip(training.rollout, ends, strict=True):
            mean += (end - start) * seconds_of_a_step(trainer, int(start * training.steps) + 1)
        trainer.events.close()
    return mean


def seconds_of_a_step(trainer: Trainer, step: int) -> float:
    """From that step on, whose number decides how long its rollout is. What it trains is to be thrown away."""
    trainer.state.step = step
    for _ in range(3):
        trainer.step()
    blocks = []  # the median of several: a machine that was busy for a moment must not halve the steps
    for _ in range(BLOCKS):
        began = time.perf_counter()
        for _ in range(TIMED):
            trainer.step()
        if trainer.runtime.device.type == "cuda":
            torch.cuda.synchronize()
        blocks.append((time.perf_counter() - began) / TIMED)
    return median(blocks)
