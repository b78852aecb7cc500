"""What a restarted job must know of the ones before it: `backoff.json` in the run directory.

Sharded parameters leave no way to repeat a step in which one rank ran out of memory, so that rank notes a smaller
micro-batch here and crashes; the restarted job begins with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ups.durable import write
from ups.errors import GaveUp

TRIES = 3
_NAME = "backoff.json"


def note_out_of_memory(directory: Path, task: str, micro_batch: int) -> None:
    """Halve a task's micro-batch for the next attempt; at one sample, or after three times, give up."""
    known = read(directory)
    times = known.get("out_of_memory", 0) + 1
    if micro_batch == 1 or times > TRIES:
        raise GaveUp(
            f"out of memory with {micro_batch} samples of {task} at a time, {times} times in all; use a smaller model, "
            "shorter rollouts, more ranks or runtime.checkpoint_activations=true"
        )
    sizes = known.get("micro_batch", {}) | {task: micro_batch // 2}
    change(directory, out_of_memory=times, micro_batch=sizes)


def micro_batches(directory: Path) -> dict[str, int]:
    """The micro-batch that earlier attempts came down to, by task."""
    return read(directory).get("micro_batch", {})


def read(directory: Path) -> dict[str, Any]:
    try:
        return json.loads((directory / _NAME).read_text())
    except FileNotFoundError:
        return {}


def change(directory: Path, **entries: Any) -> None:
    """Set some entries and keep the others; an entry of None is removed."""
    known = {key: value for key, value in (read(directory) | entries).items() if value is not None}
    write(directory / _NAME, (json.dumps(known) + "\n").encode())
