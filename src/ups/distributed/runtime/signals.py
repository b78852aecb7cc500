"""A wish to stop: what sets it, and what becomes of a rank that does not leave in time."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ups.distributed.launch.outcome import Outcome, decide, supervised
from ups.errors import STOPPED

GRACE = float(os.environ.get("UPS_GRACE", "20"))
"""Seconds a rank has to save and leave after a signal; then it is ended the hard way."""


@dataclass
class StopFlag:
    """Set by a signal, read between steps. A second Ctrl-C stops at once, the usual way."""

    asked: bool = False
    at: float = math.inf
    """When, by the monotonic clock."""


def stop_signals() -> list[signal.Signals]:
    """What asks to save and leave: also a terminal that is closed, unless `nohup` has it ignored."""
    hears = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hears else [])]


@contextmanager
def stoppable(stop: StopFlag, launched: bool, rank: int, directory: Path | None) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP set the flag; a rank that has not left GRACE seconds later says so and is gone.

    Python sees a signal only between its own instructions: a rank stuck in native code is its launcher's to end.
    """
    left = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if not stop.asked and launched:
            faulthandler.dump_traceback_later(GRACE + 2, exit=True)
            stop.at = time.monotonic()
        elif stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = True

    def end_late() -> None:
        # Signals go to the main thread, where Python answers them at once.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        while not left.wait(0.2):
            if directory is not None and time.monotonic() > stop.at + GRACE:
                late = f"rank {rank} was not done {GRACE:.0f} s after it was asked to stop"
                decide(directory, Outcome("stopped", f"{late}; what was saved before is kept", rank))
                os._exit(0 if supervised() else STOPPED)

    handlers = {number: signal.signal(number, ask) for number in stop_signals()}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)  # whoever started this process may have had them blocked
    if launched:
        threading.Thread(target=end_late, name="grace", daemon=True).start()
    try:
        yield
    finally:
        left.set()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if stop.asked:
            faulthandler.cancel_dump_traceback_later()
