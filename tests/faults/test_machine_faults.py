"""Faults 17 to 19, 30 and 34: a full or poor disk, tight limits, neighbours, and files that are not ours."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest
from job import STAGE, difference, start
from machines import LONG, LONG_STEPS, MACHINE, Namespace, fill, start_inside

from ups import checkpoint
from ups.track.jsonl import read_events
from ups.training.saving import RETRY

pytestmark = pytest.mark.faults

MEGABYTE = 2**20


def test_fault_17_checkpoints_and_events_that_a_full_disk_refuses_are_written_when_there_is_room(
    place, long_reference, matrix
):
    """It stays full from step 10 to beyond the last one, where only the checkpoint is left to be written."""
    place.runs.mkdir()
    disk = Namespace("-m", f"mount -t tmpfs -o size=16m tmpfs {place.runs}", "a small disk")
    try:
        run = disk.path(place.runs / "full")
        (run / STAGE).mkdir(parents=True)
        page = json.dumps({"kind": "padding"}).ljust(4095) + "\n"  # a last page with room in it would take events
        (run / STAGE / "events.jsonl").write_text(page)
        long = (f"training.steps={LONG_STEPS}", "training.validate_every=100", "training.checkpoint_every=80")
        job = start_inside(disk, place, "full", *long)
        job.reach(10)
        fill(disk.path(place.runs / "ballast"))
        job.until(lambda: (0, 0, LONG_STEPS - 1, "checkpoint") in job.times, "it did not train to the end")
        end = time.monotonic()
        job.until(lambda: time.monotonic() > end + RETRY + 2, "it ended")
        assert job.process.poll() is None and checkpoint.steps(run / STAGE / "checkpoints") == []
        waiting = len(read_events(run / STAGE / "events.jsonl"))
        assert waiting == 1
        disk.path(place.runs / "ballast").unlink()
        room = time.monotonic()
        job.until(lambda: bool(checkpoint.steps(run / STAGE / "checkpoints")), "no checkpoint was written")
        recovered = time.monotonic() - room
        assert job.wait() == 0, job.said()
        assert job.reports() == [] and job.events("resumed") == []
        assert difference(run, long_reference, LONG_STEPS) == 0
        refused = job.events("not_saved")
        assert [event["in_a_row"] for event in refused] == list(range(1, len(refused) + 1)) and len(refused) >= 3
        assert all("No space left" in event["reason"] and "make room" in event["reason"] for event in refused)
        steps = [event["step"] for event in job.events("step")]
        assert steps == list(range(20, LONG_STEPS + 1, 20))
        times = [event["time"] for event in read_events(run / STAGE / "events.jsonl")[1:]]
        assert times == sorted(times)
        log = (run / "logs" / "rank0.log").read_text()
        assert log.count("cannot write events") == 1
    finally:
        disk.end()
    matrix.row(
        17,
        fault="the disk of a job on two ranks is full from step 10 to beyond its end",
        required="checkpoint: training goes on, retried; events: kept in memory, one warning",
        seen=f"training went on to the last step; checkpoints were refused {len(refused)} times, an event each; with "
        "room the last one was written; events waited, one warning, all in order; bit-equal end",
        recover=recovered,
        repeated=0,
    )


@pytest.fixture
def cramped():
    """64 MB of shared memory."""
    machine = Namespace("-m", "mount -t tmpfs -o size=64m tmpfs /dev/shm", "a small /dev/shm")
    yield machine
    machine.end()


def test_fault_18_a_job_on_two_ranks_uses_no_shared_memory_and_few_descriptors(cramped, place, reference, matrix):
    job = start_inside(cramped, place, "cramped", before="ulimit -n 256;")
    shared = cramped.path(Path("/dev/shm"))
    most = {"shared": 0, "files": 0, "descriptors": 0}

    def measure() -> bool:
        disk = os.statvfs(shared)
        assert disk.f_blocks * disk.f_frsize == 64 * MEGABYTE
        most["shared"] = max(most["shared"], (disk.f_blocks - disk.f_bfree) * disk.f_frsize)
        most["files"] = max(most["files"], len(os.listdir(shared)))
        for pid in (job.process.pid, *(heartbeat.pid for heartbeat in job.last.values())):
            if os.path.isdir(f"/proc/{pid}/fd"):
                most["descriptors"] = max(most["descriptors"], _open_files(pid))
        return job.process.poll() is not None

    job.until(measure, "the job did not end")
    assert job.wait() == 0, job.said()
    assert difference(job.run, reference) == 0
    assert most["shared"] == 0 and most["files"] == 0 and os.listdir(shared) == []
    assert 0 < most["descriptors"] < 256
    matrix.row(
        18,
        fault="/dev/shm of 64 MB and ulimit -n 256",
        required="our code uses neither",
        seen=f"bit-equal end; at most {most['shared']} bytes in /dev/shm, {most['descriptors']} open files a process",
        repeated=0,
    )


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # it has just ended
        return 0


def test_fault_18_preflight_says_what_nccl_needs(cramped, matrix):
    ask = "from ups.distributed.runtime.preflight import preflight; print('\\n'.join(preflight(cuda=True, ranks=8)))"
    shell = cramped.enter("sh", "-c", 'ulimit -n 256; exec "$0" "$@"', sys.executable, "-c", ask)
    said = subprocess.run(shell, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert len(said) == 2
    assert re.fullmatch(r"at most 256 open files .* NCCL may need \d+; raise `ulimit -n`", said[0])
    assert re.fullmatch(r"/dev/shm has 64 MB free and NCCL may need 512 MB; enlarge it .*", said[1])
    matrix.row(
        18,
        fault="the same, and eight GPU ranks (asked of the preflight itself)",
        required="preflight says what NCCL needs",
        seen="; ".join(said),
    )


def test_fault_19_two_jobs_on_one_host_do_not_disturb_each_other(place, long_reference, matrix):
    jobs = [start(place, name, *LONG) for name in ("one", "other")]
    assert [job.wait() for job in jobs] == [0, 0], [job.said() for job in jobs]
    assert [job.reports() for job in jobs] == [[], []]
    assert [difference(job.run, long_reference, LONG_STEPS) for job in jobs] == [0, 0]
    one, other = ([datetime.fromisoformat(event["time"]) for event in job.events("step")] for job in jobs)
    together = (min(one[-1], other[-1]) - max(one[0], other[0])).total_seconds()
    assert together > 0, "one had ended when the other began to train"
    matrix.row(
        19,
        fault="two jobs of two ranks on one host",
        required="no effect",
        seen=f"both end bit-equal to one that was alone; they trained together for {together:.1f} s",
        repeated=0,
    )


@pytest.mark.limit(60)
@pytest.mark.parametrize("nodes", ["1", "1:2"])
def test_fault_19_a_port_that_something_else_holds_is_one_sentence(place, matrix, nodes):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        began = time.monotonic()
        job = start(place, "taken", "--rendezvous", taken, "--nodes", nodes)
        assert job.wait(50) == 2, job.said()
        seconds = time.monotonic() - began
    assert job.said().splitlines() == [
        f"error: --rendezvous {taken}: the port is taken by something else; name another, or leave it out"
    ]
    assert not (job.run / "logs").exists(), "ranks were started"
    matrix.row(
        19,
        fault=f"the port of --rendezvous is taken (--nodes {nodes})",
        required="one sentence",
        seen=f"exit code 2 after {seconds:.0f} s, no rank started: “{job.said().strip()}”".replace(taken, "HOST:PORT"),
        detect=seconds,
    )


def test_fault_30_a_file_system_without_hard_links_and_fallocate_is_enough(place, reference, matrix):
    job = start(place, "poor", **MACHINE, MACHINE_LACKS="link,posix_fallocate")
    assert job.wait() == 0, job.said()
    assert job.reports() == [] and job.json("outcome.json")["state"] == "finished"
    assert difference(job.run, reference) == 0
    matrix.row(
        30,
        fault="a file system without hard links and fallocate",
        required="works, or one sentence at the start",
        seen="bit-equal end",
        repeated=0,
    )


@pytest.mark.parametrize("name", ["config.yaml", "report.html"])
def test_fault_34_a_file_of_the_user_is_not_replaced(place, matrix, name):
    """`ups train experiments/x/config.yaml --runs experiments`, where the run's own name is x."""
    folder = place.runs / "mine"
    folder.mkdir(parents=True)
    (folder / name).write_text(place.config.read_text() if name == "config.yaml" else "mine")
    before = (folder / name).read_text()
    command = place.command("mine")
    if name == "config.yaml":
        command[4] = str(folder / name)
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and f"mine holds a {name} that is no run's and would be replaced" in done.stderr
    assert (folder / name).read_text() == before and [entry.name for entry in folder.iterdir()] == [name]
    matrix.row(
        34,
        fault=f"the run directory holds the user's own {name}",
        required="refused; no file of the user's is ever replaced",
        seen="one sentence, exit 2, nothing touched",
    )
