"""Seconds of each phase of a run so far, kept in its directory."""

from __future__ import annotations

import json
from pathlib import Path

from ups.durable import write


def seconds_of(directory: Path) -> dict[str, float]:
    """A damaged file is not worth a run's end."""
    try:
        known = json.loads((directory / "seconds.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {n: s for n, s in known.items() if isinstance(s, int | float)} if isinstance(known, dict) else {}


def note_seconds(directory: Path, **seconds: float) -> dict[str, float]:
    known = seconds_of(directory) | seconds
    write(directory / "seconds.json", json.dumps(known).encode())
    return known
