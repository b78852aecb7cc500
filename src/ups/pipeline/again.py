"""`--stage NAME`: one stage of a run trained alone, and again if it is trained to its end.

What it had and all that stands on it, which would stand on what is gone, wait in `RUN/before`, each until it is trained
to its end again: the stage now, the others by the next `ups run`. Moved back into `RUN/stages`, they are the old run.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from ups.durable import read_json, write
from ups.errors import UserError
from ups.pipeline.config import RunConfig
from ups.pipeline.trainings import BEFORE, stage_plans
from ups.training.fit import Plan, progress_of, settled
from ups.training.warm_start import check_start


def check_alone(config: RunConfig, directory: Path, name: str) -> None:
    """Refuse a stage that the run does not have, or that cannot be trained as things stand."""
    plans = stage_plans(config, {}, directory)
    if name not in plans:
        raise UserError(f"--stage {name}: the run's stages are {', '.join(plans)}; name one of them")
    for parent in plans[name].on:
        _refuse_unfinished(plans, parent, name)
    plan, ended = plans[name], _ended(plans[name])
    if not ended:
        settled(plan)
    if plan.start is not None and (ended or progress_of(plan.directory) is None):
        check_start(plan.start, plan.like)


def _refuse_unfinished(plans: dict[str, Plan], parent: str, name: str) -> None:
    for older in plans[parent].on:
        _refuse_unfinished(plans, older, name)
    settled(plans[parent])
    progress, wanted = progress_of(plans[parent].directory), plans[parent].training.steps
    if (done := 0 if progress is None else progress["step"]) < wanted:
        raise UserError(
            f"--stage {name} stands on {parent}, which is trained to step {done} of {wanted}; finish that first, by "
            f"--stage {parent} or without --stage"
        )


def set_aside(config: RunConfig, directory: Path, name: str) -> None:
    """A stage that is trained to its end makes room for a new one, with those that stand on it, themselves moved first;
    one that is not goes on.
    """
    plans = stage_plans(config, {}, directory)
    if not _ended(plans[name]):
        return
    metrics = directory / "metrics.json"
    if metrics.is_file():  # they are of what the run had before
        write(metrics, (json.dumps(read_json(metrics) | {"state": "evaluated"}, indent=1) + "\n").encode())
    (directory / BEFORE).mkdir(exist_ok=True)
    for stale in reversed([name, *standing_on(config, name)]):
        if (directory / BEFORE / stale).exists():  # and it is not trained to its end since, or was not any good
            shutil.rmtree(plans[stale].directory, ignore_errors=True)
        elif plans[stale].directory.exists():
            os.rename(plans[stale].directory, directory / BEFORE / stale)


def standing_on(config: RunConfig, name: str) -> list[str]:
    """The stages that stand on one, in order."""
    found: list[str] = []
    for other, stage in config.each_stage().items():
        if {name, *found} & set(stage.on):
            found.append(other)
    return found


def _ended(plan: Plan) -> bool:
    """Whether it is trained as far as it was asked to be."""
    progress, path = progress_of(plan.directory), plan.directory / "stage.json"
    if progress is None or not path.is_file():
        return False
    return progress["step"] == read_json(path)["training"]["steps"]
