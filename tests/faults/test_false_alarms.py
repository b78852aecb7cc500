"""Fault 41: what looks like a fault and is none must not restart anything."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from pathlib import Path

import pytest
from clock import HOUR, Clock
from job import Job, difference, start
from machines import LONG, LONG_STEPS
from storm import keep_busy, ranks_of

pytestmark = [pytest.mark.faults, pytest.mark.limit(240)]

REQUIRED = "no restart"


def undisturbed(job: Job, reference: Path | None, steps: int = LONG_STEPS) -> None:
    assert job.wait(200) == 0, job.said()
    assert job.reports() == [] and job.events("resumed") == [], job.said()
    if reference is not None:
        assert difference(job.run, reference, steps) == 0


@pytest.mark.parametrize("who", ["a rank", "the supervisor", "all processes"])
def test_fault_41_sigstop_for_a_while_restarts_nothing(place, long_reference, matrix, who):
    """5 s are less than the deadline. A machine or container that is paused as a whole may be so for longer."""
    seconds = 15 if who == "all processes" else 5
    job = start(place, "stopped", *LONG)
    job.reach(20)
    ranks = ranks_of(job)
    pids = {
        "a rank": [ranks[1]],
        "the supervisor": [job.process.pid],
        "all processes": [job.process.pid, *ranks.values()],
    }
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids[who]:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(seconds)
    undisturbed(job, long_reference)
    matrix.row(41, fault=f"SIGSTOP of {who} for {seconds} s", required=REQUIRED, seen="no restart; bit-equal end")


def test_fault_41_cores_that_others_keep_busy_restart_nothing(place, long_reference, matrix):
    processes = keep_busy(6 * len(os.sched_getaffinity(0)), 1e6)
    try:
        job = start(place, "busy", *LONG)
        undisturbed(job, long_reference)
        assert all(process.poll() is None for process in processes), "the cores were not busy to the end"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    matrix.row(41, fault="six busy processes a core", required=REQUIRED, seen="no restart; bit-equal end")


def test_fault_41_a_clock_that_jumps_by_an_hour_restarts_nothing(place, long_reference, matrix, tmp_path):
    """The time of day, in all processes of the job and in torch's own parts; the monotonic clock never jumps."""
    try:
        clock = Clock(tmp_path)
    except FileNotFoundError:
        pytest.skip("a clock that jumps needs a C compiler")
    job = start(place, "clock", *LONG, **clock.variables)
    for step, ahead in ((20, HOUR), (80, -HOUR), (140, 0)):
        job.reach(step)
        clock.jump(ahead)
    undisturbed(job, long_reference)
    times = [datetime.fromisoformat(event["time"]).timestamp() for event in job.events("step")]
    assert max(times) - min(times) > 7000, "the clock did not jump"
    matrix.row(
        41,
        fault="the clock jumps forward by an hour, back by two, and forward again",
        required=REQUIRED,
        seen="no restart; bit-equal end",
    )


def test_fault_41_a_validation_of_ten_deadlines_restarts_nothing(place, matrix, tmp_path):
    """As two minutes are with the deadline that is usual: one rank computes, its peer waits for it."""
    slow = tmp_path / "long_validation"
    slow.write_text("10")
    plugin = f"plugins=[{Path(__file__).with_name('slow_validation.py')}]"
    settings = ("runtime.deadline=1", plugin, "training.steps=30", "training.validate_every=30")
    job = start(place, "validation", *settings, SLOW_VALIDATION=str(slow))
    job.reach(29)
    began = time.monotonic()
    undisturbed(job, None)
    assert time.monotonic() - began > 10, "the validation was not slow"
    matrix.row(
        41,
        fault="a validation of 10 s on rank 0, with a deadline of 1 s",
        required=REQUIRED,
        seen="no restart; the training ended",
    )
