"""Finding hangs: what the heartbeats of a node's ranks say, and what their processes do, in one attempt."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ups.distributed.faults.crash_report import Hang
from ups.distributed.faults.heartbeat import Beat, culprit, deadline, heartbeat_path, in_step, read_heartbeat
from ups.distributed.launch.nodes import Neighbours
from ups.distributed.runtime.host import is_stopped, work_of

INTERVAL = 0.5  # seconds between two looks at the heartbeats
PAUSE = 2.0  # seconds between two looks, from which on this process, and so perhaps all the machine, was stopped itself
WORK_INTERVAL, WORK = 2.0, 0.01  # seconds between two looks at what the ranks do; of a core, that is work


class Watch:
    """`hang(processes)`, called again and again with the living ranks' processes: the one that hangs, if any does."""

    def __init__(self, directory: Path, seconds: float, attempt: int, neighbours: Neighbours) -> None:
        self.directory, self.seconds, self.attempt, self.neighbours = directory, seconds, attempt, neighbours
        self._started = self._worked = time.monotonic()
        self._looked = self._resumed = self._started
        self._work_seen = 0.0
        self._read: set[int] = set()  # ranks whose heartbeats have been read
        self._unread: set[int] = set()  # and could no longer be
        self._stops: dict[int, float] = {}  # pid: since when it is seen stopped
        self._work: list[tuple[float, int]] = []  # what the ranks had done when they were last looked at

    def hang(self, processes: Mapping[int, Any]) -> Hang | None:
        """The rank of this node that all wait for, if it is past its deadline; another node judges its own.

        One that is stopped does no work that could take long: it has a step's deadline from when it was seen so. So has
        one that does nothing outside of a step, unless it may wait for a rank of another node in the same place. Nobody
        can be late in a time in which nobody looked: it does not count.
        """
        now = time.monotonic()
        if now - self._looked < INTERVAL:
            return None
        if now - self._looked > max(PAUSE, self.seconds / 4):
            self._resumed = now
        self._looked = now
        lowest = culprit(self._heartbeats(processes))
        if lowest is None:
            return None
        stopped = is_stopped(lowest.pid)
        self._stops = {lowest.pid: self._stops.get(lowest.pid, now)} if stopped else {}
        since = max(self._stops.get(lowest.pid, lowest.time), self._resumed)
        limit = self.seconds if stopped else deadline(lowest, self.seconds)
        waits_for_another = self.neighbours.lower_than((-1, 0) if stopped else lowest.order)
        if not stopped and not in_step(lowest) and self._idle(processes, now) and not self.neighbours.others:
            limit = self.seconds
        if waits_for_another or now - since <= limit:
            return None
        return Hang(lowest, now - since, limit, self.neighbours.lost(), stopped)

    def _heartbeats(self, processes: Mapping[int, Any]) -> list[Beat]:
        """One that has not left any yet is starting. One that can no longer be read says nothing."""
        found = []
        for rank, process in processes.items():
            path = heartbeat_path(self.directory, rank)
            heartbeat = read_heartbeat(path)
            if heartbeat is not None and heartbeat.attempt == self.attempt:
                self._read.add(rank)
                found.append(heartbeat)
            elif rank not in self._read:
                found.append(Beat(rank, self.attempt, process.pid, 0, "start", self._started, 0.0))
            elif rank not in self._unread:
                self._unread.add(rank)
                say(f"the heartbeat of rank {rank}, {path}, cannot be read; if that rank hangs, its peers will show it")
        return found

    def _idle(self, processes: Mapping[int, Any], now: float) -> bool:
        """Whether no rank of this node, nor a process it started, has done anything for as long as a step may take."""
        if now - self._work_seen >= min(WORK_INTERVAL, self.seconds / 4):  # a short deadline must not pass unseen
            work = [work_of(process.pid) for process in processes.values()]
            enough = WORK * (now - self._work_seen)
            if len(work) != len(self._work) or any(
                seconds - before > enough or moved != moved_before
                for (seconds, moved), (before, moved_before) in zip(work, self._work, strict=True)
            ):
                self._worked = now
            self._work, self._work_seen = work, now
        return now - self._worked > self.seconds


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
