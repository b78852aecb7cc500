"""Faults 11, 24 and 25: stopped on purpose, started where something runs already, and left without a supervisor."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time

import pytest
from job import LONGEST, STEPS, difference, interrupt, left_behind, start

from ups import checkpoint

pytestmark = pytest.mark.faults

SAVED = "saved, exit 75, resumes bit-equal"


def stopped_at(job) -> int:
    """The step at which a job that was asked to stop was saved; it says so and how to go on."""
    assert job.wait() == 75, job.said()
    assert "start the same command again to go on" in job.said()
    assert job.json("outcome.json")["state"] == "stopped" and job.reports() == []
    step = checkpoint.steps(job.stage / "checkpoints")[-1]
    assert f"step {step} of {STEPS} is saved" in job.said()
    return step


@pytest.mark.smoke
def test_fault_11_sigterm_to_the_supervisor_saves_and_the_same_command_goes_on(place, reference, matrix):
    job = start(place, "asked")
    job.reach(8)
    sent = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    step = stopped_at(job)
    seconds = time.monotonic() - sent
    assert 8 < step < STEPS
    again = start(place, "asked")
    assert again.wait() == 0, again.said()
    assert [event["step"] for event in again.events("resumed")] == [step]
    assert difference(again.run, reference) == 0
    matrix.row(
        11,
        fault="SIGTERM to the supervisor",
        required=SAVED,
        seen=f"saved at step {step}, exit 75 after {seconds:.1f} s; the same command again: bit-equal end",
        repeated=0,
    )


@pytest.mark.limit(300)
def test_fault_11_ctrl_c_and_signals_to_one_rank_stop_all_and_the_same_command_goes_on(place, reference, matrix):
    """One run, stopped three times."""
    steps = []
    for what, fault in (
        ("SIGTERM to rank 1", "term at update rank 1 step 6"),
        ("SIGINT to rank 0", "int at reduce rank 0 step 12"),
        ("Ctrl-C", ""),
    ):
        job = start(place, "asked", fault=fault)
        if not fault:
            job.reach(18)
            interrupt(job)
        steps.append(stopped_at(job))
        matrix.row(11, fault=what, required=SAVED, seen=f"saved at step {steps[-1]}, exit 75; see the last", repeated=0)
    assert steps[:2] == [8, 14] and 18 < steps[2] < STEPS  # a signal in one step is voted on in the next
    job = start(place, "asked")
    assert job.wait() == 0, job.said()
    assert [event["step"] for event in job.events("resumed")] == steps
    assert difference(job.run, reference) == 0
    matrix.row(
        11,
        fault="the three stops above, in one run",
        required=SAVED,
        seen=f"resumed at steps {', '.join(map(str, steps))}; bit-equal end",
        repeated=0,
    )


@pytest.mark.parametrize("command", ["train", "run"])
def test_fault_24_inside_another_launcher_it_refuses(place, matrix, command):
    arguments = place.command("inside")
    arguments[3] = command
    began = time.monotonic()
    done = subprocess.run(
        arguments, env={**os.environ, "RANK": "0"}, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    seconds = time.monotonic() - began
    assert done.returncode == 2
    assert done.stderr.startswith("error: RANK is set: this command was started by another launcher")
    assert done.stderr.count("\n") == 1 and not (place.runs / "inside").exists()
    matrix.row(
        24,
        fault=f"`ups {command} --gpus 2` with RANK set",
        required="refused with a sentence",
        seen="one sentence, exit 2, nothing touched",
        detect=seconds,
    )


def test_fault_24_a_second_job_on_the_same_run_directory_is_refused(place, reference, matrix):
    first = start(place, "twice")
    first.until((first.run / "config.yaml").exists, "the first did not claim its directory")
    began = time.monotonic()
    done = subprocess.run(place.command("twice"), capture_output=True, text=True, timeout=LONGEST, check=False)
    seconds = time.monotonic() - began
    assert done.returncode == 2 and first.process.poll() is None
    assert done.stderr.count("\n") == 1 and "twice is in use by another process; wait for it" in done.stderr
    assert first.wait() == 0, first.said()
    assert first.events("resumed") == [] and difference(first.run, reference) == 0
    matrix.row(
        24,
        fault="a second job on the same run directory",
        required="refused with a sentence",
        seen="one sentence, exit 2; the first job's end is bit-equal",
        detect=seconds,
    )


def test_fault_25_when_the_supervisor_is_killed_its_ranks_go_too(place, reference, matrix):
    job = start(place, "orphans")
    job.reach(12)
    step = job.last[0, 0].step
    killed = time.monotonic()
    job.process.kill()
    job.process.wait()
    job.until(lambda: left_behind(job.run) == [], "ranks are still there", timeout=10)
    gone = time.monotonic() - killed
    assert gone < 2, f"the ranks were gone only after {gone:.1f} s"
    with (job.run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    began = time.monotonic()
    again = start(place, "orphans")
    assert again.wait() == 0, again.said()
    (resumed,) = again.events("resumed")
    assert difference(again.run, reference) == 0
    matrix.row(
        25,
        fault="SIGKILL of the supervisor",
        required="ranks gone in 2 s, lock free, resumes",
        seen=f"ranks gone after {gone:.2f} s, lock free; the same command again: bit-equal end",
        detect=gone,
        recover=again.trains[0] - began,
        repeated=step - resumed["step"],
    )
