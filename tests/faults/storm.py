"""What a soak does to its jobs: kinds of faults, and plans of them that a seed repeats.

A campaign is one training; its plan names, by step, one fault or two at a time. Faults from outside happen once the
training is seen at that step; those from within (`UPS_FAULT`) at that very step, in an attempt that must be known: it
is while every restart so far was planned.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from job import Job, interrupt

STEPS, EVERY, VALIDATE = 1000, 20, 50
"""Steps of a campaign's training, and between two of its checkpoints and validations."""
LAYOUTS = ((2, "ddp"), (3, "ddp"), (2, "fsdp2"), (4, "ddp"))
SHORT, LONG = 5.0, 15.0
"""Seconds: a stop that is no hang, and one that is longer than the deadline."""
VALIDATION = 120.0
"""Seconds of a long validation."""
NAN_STEP = 101
NAN = "; ".join(f"nan at loss rank 1 step {NAN_STEP} attempt {attempt}" for attempt in range(20))
"""In every campaign, and in what it is compared with: a skipped step is part of the result."""


class Target(Protocol):
    """The campaign that a fault happens to."""

    job: Job
    random: random.Random

    def damage(self, truncate: bool) -> None: ...
    def await_save(self) -> None: ...
    def jump(self) -> None: ...
    def validate_for(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Kind:
    """`effect`: what must follow: a "restart", a "stop" (exit code 75 or death of the supervisor), or "nothing"."""

    name: str
    effect: str
    act: Callable[[Target, int], None] | None = None
    inject: str = ""
    weight: int = 2


def ranks_of(job: Job) -> dict[int, int]:
    """The living ranks' processes, children of the supervisor: also those that have no heartbeat yet."""
    found = {}
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children")
    try:
        pids = children.read_text().split()
    except OSError:  # the supervisor has ended
        return {}
    for pid in pids:
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        found |= {int(entry[5:]): int(pid) for entry in entries if entry.startswith(b"RANK=")}
    return found


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # another fault was faster
            return


def _to_rank(number: signal.Signals) -> Callable[[Target, int], None]:
    return lambda target, rank: _send(ranks_of(target.job).get(rank), number)


def _to_supervisor(number: signal.Signals) -> Callable[[Target, int], None]:
    return lambda target, rank: target.job.process.send_signal(number)


def _ctrl_c(target: Target, rank: int) -> None:
    if target.job.process.poll() is None:
        interrupt(target.job)


_stopped_until: dict[int | None, float] = {}


def _stop_for(pids: list[int | None], seconds: float) -> None:
    """A process that is stopped twice goes on when the later stop ends: a supervisor that went on between two would
    rightly think that its ranks, still stopped, hang.
    """
    end = time.monotonic() + seconds
    for pid in pids:
        _stopped_until[pid] = max(end, _stopped_until.get(pid, 0.0))
        _send(pid, signal.SIGSTOP)

    def go_on() -> None:
        for pid in pids:  # the supervisor first: it must not think that its ranks hang
            if _stopped_until[pid] <= end:
                _send(pid, signal.SIGCONT)

    threading.Timer(seconds, go_on).start()


def _stop_rank_a_while(target: Target, rank: int) -> None:
    _stop_for([ranks_of(target.job).get(rank)], target.random.uniform(1, SHORT))


def _stop_supervisor_a_while(target: Target, rank: int) -> None:
    _stop_for([target.job.process.pid], target.random.uniform(1, SHORT))


def _freeze(target: Target, rank: int) -> None:
    """All processes of the job, longer than the deadline, as `docker pause` does."""
    _stop_for([target.job.process.pid, *ranks_of(target.job).values()], LONG)


def _busy(target: Target, rank: int) -> None:
    keep_busy(4 * len(os.sched_getaffinity(0)), SHORT)


def keep_busy(processes: int, seconds: float) -> list[subprocess.Popen[bytes]]:
    """Processes that do nothing but compute, for so long, or until what started them has ended in whatever way."""
    alive = f"os.getppid() == {os.getpid()}"
    work = f"import os, time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end and {alive}: pass"
    return [subprocess.Popen([sys.executable, "-S", "-c", work]) for _ in range(processes)]


def _delete_heartbeat(target: Target, rank: int) -> None:
    """Not rank 0's: by that one the campaign, too, sees where the training is."""
    (target.job.run / "heartbeats" / f"rank_{max(rank, 1):05d}").unlink(missing_ok=True)


def _kill_in_a_save(target: Target, rank: int) -> None:
    target.await_save()
    _send(ranks_of(target.job).get(rank), signal.SIGKILL)


def _damage(truncate: bool, then: Callable[[Target, int], None]) -> Callable[[Target, int], None]:
    def act(target: Target, rank: int) -> None:
        target.damage(truncate)
        then(target, rank)

    return act


OUTSIDE = (
    Kind("SIGKILL of a rank", "restart", _to_rank(signal.SIGKILL), weight=4),
    Kind("SIGSEGV of a rank", "restart", _to_rank(signal.SIGSEGV)),
    Kind("SIGKILL of a rank during a save", "restart", _kill_in_a_save, weight=4),
    Kind("SIGSTOP of a rank for good", "restart", _to_rank(signal.SIGSTOP), weight=1),
    Kind("a byte of the newest checkpoint, and SIGKILL", "restart", _damage(False, _to_rank(signal.SIGKILL))),
    Kind("truncation of the newest checkpoint, and SIGKILL", "restart", _damage(True, _to_rank(signal.SIGKILL))),
    Kind("a byte of the newest checkpoint, and SIGTERM", "stop", _damage(False, _to_supervisor(signal.SIGTERM))),
    Kind("SIGKILL of the supervisor", "stop", _to_supervisor(signal.SIGKILL), weight=3),
    Kind("SIGTERM to the supervisor", "stop", _to_supervisor(signal.SIGTERM)),
    Kind("SIGHUP to the supervisor", "stop", _to_supervisor(signal.SIGHUP), weight=1),
    Kind("SIGTERM to a rank", "stop", _to_rank(signal.SIGTERM)),
    Kind("Ctrl-C", "stop", _ctrl_c),
)
CALM = (
    Kind(f"SIGSTOP of a rank for 1 to {SHORT:.0f} s", "nothing", _stop_rank_a_while),
    Kind(f"SIGSTOP of the supervisor for 1 to {SHORT:.0f} s", "nothing", _stop_supervisor_a_while, weight=1),
    Kind(f"all cores busy for {SHORT:.0f} s", "nothing", _busy, weight=1),
    Kind("a heartbeat deleted", "nothing", _delete_heartbeat, weight=1),
)
HOUR_LONG = (
    Kind(f"SIGSTOP of all processes for {LONG:.0f} s", "nothing", _freeze, weight=1),
    Kind("the clock jumps by an hour", "nothing", lambda target, rank: target.jump()),
    Kind(f"a validation of {VALIDATION:.0f} s", "nothing", lambda target, rank: target.validate_for(VALIDATION)),
)
"""What takes too long for a storm, or needs a job that was started for it."""
IN_STEP = (
    Kind("exception in forward", "restart", inject="raise at forward"),
    Kind("exception in backward", "restart", inject="raise at backward"),
    Kind("SIGSEGV in backward", "restart", inject="segv at backward"),
    Kind("exit with code 0", "restart", inject="exit0 at update"),
    Kind("out of memory in the optimiser step", "restart", inject="oom at update"),
    Kind("SIGKILL in the update", "restart", inject="kill at update"),
)
HANGS = (
    Kind("a rank sleeps in backward", "restart", inject="sleep at backward", weight=1),
    Kind("a rank leaves out a vote", "restart", inject="skip at vote", weight=1),
)
IN_SAVE = (
    Kind("SIGKILL before a rank's files of a save", "restart", inject="kill at checkpoint_files"),
    Kind("SIGKILL after a rank's files of a save", "restart", inject="kill at checkpoint"),
    Kind("full disk for a moment", "nothing", inject="full at checkpoint_files"),
)
MEMORY = (
    Kind("out of memory in forward", "nothing", inject="oom at forward"),
    Kind("out of memory in backward", "nothing", inject="oom at backward"),
)
KINDS = {kind.name: kind for kind in (*OUTSIDE, *CALM, *HOUR_LONG, *IN_STEP, *HANGS, *IN_SAVE, *MEMORY)}


@dataclass(frozen=True)
class Fault:
    """`after`: seconds after the first of two."""

    kind: Kind
    rank: int
    after: float = 0.0


@dataclass(frozen=True)
class Disturbance:
    """What happens at a step; `attempt`: of those from within, which alone have one."""

    step: int
    faults: tuple[Fault, ...]
    attempt: int | None = None

    @property
    def stops(self) -> int:
        return sum(fault.kind.effect == "stop" for fault in self.faults)

    @property
    def restarts(self) -> int:
        return sum(fault.kind.effect == "restart" for fault in self.faults)

    @property
    def rounds(self) -> bool:
        """Whether sums are added in another order from here on."""
        return any(fault.kind.inject in {kind.inject for kind in MEMORY} for fault in self.faults)

    def injected(self) -> str:
        """For UPS_FAULT."""
        return "; ".join(
            f"{fault.kind.inject} rank {fault.rank} step {self.step} attempt {self.attempt}" for fault in self.faults
        )


@dataclass(frozen=True)
class Plan:
    number: int
    ranks: int
    strategy: str
    disturbances: tuple[Disturbance, ...]


def plan(seed: int, number: int, *, calm: bool = False) -> Plan:
    """The campaign of that number; the same for the same arguments."""
    draw = random.Random(f"{seed} {number}")
    ranks, strategy = LAYOUTS[number % len(LAYOUTS)]
    found: list[Disturbance] = []
    attempt: int | None = 0
    step = 2 * EVERY + draw.randrange(EVERY)
    memory = False
    while step < STEPS - 3 * EVERY:
        inside = not calm and attempt is not None and draw.random() < 0.45
        if inside:
            usual = (*IN_STEP, *IN_SAVE, *HANGS, *(() if memory else MEMORY))
            kind = _choice(draw, usual)
            if kind in MEMORY:
                memory = True
                step += step == NAN_STEP  # a batch that is repeated has its NaN no more
                if strategy == "fsdp2":  # its passes cannot be repeated
                    kind = replace(kind, effect="restart")
            if kind in IN_SAVE:
                step = math.ceil(step / EVERY) * EVERY
                if kind.effect == "nothing" and step % VALIDATE == 0:
                    step += EVERY  # a best that a full disk refuses is no longer the best, as it should be
            order = draw.sample(range(ranks), 2)
            faults = (Fault(kind, order[0]),)
            if kind in IN_STEP and draw.random() < 0.3:
                faults = (*faults, Fault(_choice(draw, IN_STEP), order[1]))
            found.append(Disturbance(step, faults, attempt))
            attempt = attempt + (found[-1].restarts > 0)
        else:
            kinds = (*CALM, *HOUR_LONG) if calm else (*OUTSIDE, *CALM)
            faults = (Fault(_choice(draw, kinds), draw.randrange(ranks)),)
            if draw.random() < 0.3:
                faults = (
                    *faults,
                    Fault(_choice(draw, kinds), draw.randrange(ranks), draw.choice((0, 4 * draw.random()))),
                )
            found.append(Disturbance(step, faults))
            if len(faults) > 1:
                attempt = attempt if found[-1].stops + found[-1].restarts == 0 else None
            elif found[-1].stops:
                attempt = 0
            elif attempt is not None:
                attempt += found[-1].restarts
        step += draw.randrange(2 * EVERY, 5 * EVERY)
    return Plan(number, ranks, strategy, tuple(found))


def _choice(draw: random.Random, kinds: tuple[Kind, ...]) -> Kind:
    return draw.choices(kinds, [kind.weight for kind in kinds])[0]
