"""Fault 31: the terminal is closed, or whoever read the output is gone."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from job import Job, difference, start
from machines import LONG, LONG_STEPS

from ups import checkpoint

pytestmark = pytest.mark.faults


def start_on(place, name, stream, overrides=(), **how) -> Job:
    """`ups train` whose output is a file descriptor, which this process then has no more."""
    place.runs.mkdir(exist_ok=True)
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("UPS_", "TORCHELASTIC"))}
    command = place.command(name, *overrides)
    process = subprocess.Popen(
        command, stdin=stream, stdout=stream, stderr=stream, env=variables, start_new_session=True, **how
    )
    os.close(stream)
    return Job(process, place.runs / name, place.runs / f"{name}.out")


def read_all(descriptor: int) -> None:
    """As a terminal does, until it is closed."""
    try:
        while os.read(descriptor, 1000):
            pass
    except OSError:
        return


def test_fault_31_closing_the_terminal_saves_and_the_same_command_goes_on(place, long_reference, matrix):
    ours, theirs = pty.openpty()
    job = start_on(place, "closed", theirs, LONG, preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0))
    threading.Thread(target=read_all, args=(ours,), daemon=True).start()
    job.reach(8)
    os.close(ours)
    assert job.wait() == 75
    step = checkpoint.steps(job.stage / "checkpoints")[-1]
    outcome = job.json("outcome.json")
    assert outcome["state"] == "stopped" and f"step {step} of {LONG_STEPS} is saved" in outcome["reason"]
    again = start(place, "closed", *LONG)
    assert again.wait() == 0, again.said()
    assert [event["step"] for event in again.events("resumed")] == [step]
    assert difference(again.run, long_reference, LONG_STEPS) == 0
    matrix.row(
        31,
        fault="the terminal of a job is closed",
        required="as SIGTERM: saved, 75",
        seen=f"saved at step {step}, exit 75; the same command again: bit-equal end",
        repeated=0,
    )


def test_fault_31_under_nohup_a_closed_terminal_changes_nothing(place, reference, matrix):
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does

    job = start_on(place, "nohup", theirs, preexec_fn=take_terminal)
    threading.Thread(target=read_all, args=(ours,), daemon=True).start()
    job.reach(8)
    os.close(ours)
    assert job.wait() == 0
    assert job.reports() == [] and job.events("resumed") == []
    assert difference(job.run, reference) == 0
    matrix.row(
        31,
        fault="the same under nohup: output goes to a terminal that is gone",
        required="no effect",
        seen="exit 0, bit-equal end",
        repeated=0,
    )


def test_fault_31_a_pipe_that_nobody_reads_changes_nothing(place, reference, matrix):
    """Data are made too, of which rank 0 says something long before the end."""
    ours, theirs = os.pipe()
    os.close(ours)
    job = start_on(replace(place, data=place.runs.parent / "own"), "pipe", theirs)
    assert job.wait() == 0
    assert job.reports() == [] and difference(job.run, reference) == 0
    matrix.row(
        31,
        fault="the output's pipe is closed (`| head`)",
        required="no effect",
        seen="exit 0, bit-equal end",
        repeated=0,
    )


@pytest.mark.parametrize("what", ["pipe", "terminal"])
def test_fault_31_output_that_is_left_unread_is_no_hang(place, reference, matrix, what):
    """`| less` that waits at its first page, or Ctrl-S: the pipe and the terminal take nothing more."""
    ours, theirs = os.pipe() if what == "pipe" else pty.openpty()
    if what == "pipe":
        os.set_blocking(theirs, False)
        with suppress(BlockingIOError):
            while True:
                os.write(theirs, bytes(4096))
        os.set_blocking(theirs, True)
    else:
        termios.tcflow(theirs, termios.TCOOFF)
    job = start_on(replace(place, data=place.runs.parent / "own"), "unread", theirs)
    assert job.wait() == 0
    os.close(ours)
    assert job.reports() == [] and difference(job.run, reference) == 0
    matrix.row(
        31,
        fault={"pipe": "the output's pipe is full (`| less`)", "terminal": "the terminal is stopped (Ctrl-S)"}[what],
        required="no effect",
        seen="exit 0, bit-equal end",
        repeated=0,
    )
