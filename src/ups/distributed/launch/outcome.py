"""How a job ended, when it ended by decision: `outcome.json` in the run directory.

A rank that finishes, is asked to stop, meets a user's mistake or gives up writes it and exits with 0; any other end,
and an exit with 0 without it, is a crash. The first writer wins: later ranks usually only follow. A run that was
finished stays finished when a later command is refused. Room for the outcome is taken when a job begins: how a job on a
full disk ended can be said too.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ups.durable import write
from ups.errors import GATE_FAILED, STOPPED

State = Literal["finished", "stopped", "mistake", "gave_up", "gate_failed"]
CODES: dict[State, int] = {
    "finished": 0,
    "stopped": STOPPED,
    "mistake": 2,
    "gave_up": 1,
    "gate_failed": GATE_FAILED,
}
_NAME, _SPARE = "outcome.json", ".outcome"
_ROOM = 4096


@dataclass(frozen=True)
class Outcome:
    state: State
    reason: str
    rank: int = 0

    @property
    def code(self) -> int:
        """The exit code of the command."""
        return CODES[self.state]


def reserve(directory: Path) -> None:
    """Take room on the disk for an outcome that is still to be decided."""
    if not (directory / _NAME).exists() and not (directory / _SPARE).exists():
        (directory / _SPARE).write_bytes(b" " * _ROOM)


def decide(directory: Path, outcome: Outcome, before: Outcome | None = None) -> None:
    """Write the outcome unless there is one already. A mistake changes nothing: where the run was finished `before`,
    that is written again, also in the place of what another rank said of the same mistake.
    """
    kept = before if before is not None and (before.state, outcome.state) == ("finished", "mistake") else None
    content = (json.dumps(asdict(kept or outcome)) + "\n").encode()
    if kept:
        write(directory / _NAME, content)
        return
    own = directory / f"{_SPARE}.{uuid.uuid4().hex[:12]}"
    try:
        os.rename(directory / _SPARE, own)  # of several, one gets it
    except FileNotFoundError:
        return
    with own.open("r+b") as file:
        file.write(content)
        file.truncate()
    os.replace(own, directory / _NAME)


def outcome_of(directory: Path) -> Outcome | None:
    """The decided end of the last job in this run directory; None while it runs and after a crash."""
    try:
        outcome = Outcome(**json.loads((directory / _NAME).read_text()))
        return outcome if outcome.state in CODES else None
    except (FileNotFoundError, ValueError, TypeError):  # absent, or damaged
        return None


def forget(directory: Path) -> Outcome | None:
    """A new job starts: what an earlier one decided, which is returned, no longer holds."""
    before = outcome_of(directory)
    for old in (directory / _NAME, *directory.glob(f"{_SPARE}.*")):
        old.unlink(missing_ok=True)
    reserve(directory)
    return before


def supervised() -> bool:
    """Whether this process is a rank that a supervisor started, which reads outcomes."""
    return "UPS_SUPERVISED" in os.environ
