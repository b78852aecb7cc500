"""What run directories say of themselves: state, where training stands, how good it is, how old and how large."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from rich.table import Table

from ups.distributed.launch.claim import is_claimed
from ups.distributed.launch.outcome import outcome_of
from ups.durable import damaged, read_json
from ups.errors import UserError
from ups.evaluation.labels import PERSISTENCE

_TAIL = 2**16
"""Bytes of a file of events that are read from its end."""
_STATES = {
    "stopped": "stopped",
    "mistake": "refused",
    "gave_up": "gave up",
    "gate_failed": "failed a gate",
    "finished": "trained",
}


@dataclass(frozen=True)
class RunState:
    """`state`: running; finished (its metrics say so), trained, stopped, refused, gave up (it was decided); crashed
    (nothing was); damaged (its own files cannot be read). `metric` is the error over the trivial one, geometric mean
    over tasks: of the test data where there are metrics, else the best of validation. `age` counts seconds since
    anything was written.
    """

    name: str
    state: str
    stage: str | None
    step: int | None
    steps: int | None
    metric: float | None
    age: float
    bytes: int


def is_run(directory: Path) -> bool:
    return (directory / "config.yaml").is_file()


def all_runs(runs: Path) -> list[RunState]:
    """Of all runs in a folder, the latest first. One that is removed meanwhile is left out."""
    if not runs.is_dir():
        raise UserError(f"there is no folder {runs}; name the one that holds runs with --runs")
    found = []
    for directory in sorted(path for path in runs.iterdir() if is_run(path)):
        try:
            found.append(listed(directory))
        except FileNotFoundError:
            continue
    return sorted(found, key=lambda run: run.age)


def listed(directory: Path) -> RunState:
    """The state, also of a run whose files are damaged: those beside it in a list are not."""
    try:
        return state_of(directory)
    except UserError:
        return RunState(directory.name, "damaged", None, None, None, None, *_age_and_bytes(directory))


def state_of(directory: Path) -> RunState:
    """A FileNotFoundError where the run is gone, a UserError where its files are damaged."""
    if not is_run(directory):
        raise FileNotFoundError(f"{directory} is not a run")
    if not (directory / "config.yaml").stat().st_size:
        raise damaged(directory / "config.yaml")
    metrics = _json(directory / "metrics.json")
    training = current_training(directory)
    last = {} if training is None else last_events(training / "events.jsonl")
    told = {} if training is None else _json(training / "stage.json")
    step = last.get("step", {}).get("step")
    best = last.get("validation", {}).get("score")
    try:
        metric = _metric(metrics) if metrics else best
    except (KeyError, TypeError, AttributeError):
        raise damaged(directory / "metrics.json") from None
    return RunState(
        directory.name,
        _state(directory, metrics),
        None if training is None else str(training.relative_to(directory)).removeprefix("stages/"),
        step,
        told.get("training", {}).get("steps"),
        metric,
        *_age_and_bytes(directory),
    )


def _age_and_bytes(directory: Path) -> tuple[float, int]:
    known = [stat for path in directory.rglob("*") if (stat := _stat(path)) is not None]
    newest = max((stat.st_mtime for stat in known), default=time.time())
    return max(0.0, time.time() - newest), sum(stat.st_size for stat in known if S_ISREG(stat.st_mode))


def _state(directory: Path, metrics: Mapping[str, Any]) -> str:
    if is_claimed(directory):
        return "running"
    outcome = outcome_of(directory)
    if outcome is None:
        return "crashed" if any((directory / name).exists() for name in ("stages", "store", "data")) else "begun"
    return "finished" if metrics.get("state") == "finished" else _STATES[outcome.state]


def current_training(directory: Path) -> Path | None:
    """The folder of the stage or comparison that has written last."""
    events = [*directory.glob("stages/*/events.jsonl"), *directory.glob("compare/*/*/events.jsonl")]
    stages = [path for path in events if path.parts[-3] == "stages"]
    if not is_claimed(directory) and stages:  # what a run is about, once it rests
        events = stages
    dated = [(stat.st_mtime, path) for path in events if (stat := _stat(path)) is not None]
    return max(dated)[1].parent if dated else None


def last_events(path: Path) -> dict[str, dict[str, Any]]:
    """The last event of each kind near the end of a file of events."""
    return {event["kind"]: event for event in tail(path)}


def tail(path: Path, size: int = _TAIL) -> list[dict[str, Any]]:
    """The events of the last `size` bytes; lines that are not whole are left out."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - size))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    events = []
    for line in lines[1 if end > size else 0 : -1]:
        try:
            event = json.loads(line)
        except ValueError:  # damaged: `ups explain` and the report say so
            continue
        if isinstance(event, dict) and "kind" in event:
            events.append(event)
    return events


def _metric(metrics: Mapping[str, Any]) -> float | None:
    ratios = []
    for views in metrics["tasks"].values():
        entry = (views.get("rollout") or views["one_step"])["nrmse"]
        own, trivial = entry["model"], entry[PERSISTENCE]
        if own is None or not own or not trivial:
            return None
        ratios.append(own / trivial)
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def table(runs: Sequence[RunState]) -> Table:
    found = Table(box=None, padding=(0, 2, 0, 0))
    for heading, right in COLUMNS.items():
        found.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for run in runs:
        step = "" if run.step is None else f"{run.step}" + (f"/{run.steps}" if run.steps else "")
        metric = "" if run.metric is None else f"{run.metric:.3g}"
        cells = (run.name, run.state, run.stage or "", step, metric, duration(run.age), f"{run.bytes / 1e6:,.1f}")
        found.add_row(*cells, style=_COLOURS.get(run.state, ""))
    return found


COLUMNS = {"run": False, "state": False, "stage": False, "step": True, "error": True, "age": True, "MB": True}
_COLOURS = {
    "running": "bold",
    "crashed": "red",
    "gave up": "red",
    "failed a gate": "red",
    "refused": "yellow",
    "damaged": "red",
}


def duration(seconds: float) -> str:
    """In one unit: 12 s, 3 min, 5 h, 2 d."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except FileNotFoundError:
        return {}


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except FileNotFoundError:  # gone meanwhile
        return None
