"""A run in a terminal while it works: where it stands, its curves, and what each rank does."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ups.distributed.faults.heartbeat import heartbeats_of
from ups.distributed.runtime.host import process_space, process_use
from ups.errors import UserError
from ups.ops.runs import current_training, duration, state_of, tail

WIDTH = 60
"""Columns of a curve."""
_BARS = "▁▂▃▄▅▆▇█"
_EVENTS = 2**20


def frame(directory: Path) -> tuple[RenderableType, bool]:
    """What to show of a run, and whether it is still at work."""
    try:
        run = state_of(directory)
    except FileNotFoundError:
        raise UserError(f"{directory} is not a run, or was removed; `ups runs` lists those that are there") from None
    training = current_training(directory)
    events = [] if training is None else tail(training / "events.jsonl", _EVENTS)
    steps = [event for event in events if event["kind"] == "step"]
    lines: list[RenderableType] = [Text(f"{run.name}  {run.state}", style="bold")]
    if run.step is not None and run.steps:
        left = _seconds_left(steps, run.steps)
        rate = "" if left is None else f", {left[0]:.3g} steps/s, {duration(left[1])} left"
        lines.append(Text(f"{run.stage}: step {run.step} of {run.steps}{rate}"))
    for title, values in (
        ("loss", [event.get("loss") for event in steps]),
        ("validation", [event.get("score") for event in events if event["kind"] == "validation"]),
    ):
        if drawn := curve(values):
            lines.append(Text(f"{title:10}  {drawn}  {_last(values):.4g}"))
    pace = steps[-1].get("pace", {}) if steps else {}
    if (memory := pace.get("memory")) is not None:
        waits = f", waits for data {pace['data_wait']:.0%} of the time" if "data_wait" in pace else ""
        lines.append(Text(f"rank 0     {memory / 1e9:.2f} GB{waits}"))
    for event in events[-200:]:
        if event["kind"] in ("skipped", "not_saved", "out_of_memory", "eager", "resumed"):
            lines.append(Text(f"{event['kind'].replace('_', ' ')} at step {event.get('step', '?')}", style="yellow"))
    if run.state == "running" and (beats := heartbeats_of(directory / "heartbeats")):
        ranks = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("rank", "does", "for", "memory"):
            ranks.add_column(heading)
        for beat in beats:
            age, memory = time.monotonic() - beat.time, "gone"
            if beat.host != process_space():
                age, memory = max(0.0, time.time() - beat.date), "elsewhere"
            elif (resident := process_use(beat.pid)[0]) is not None:
                memory = f"{resident / 1e9:.2f} GB"
            ranks.add_row(str(beat.rank), beat.place, duration(age), memory)
        lines.append(ranks)
    return Group(*lines), run.state == "running"


def curve(values: Sequence[float | None]) -> str:
    """Values as bars, logarithmic; what is no positive number is a gap."""
    if len(values) > WIDTH:
        values = [values[round(i * (len(values) - 1) / (WIDTH - 1))] for i in range(WIDTH)]
    logs = [math.log(value) if value and value > 0 and math.isfinite(value) else None for value in values]
    known = [log for log in logs if log is not None]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    return "".join(" " if log is None else _BARS[round((log - low) / span * (len(_BARS) - 1))] for log in logs)


def _seconds_left(steps: Sequence[dict], wanted: int) -> tuple[float, float] | None:
    """Steps a second of the last noted steps, and seconds to go at that rate."""
    recent = [(event["step"], event["train_seconds"]) for event in steps[-10:] if "train_seconds" in event]
    if len(recent) < 2 or recent[-1][1] <= recent[0][1] or recent[-1][0] <= recent[0][0]:
        return None
    rate = (recent[-1][0] - recent[0][0]) / (recent[-1][1] - recent[0][1])
    return rate, (wanted - recent[-1][0]) / rate


def _last(values: Sequence[float | None]) -> float:
    return next((value for value in reversed(values) if value is not None), math.nan)
