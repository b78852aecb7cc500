"""How often a job crashed without getting on, kept in `RUN/backoff.json` so that a restarted supervisor knows it too.

Other keys of the file belong to others (the smaller micro-batch after running out of memory) and are kept.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ups.durable import write

_CHECKPOINT = re.compile(r"step_(\d{8,})")


def newest_step(directory: Path) -> int:
    """The step of the newest checkpoint of the run in `directory`, -1 without one; asks names only, needs no torch."""
    checkpoints = directory / "checkpoints"
    if not checkpoints.is_dir():
        return -1
    found = (_CHECKPOINT.fullmatch(entry.name) for entry in checkpoints.iterdir())
    return max((int(match[1]) for match in found if match), default=-1)


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
    if any(known.pop(key, None) is not None for key in ("crashes", "step", "attempt")):
        _write(directory, {k: v for k, v in known.items() if k not in ("crashes", "step", "attempt")})


def _read(directory: Path) -> dict[str, Any]:
    path = directory / "backoff.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _write(directory: Path, content: dict[str, Any]) -> None:
    write(directory / "backoff.json", (json.dumps(content) + "\n").encode())
