"""Fault 42: the run directory is removed, or takes nothing more for another reason than a full disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from job import Job, Place, difference, launch, start
from machines import LONG, LONG_STEPS, Namespace, start_inside

from ups import checkpoint

pytestmark = [pytest.mark.faults, pytest.mark.limit(240)]

GOES_ON = "said, and restarted when it was writable again; bit-equal end"


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_fault_42_a_run_directory_that_is_gone_ends_its_job_and_does_not_come_back(place, matrix, how):
    """Else the next job of that name goes on from this one's checkpoints, whatever its own settings."""
    job = start(place, "gone", *LONG)
    job.reach(25)
    if how == "moved":
        job.run.rename(job.run.with_name("elsewhere"))
    else:
        while job.run.exists():  # a job may write while it is removed
            shutil.rmtree(job.run, ignore_errors=True)
    went = time.monotonic()
    assert job.wait() == 2
    assert f"{job.run} was removed or moved while its job ran, which is ended" in job.said()
    assert not job.run.exists(), sorted(job.run.rglob("*"))
    matrix.row(
        42,
        fault=f"the run directory is {how} while its job runs",
        required="one sentence; nothing is written there for the next job to find",
        seen="one sentence, exit 2, nothing there",
        detect=time.monotonic() - went,
    )


def unwritable_and_back(job: Job, matrix, long_reference: Path, fault: str, reason: str, stop, go_on) -> None:
    """Checkpoints are refused while training goes on; a rank that dies meanwhile starts again afterwards."""
    job.until(lambda: bool(checkpoint.steps(job.stage / "checkpoints")), "no checkpoint was written")
    job.reach(30)
    stop()
    job.until(lambda: bool(job.events("not_saved")), "no checkpoint was refused")
    os.kill(job.pid(1), signal.SIGKILL)
    said = f"cannot be written to ({reason}); the ranks start again when it can"
    job.until(lambda: said in job.said(), f"not said: {said}")
    time.sleep(2)
    assert job.process.poll() is None
    go_on()
    assert job.wait() == 0, job.said()
    assert difference(job.run, long_reference, LONG_STEPS) == 0
    matrix.row(42, fault=fault, required="as a full disk: paused, not ended", seen=GOES_ON)


def test_fault_42_a_run_directory_that_becomes_read_only_is_waited_for(place, long_reference, matrix):
    """Its permissions change; the job's root has lost the right to overlook them."""
    place.runs.mkdir()
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
    if os.geteuid() == 0 and subprocess.run([*drop, sys.executable, "-c", ""]).returncode:
        pytest.skip("a read-only directory needs setpriv where tests run as root")
    command = [*(drop if os.geteuid() == 0 else []), *place.command("closed", *LONG)]
    job = launch(command, place.runs / "closed", place.runs.parent / "closed.out", {})

    def allow(mode: int) -> None:
        for folder in (job.run, *(path for path in job.run.rglob("*") if path.is_dir())):
            folder.chmod(mode)

    unwritable_and_back(
        job,
        matrix,
        long_reference,
        "the run directory becomes read-only; then SIGKILL of rank 1",
        "Permission denied",
        lambda: allow(0o500),
        lambda: allow(0o700),
    )


def test_fault_42_a_disk_without_inodes_is_waited_for(place: Place, long_reference, matrix):
    place.runs.mkdir()
    disk = Namespace("-m", f"mount -t tmpfs -o size=64m tmpfs {place.runs}", "a disk without inodes")
    try:
        job = start_inside(disk, place, "full", *LONG)

        def limit(inodes: int) -> None:
            disk.do(f"mount -o remount,nr_inodes={inodes} {place.runs}")

        def stop() -> None:
            used = os.statvfs(disk.path(place.runs))
            limit(used.f_files - used.f_ffree + 5)
            for number in range(200):
                try:
                    (disk.path(place.runs) / f"empty{number}").touch()
                except OSError:
                    return

        unwritable_and_back(
            job,
            matrix,
            long_reference,
            "the disk has no inodes left; then SIGKILL of rank 1",
            "No space left on device",
            stop,
            lambda: limit(100_000),
        )
    finally:
        disk.end()
