"""Ranks that another launcher started (torchrun) have no supervisor, so that each watches for hangs itself.

When a phase is past its deadline, the rank that the others wait for writes its stacks and leaves with code 1; if it
cannot, its peers on the node do so a little later. The launcher then ends the rest, and restarts if it was told to.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ups.distributed.faults.heartbeat import culprit, deadline, heartbeat_path, read_heartbeat

LATER = 5.0
"""Seconds that peers leave to the rank they wait for to leave by itself."""


@contextmanager
def watching(directory: Path, rank: int, node: range, attempt: int, seconds: float) -> Iterator[None]:
    """Within, a thread watches the heartbeats of the ranks of this node."""
    left = threading.Event()

    def look() -> None:
        while not left.wait(1.0):
            heartbeats = [
                heartbeat for other in node if (heartbeat := read_heartbeat(heartbeat_path(directory, other)))
            ]
            lowest = culprit(heartbeat for heartbeat in heartbeats if heartbeat.attempt == attempt)
            if lowest is None:
                continue
            late = time.monotonic() - lowest.time - deadline(lowest, seconds)
            if late > (0.0 if lowest.rank == rank else LATER):
                text = f"rank {lowest.rank} has not moved for too long in {lowest.place}; rank {rank} leaves\n"
                os.write(2, text.encode())
                faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
                os._exit(1)

    threading.Thread(target=look, name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        left.set()
