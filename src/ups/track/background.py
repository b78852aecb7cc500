"""A tracker kept at arm's length: training hands an event over in microseconds, whatever the tracker does with it."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

from ups.track.tracker import Tracker

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before the first try after a failure; each further failure in a row doubles them, up to the longest."""
CLOSING = 3.0
"""Seconds that `close` waits for what is still to be delivered."""


class BackgroundTracker:
    """Delivers events to the tracker that `make` gives, in order, from a thread of its own.

    An event stays in the backlog until the tracker has taken it. A tracker that raises is warned of once, thrown away,
    and made anew for the next try; one that hangs holds up only its own thread, which does not keep the process alive.
    """

    def __init__(self, name: str, make: Callable[[], Tracker]) -> None:
        self.name = name
        self._make = make
        self._backlog: deque[tuple[str, dict[str, Any]]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._trouble: str | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._deliver, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def write(self, kind: str, /, **fields: Any) -> None:
        with self._changed:
            self._backlog.append((kind, fields))
            self._changed.notify()
        self._warn()

    def close(self) -> None:
        """Waits a little for the rest to be delivered, and says what was not."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSING)
        self._warn()
        if lost := len(self._backlog):
            warnings.warn(f"{lost} events were not delivered to {self.name}; events.jsonl has them all", stacklevel=2)

    def _deliver(self) -> None:
        tracker, pause = None, FIRST_PAUSE
        while event := self._next():
            kind, fields = event
            try:
                tracker = tracker or self._make()
                tracker.write(kind, **fields)
            except Exception as error:  # of any kind: a tracker is not ours
                self._trouble = f"{self.name} fails ({error}); its events wait in memory and are tried again"
                with self._changed:
                    if self._closing:
                        return
                    self._changed.wait_for(lambda: self._closing, pause)
                tracker, pause = None, min(2 * pause, LONGEST_PAUSE)
            else:
                pause = FIRST_PAUSE
                with self._changed:
                    self._backlog.popleft()
        try:
            if tracker is not None:
                tracker.close()
        except Exception as error:
            self._trouble = f"{self.name} could not be closed ({error})"

    def _next(self) -> tuple[str, dict[str, Any]] | None:
        """The oldest event not yet delivered, awaited; None when there is none and there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._backlog or self._closing)
            return self._backlog[0] if self._backlog else None

    def _warn(self) -> None:
        """Once, and from the caller's thread: there the program's filters of warnings hold."""
        if self._trouble and not self._warned:
            self._warned = True
            warnings.warn(self._trouble, stacklevel=3)
