"""What a run trains: its stages in order, then what they are compared with, for the same device-seconds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ups.config.settings import Strict
from ups.data.sampler import check_ranks
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.pipeline.config import COMMON, ComparedConfig, RunConfig, StageConfig
from ups.training.data import TaskData
from ups.training.fit import Plan, budgeted, fit, progress_of, settled
from ups.training.kinds import STAGES
from ups.training.stages.operator import operator_settings
from ups.training.warm_start import check_start

ALL = "all"
"""The folder of a compared network that serves all tasks."""
BEFORE = "before"
"""The folder of what stages had, until they are trained again (`again.py`)."""


def stage_plans(config: RunConfig, tasks: dict[str, TaskData], directory: Path) -> dict[str, Plan]:
    """One plan a stage, in order."""
    return {name: _stage_plan(config, name, stage, tasks, directory) for name, stage in config.each_stage().items()}


def _stage_plan(config: RunConfig, name: str, stage: StageConfig, tasks: dict[str, TaskData], directory: Path) -> Plan:
    given = stage.model_dump(exclude=COMMON)
    plan = Plan(
        f"training {name}",
        name,
        stage.kind,
        STAGES[stage.kind].settings(given).model_validate(given),
        tasks,
        {task: settings.share for task, settings in config.tasks.items()},
        config.training_of(stage.training),
        config.seed,
        directory / "stages" / name,
        tuple(stage.on),
        None if stage.start is None else Path(stage.start).expanduser(),
        stage.like,
        workers=config.data.workers,
    )
    return plan if plan.training.seconds is None else budgeted(plan)


def compared_plans(config: RunConfig, tasks: dict[str, TaskData], directory: Path) -> dict[str, dict[str, Plan]]:
    """For each compared family a plan a task, or one for all tasks where its network serves several; also without
    data (`tasks` may be empty).
    """
    plans = {}
    for family, compared in config.each_compared().items():
        folder = directory / "compare" / family
        parts = {ALL: list(config.tasks)} if compared.joint else {name: [name] for name in config.tasks}
        plans[family] = {
            part: _compared_plan(config, family, compared, part, names, tasks, folder / part)
            for part, names in parts.items()
        }
    return plans


def _compared_plan(
    config: RunConfig,
    family: str,
    compared: ComparedConfig,
    part: str,
    names: list[str],
    tasks: dict[str, TaskData],
    folder: Path,
) -> Plan:
    given = compared.model_dump(exclude={"training", "tasks", "per_task"})
    changes: Strict | None = compared.tasks.get(part)
    training = config.training_of(compared.training, None if changes is None else changes.training)  # pyright: ignore[reportAttributeAccessIssue]
    if changes is not None:
        given |= changes.model_dump(exclude_none=True, exclude={"training"})
    settings = operator_settings(given).model_validate(given)
    where = "all tasks" if part == ALL else part
    shares = {name: config.tasks[name].share for name in names}
    own = {name: tasks[name] for name in names if name in tasks}
    title = f"training {family} on {where}"
    return Plan(title, family, "operator", settings, own, shares, training, config.seed, folder)


def check_trained(config: RunConfig, directory: Path) -> None:
    """Refuse, before any work, settings that contradict what the run's stages were trained with, more steps for a
    stage that a trained one stands on, which would then stand on what is gone, and a start that is not there.
    """
    moving: set[str] = set()
    for name, plan in stage_plans(config, {}, directory).items():
        if plan.start is not None and progress_of(plan.directory) is None:
            check_start(plan.start, plan.like)
        if any(progress_of(plan.directory.parent / parent) is None for parent in plan.on):
            continue
        settled(plan)
        done, moved = progress_of(plan.directory), [parent for parent in plan.on if parent in moving]
        if done is not None and moved:
            raise UserError(
                f"{plan.directory} stands on {moved[0]} as it is now, and more training.steps would train {moved[0]} "
                f"further; give them to stages.{name}.training alone, or use another name="
            )
        if done is not None and done["step"] < plan.training.steps:
            moving.add(name)


def check_batches(config: RunConfig, ranks: int) -> None:
    """Refuse batches that leave a rank without a sample, where the configuration says how large they are."""
    for stage in config.each_stage().values():
        if (told := config.training_of(stage.training).batch_size) is not None:
            check_ranks(told, ranks)


def train_stages(runtime: Runtime, plans: dict[str, Plan], profile: int | None = None) -> dict[str, dict[str, Any]]:
    """All of them, in order; the progress of each. What one had before it was trained again goes then."""
    progress = {}
    for name, plan in plans.items():
        progress[name] = fit(runtime, plan, profile=profile)
        if runtime.rank == 0:
            shutil.rmtree(plan.directory.parent.parent / BEFORE / name, ignore_errors=True)
    return progress


def train_compared(runtime: Runtime, plans: dict[str, dict[str, Plan]], device_seconds: float) -> None:
    """Each family has as many device-seconds as the model had, split evenly over its trainings; what one uses more or
    less than its share, the next ones have. One process trains them, on one device.
    """
    for family in plans.values():
        left = device_seconds
        for number, plan in enumerate(family.values()):
            left -= fit(runtime, plan, seconds=left / (len(family) - number))["device_seconds"]


def device_seconds(config: RunConfig, progress: dict[str, dict[str, Any]]) -> float:
    """What the last stage took, and all that it stands on."""
    stages = config.each_stage()
    needed, waiting = set(), [list(stages)[-1]]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += stages[name].on
    return sum(progress[name]["device_seconds"] for name in needed)
