"""Why a run ended, from what its directory holds: the report of its last crash, or its decided end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ups.distributed.faults.crash_report import latest_report
from ups.durable import read_json
from ups.errors import UserError

_ENDS = {
    "finished": "it finished",
    "stopped": "it was stopped and can be resumed with the same command",
    "mistake": "it met a mistake that you can mend",
    "gave_up": "it gave up",
    "gate_failed": "its model failed a gate",
}


def explanation(directory: Path) -> tuple[str, dict[str, Any]]:
    """As text and as JSON. A run that is no run is a mistake of the user's."""
    if not (directory / "config.yaml").is_file():
        raise UserError(f"{directory} is not a run (it has no config.yaml); name a directory that `ups run` made")
    outcome_file = directory / "outcome.json"
    outcome = read_json(outcome_file) if outcome_file.is_file() else None
    end = f"{directory}: {_end(outcome)}"
    report = latest_report(directory)
    if report is None:
        return f"{end}; there is no crash report\n", {"outcome": outcome, "crash": None}
    content = read_json(report.with_suffix(".json"))
    text = f"{end}; this is its last crash, from {report}\n\n{report.read_text()}"
    return text, {"outcome": outcome, "crash": content}


def _end(outcome: dict[str, Any] | None) -> str:
    if outcome is None:
        return "it has not ended, or its supervisor was killed"
    state = _ENDS.get(outcome["state"]) or str(outcome["state"])
    return f"{state} ({outcome['reason']})" if outcome["reason"] else state
