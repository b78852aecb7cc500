"""Where each rank is: a small memory-mapped file a rank, `RUN/heartbeats/rank_00003`, which survives any death.

The rank marks the phase it enters; the supervisor reads. A hang is a phase past its deadline, and its culprit is the
rank with the lowest (step, phase), or one that is stopped: the others wait for it. A step has a deadline by the clock;
outside of steps, where one piece of work may take long, a rank hangs when it does nothing at all for as long. No torch
here, and a mark costs about a microsecond.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ups.distributed.runtime.host import is_stopped, process_space

PHASES = (
    "start",
    "init",
    "data",
    "model",
    "shard",
    "first step",
    "gradients",
    "vote",
    "reduce",
    "update",
    "validate",
    "scores",
    "checkpoint",
    "end",
)
"""In the order of a step, so that the lowest (step, phase) is the rank the others wait for."""

_NUMBER = {phase: number for number, phase in enumerate(PHASES)}
_STEP_PHASES = frozenset(_NUMBER[phase] for phase in ("gradients", "vote", "reduce", "update"))
_BUSY_DEADLINES = {"data": 3600.0, "validate": 3600.0}
_BUSY_DEADLINE = 600.0
_SLOWEST_TIMES = 20

# The counter stands at both ends: a copy taken while the rank writes shows two different ones. Marks go to two places
# in turn: where a rank loses its core, or its life, within one, the one before is whole.
_LAYOUT = struct.Struct("<QiiqiddQ")
_HOST = struct.Struct("<Qd")
"""After the two places, written once: whose processes and clock these are, and its clock's zero as a time of day."""
_SIZE = 2 * _LAYOUT.size + _HOST.size
_TRIES = 20


@dataclass(frozen=True)
class Beat:
    """The last mark of one rank. `time` is CLOCK_MONOTONIC of its host, whose `process_space` this is; `slowest` its
    slowest finished step; `date` the mark's time of day.
    """

    rank: int
    attempt: int
    pid: int
    step: int
    phase: str
    time: float
    slowest: float
    host: int = 0
    date: float = 0.0

    @property
    def order(self) -> tuple[int, int]:
        """(step, phase number): whoever is lowest keeps the others waiting."""
        return self.step, _NUMBER[self.phase]

    @property
    def place(self) -> str:
        """In words, for messages."""
        return f"{self.phase}, step {self.step}"


class Heartbeat:
    """A rank's own file. Without a path it marks nothing."""

    def __init__(self, path: Path | None, rank: int, attempt: int) -> None:
        self.rank, self.attempt = rank, attempt
        self._phase, self._step = 0, 0
        self._marks, self._in_step, self._slowest = 0, 0.0, 0.0
        self._counts = False  # a step that goes through a "first step" does not say how long one is
        self._time = time.monotonic()
        self._pid = os.getpid()
        self._map: mmap.mmap | None = None
        self.heard: Callable[[str], None] | None = None
        """Told of every mark, and of every place where a fault may be injected, while somebody listens (a profile)."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w+b") as file:
                began = time.time() - time.monotonic()
                # Zeros, as a hole would be SIGBUS when the disk is full.
                file.write(bytes(2 * _LAYOUT.size) + _HOST.pack(process_space(), began))
                file.flush()
                self._map = mmap.mmap(file.fileno(), _SIZE)
        self.mark("start")

    @property
    def phase(self) -> str:
        return PHASES[self._phase]

    @property
    def step(self) -> int:
        return self._step

    def mark(self, phase: str, step: int | None = None) -> None:
        """This rank now enters `phase`, of `step` where that changes."""
        if self.heard is not None:
            self.heard(phase)
        if self._map is None:
            self._phase = _NUMBER[phase]
            self._step = self._step if step is None else step
            return
        now = time.monotonic()
        if self._phase in _STEP_PHASES:  # validation and checkpoints between steps do not make a step slow
            self._in_step += now - self._time
        if step is not None and step != self._step:
            if self._counts:
                self._slowest = max(self._slowest, self._in_step)
            self._in_step, self._counts, self._step = 0.0, True, step
        if phase == "first step":
            self._counts = False
            if step is not None:  # of a training that begins: those of one before say nothing about it
                self._slowest = 0.0
        self._phase = _NUMBER[phase]
        self._time = now
        self._marks += 1
        _LAYOUT.pack_into(
            self._map,
            self._marks % 2 * _LAYOUT.size,
            self._marks,
            self.attempt,
            self._pid,
            self._step,
            self._phase,
            now,
            self._slowest,
            self._marks,
        )


def heartbeat_path(directory: Path, rank: int) -> Path:
    """Where a rank of the run in `directory` leaves its heartbeat."""
    return directory / "heartbeats" / f"rank_{rank:05d}"


def read_heartbeat(path: Path) -> Beat | None:
    """The rank's last mark; None where there is none, or where it cannot be read whole."""
    for _ in range(_TRIES):
        try:
            first, second = path.read_bytes(), path.read_bytes()
        except OSError:
            return None
        if first == second and len(first) == _SIZE:
            marks = [_LAYOUT.unpack_from(first, at) for at in (0, _LAYOUT.size)]
            whole = [mark for mark in marks if mark[0] == mark[-1] > 0 and 0 <= mark[4] < len(PHASES)]
            if whole:
                _, attempt, pid, step, phase, when, slowest, _ = max(whole)
                host, began = _HOST.unpack_from(first, 2 * _LAYOUT.size)
                rank = int(path.name.rpartition("_")[2])
                return Beat(rank, attempt, pid, step, PHASES[phase], when, slowest, host, began + when)
        time.sleep(0.001)  # it is just being written
    return None


def heartbeats_of(directory: Path) -> list[Beat]:
    """All heartbeats in a `heartbeats` directory, by rank."""
    return [heartbeat for path in sorted(directory.glob(f"rank_{'[0-9]' * 5}")) if (heartbeat := read_heartbeat(path))]


def in_step(heartbeat: Beat) -> bool:
    """Whether a rank is in a step, and somebody knows how long one is: the first of all says nothing about it."""
    return _NUMBER[heartbeat.phase] in _STEP_PHASES and heartbeat.slowest > 0


def deadline(heartbeat: Beat, seconds: float) -> float:
    """How long a rank may stay where it is, at work: `seconds` or 20 slowest steps within a step, longer elsewhere."""
    if in_step(heartbeat):
        return max(seconds, _SLOWEST_TIMES * heartbeat.slowest)
    return max(seconds, _BUSY_DEADLINES.get(heartbeat.phase, _BUSY_DEADLINE))


def culprit(heartbeats: Iterable[Beat]) -> Beat | None:
    """The rank the others wait for: one that is stopped, which may be ahead of those it still owes a message; else the
    lowest (step, phase), the longest there among equals.

    Its `slowest` is the least of all ranks': steps are as long for all, but a rank that once waited for another's
    checkpoint counts that too.
    """
    heartbeats = list(heartbeats)
    if not heartbeats:
        return None
    lowest = min(heartbeats, key=lambda heartbeat: (not is_stopped(heartbeat.pid), heartbeat.order, heartbeat.time))
    return replace(lowest, slowest=min(heartbeat.slowest for heartbeat in heartbeats))
