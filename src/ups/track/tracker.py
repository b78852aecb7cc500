"""Where a run's events go: one interface for the diary, for trackers beside it, and for ranks that say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ups.track.jsonl import plain


class Tracker(Protocol):
    """Takes a run's events: `write("step", step=20, loss=0.012)`."""

    def write(self, kind: str, /, **fields: Any) -> None: ...
    def close(self) -> None: ...


class Tracks:
    """Every event to every tracker in turn, with the number of the attempt (0, and one more after each restart). Every
    rank but the first has none, so that no caller asks for its rank.
    """

    def __init__(self, trackers: Sequence[Tracker], attempt: int) -> None:
        self.trackers, self.attempt = tuple(trackers), attempt

    def write(self, kind: str, /, **fields: Any) -> None:
        if not self.trackers:  # a rank that says nothing also reads no tensors
            return
        # Made plain here and now: a tracker may look at it later, when tensors and dicts have changed.
        content = {name: plain(value) for name, value in {"attempt": self.attempt, **fields}.items()}
        for tracker in self.trackers:
            tracker.write(kind, **content)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()
