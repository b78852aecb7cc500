"""What an attempt must know of the ones before it, kept in `RUN/backoff.json`.

How often the job crashed without getting on: too often, and it is given up. And the micro-batch that fits: sharded
parameters leave no way to repeat a step in which one rank ran out of memory, so that rank notes a smaller micro-batch
here and crashes; the restarted job begins with it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ups.durable import write
from ups.errors import GaveUp

TRIES = 3
"""So often a task's micro-batch is halved by a crash."""

_CHECKPOINT = re.compile(r"step_(\d{8,})")


def newest_step(directory: Path) -> int:
    """Steps of the newest checkpoints of the run in `directory`, over its stages, -1 without one: it only grows.

    Asks names only, needs no torch.
    """
    entries = [entry for folder in directory.glob("stages/*/checkpoints") for entry in folder.iterdir()]
    newest: dict[Path, int] = {}
    for entry in entries:
        if match := _CHECKPOINT.fullmatch(entry.name):
            newest[entry.parent] = max(newest.get(entry.parent, 0), int(match[1]))
    return sum(newest.values()) if newest else -1


def count_crash(directory: Path, attempt: int) -> int:
    """Crashes in a row without a newer checkpoint, this one included; an attempt counts once, whoever reports it."""
    known, step = _read(directory), newest_step(directory)
    crashes, at = known.get("crashes", 0), known.get("step", -1)
    if step > at:
        crashes = 0
    elif known.get("attempt") == attempt:
        return crashes
    _write(directory, known | {"crashes": crashes + 1, "step": step, "attempt": attempt})
    return crashes + 1


def new_job(directory: Path) -> None:
    """Attempts count from 0 again; the crashes of a supervisor that was killed still count."""
    known = _read(directory)
    if known.pop("attempt", None) is not None:
        _write(directory, known)


def clear(directory: Path) -> None:
    """The job ended by decision: the next one starts without a past."""
    known = _read(directory)
    kept = {key: value for key, value in known.items() if key == "micro_batch"}
    if kept and kept != known:
        _write(directory, kept)
    elif not kept:  # which needs no room on the disk
        (directory / "backoff.json").unlink(missing_ok=True)


def note_out_of_memory(directory: Path, attempt: int, task: str, micro_batch: int) -> None:
    """Halve a task's micro-batch for the next attempt; at one sample, or after three attempts, give up.

    Sharded ranks often run out together: an attempt counts once, whichever of them says so.
    """
    known = _read(directory)
    attempts = sorted({*known.get("out_of_memory", []), attempt})
    times = len(attempts)
    if micro_batch == 1 or times > TRIES:
        raise GaveUp(
            f"out of memory with {micro_batch} samples of {task} at a time, {times} times in all; use a smaller model, "
            "shorter rollouts, more ranks or runtime.checkpoint_activations=true"
        )
    sizes = known.get("micro_batch", {}) | {task: micro_batch // 2}
    _write(directory, known | {"out_of_memory": attempts, "micro_batch": sizes})


def micro_batches(directory: Path) -> dict[str, int]:
    """The micro-batch that earlier attempts came down to, by task."""
    return _read(directory).get("micro_batch", {})


def _read(directory: Path) -> dict[str, Any]:
    try:
        known = json.loads((directory / "backoff.json").read_text())
    except (FileNotFoundError, ValueError):  # absent, or damaged
        return {}
    return known if isinstance(known, dict) else {}


def _write(directory: Path, content: dict[str, Any]) -> None:
    write(directory / "backoff.json", (json.dumps(content) + "\n").encode())
