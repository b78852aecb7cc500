"""Fault 35: asked to stop at a bad moment, and a disk that stays full."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from job import EVERY, STAGE, difference, left_behind, start
from machines import LONG, LONG_STEPS, MACHINE, Namespace, fill, start_inside

from ups import checkpoint

pytestmark = [pytest.mark.faults, pytest.mark.limit(240)]

REQUIRED = "75 and saved where possible, else the truth"


def test_fault_35_sigterm_to_all_processes_while_data_are_made_keeps_what_is_made(place, matrix):
    own = replace(place, data=place.runs.parent / "own")
    more = ("tasks.darcy.make.trajectories=2000", "tasks.darcy.make.settings.points=32", "data.workers=2")
    job = start(own, "making", *more)
    job.until(lambda: any("arcy" in path.name for path in own.data.rglob("*")), "nothing was made")
    time.sleep(0.5)
    ranks = [entry.pid for entry in job.last.values()]
    for pid in [*_sessions(ranks), job.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert job.wait() == 75, job.said()
    assert "memory" not in job.said() and job.reports() == []
    assert job.json("outcome.json")["state"] == "stopped"
    matrix.row(
        35,
        fault="SIGTERM to all processes while data are made",
        required=REQUIRED,
        seen=f"exit 75: “{job.said().strip().splitlines()[-1]}”".replace(str(place.runs.parent), "…"),
    )


def _sessions(ranks: list[int]) -> list[int]:
    """All processes of the ranks' sessions: workers too."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
        except OSError:  # it has just ended
            continue
        if session in ranks:
            found.append(int(entry.name))
    return found


def test_fault_35_a_save_slower_than_the_time_to_leave_ends_with_the_truth(place, reference, matrix):
    """SIGTERM to a rank, on a disk on which a save takes some 8 s; it has 4 s."""
    job = start(
        place, "late", fault=f"term at update rank 1 step {EVERY + 1}", **MACHINE, MACHINE_FSYNC="1", UPS_GRACE="4"
    )
    assert job.wait() == 75, job.said()
    assert job.reports() == [], "it was restarted"
    outcome = job.json("outcome.json")
    assert outcome["state"] == "stopped" and "was not done 4 s after it was asked to stop" in outcome["reason"]
    again = start(place, "late")
    assert again.wait() == 0, again.said()
    assert difference(again.run, reference) == 0
    matrix.row(
        35,
        fault="SIGTERM to rank 1 while a save takes longer than it has to leave",
        required=REQUIRED,
        seen=f"exit 75: “{outcome['reason']}”; the same command again: bit-equal end",
    )


@pytest.fixture
def disk(place) -> Iterator[Namespace]:
    place.runs.mkdir()
    small = Namespace("-m", f"mount -t tmpfs -o size=16m tmpfs {place.runs}", "a small disk")
    yield small
    small.end()


def fill_after(job, disk, place, step: int) -> Path:
    """The disk is full once a checkpoint is there; what fills it."""
    job.until(lambda: bool(checkpoint.steps(job.stage / "checkpoints")), "no checkpoint was written")
    job.reach(step)
    ballast = disk.path(place.runs / "ballast")
    fill(ballast)
    return ballast


def test_fault_35_sigterm_on_a_full_disk_says_what_is_saved(disk, place, matrix):
    job = start_inside(disk, place, "full", *LONG)
    fill_after(job, disk, place, 30)
    os.kill(job.pid(1), signal.SIGTERM)
    assert job.wait() == 75, job.said()
    outcome = job.json("outcome.json")
    kept = checkpoint.steps(job.stage / "checkpoints")[-1]
    assert outcome["state"] == "stopped" and "No space left" in outcome["reason"]
    assert f"step {kept} is the last that is saved" in outcome["reason"]
    assert job.reports() == []
    matrix.row(
        35,
        fault="SIGTERM on a full disk",
        required=REQUIRED,
        seen=f"exit 75, outcome.json: “… {outcome['reason'].rpartition('; ')[2]}”",
    )


def test_fault_35_after_sigkill_on_a_full_disk_the_ranks_start_again_when_there_is_room(
    disk, place, long_reference, matrix
):
    job = start_inside(disk, place, "full", *LONG)
    ballast = fill_after(job, disk, place, 30)
    os.kill(job.pid(1), signal.SIGKILL)
    said = "cannot be written to (No space left on device); the ranks start again when it can"
    job.until(lambda: said in job.said(), "the full disk was not said")
    time.sleep(3)
    assert job.process.poll() is None
    ballast.unlink()
    room = time.monotonic()
    job.reach(31, attempt=1)
    recovered = time.monotonic() - room
    assert job.wait() == 0, job.said()
    assert difference(job.run, long_reference, LONG_STEPS) == 0
    matrix.row(
        35,
        fault="SIGKILL of rank 1 on a full disk",
        required=REQUIRED,
        seen="said, and restarted when there was room; bit-equal end",
        recover=recovered,
    )


def test_fault_35_a_disk_that_stays_full_pauses_checkpoints_and_not_training(disk, place, long_reference, matrix):
    job = start_inside(disk, place, "full", *LONG)
    ballast = fill_after(job, disk, place, 30)
    job.reach(LONG_STEPS - 1)
    time.sleep(16)  # three refusals, and more
    assert job.process.poll() is None and left_behind(place.runs / "full")
    ballast.unlink()
    assert job.wait() == 0, job.said()
    refused = job.events("not_saved")
    assert len(refused) > 3 and job.reports() == [] and job.events("resumed") == []
    assert difference(disk.path(place.runs / "full"), long_reference, LONG_STEPS) == 0
    assert (disk.path(place.runs / "full") / STAGE / "checkpoints" / "latest").exists()
    matrix.row(
        35,
        fault="the disk is full from step 30 to 15 s after the last one",
        required="a full disk pauses checkpoints, not training, for as long as the user allows",
        seen=f"{len(refused)} checkpoints were refused, no step was lost; bit-equal end",
        repeated=0,
    )
