"""How a job ended, when it ended by decision: `outcome.json` in the run directory.

A rank that finishes, is asked to stop, meets a user's mistake or gives up writes it and exits with 0; any other end,
and an exit with 0 without it, is a crash. The first writer wins: later ranks usually only follow. A run that was
finished stays finished when a later command is refused.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ups.errors import STOPPED

State = Literal["finished", "stopped", "mistake", "gave_up"]
CODES: dict[State, int] = {"finished": 0, "stopped": STOPPED, "mistake": 2, "gave_up": 1}
_NAME = "outcome.json"


@dataclass(frozen=True)
class Outcome:
    state: State
    reason: str
    rank: int = 0

    @property
    def code(self) -> int:
        """The exit code of the command."""
        return CODES[self.state]


def decide(directory: Path, outcome: Outcome, before: Outcome | None = None) -> None:
    """Write the outcome unless there is one already. A mistake changes nothing: where the run was finished `before`,
    that is written again, also in the place of what another rank said of the same mistake.
    """
    kept = before if before is not None and (before.state, outcome.state) == ("finished", "mistake") else None
    temporary = directory / f".{_NAME}.{outcome.rank}.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(asdict(kept or outcome)) + "\n")
        # A link fails where the name exists, in one act.
        (os.replace if kept else os.link)(temporary, directory / _NAME)
    except FileExistsError:
        return
    finally:
        temporary.unlink(missing_ok=True)


def outcome_of(directory: Path) -> Outcome | None:
    """The decided end of the last job in this run directory; None while it runs and after a crash."""
    try:
        return Outcome(**json.loads((directory / _NAME).read_text()))
    except FileNotFoundError:
        return None


def forget(directory: Path) -> Outcome | None:
    """A new job starts: what an earlier one decided, which is returned, no longer holds."""
    before = outcome_of(directory)
    (directory / _NAME).unlink(missing_ok=True)
    return before


def supervised() -> bool:
    """Whether this process is a rank that a supervisor started, which reads outcomes."""
    return "UPS_SUPERVISED" in os.environ
