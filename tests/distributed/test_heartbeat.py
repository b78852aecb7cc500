"""Heartbeats survive the rank, cost next to nothing, and name the rank that keeps the others waiting."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from ups.distributed.faults.heartbeat import (
    Beat,
    Heartbeat,
    culprit,
    deadline,
    heartbeat_path,
    heartbeats_of,
    read_heartbeat,
)
from ups.distributed.runtime.host import process_space


def heartbeat(rank: int = 0, step: int = 5, phase: str = "vote", slowest: float = 0.1, at: float = 0.0) -> Beat:
    return Beat(rank, 0, 1, step, phase, at, slowest)


def test_what_is_marked_is_read(tmp_path):
    mine = Heartbeat(heartbeat_path(tmp_path, 3), rank=3, attempt=2)
    mine.mark("gradients", 7)
    mine.mark("vote")
    found = read_heartbeat(tmp_path / "heartbeats" / "rank_00003")
    assert found is not None
    assert (found.rank, found.attempt, found.pid, found.step, found.phase) == (3, 2, os.getpid(), 7, "vote")
    assert (mine.phase, mine.step) == ("vote", 7)
    assert 0 <= time.monotonic() - found.time < 30
    assert found.host == process_space() and abs(time.time() - found.date) < 30


def test_a_heartbeat_survives_sigkill(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from ups.distributed.faults.heartbeat import Heartbeat;"
        "b = Heartbeat(Path(sys.argv[1]), 1, 0); b.mark('update', 9); os.kill(os.getpid(), 9)"
    )
    path = heartbeat_path(tmp_path, 1)
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == -9
    (found,) = heartbeats_of(tmp_path / "heartbeats")
    assert found.place == "update, step 9"


def test_without_a_path_nothing_is_written_but_the_place_is_known(tmp_path):
    nothing = Heartbeat(None, 0, 0)
    nothing.mark("reduce", 4)
    assert (nothing.phase, nothing.step) == ("reduce", 4)
    assert not list(tmp_path.iterdir())


def test_an_unknown_phase_is_a_bug(tmp_path):
    with pytest.raises(KeyError):
        Heartbeat(heartbeat_path(tmp_path, 0), 0, 0).mark("lunch")


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 120, b"\0" * 120])
def test_what_cannot_be_read_whole_is_nothing(tmp_path, content):
    path = tmp_path / "rank_00000"
    path.write_bytes(content)
    assert read_heartbeat(path) is None
    assert read_heartbeat(tmp_path / "rank_00001") is None


def test_a_rank_that_was_stopped_within_a_mark_is_where_it_was_before(tmp_path):
    """A soak on crowded cores met it: for as long as such a rank had no core, its heartbeat could not be read."""
    path = heartbeat_path(tmp_path, 0)
    mine = Heartbeat(path, 0, 0)
    for step in range(4):
        mine.mark("gradients", step)
        content = bytearray(path.read_bytes())
        counters = [int.from_bytes(content[at : at + 8], "little") for at in (0, 52)]
        newest = 52 * counters.index(max(counters))
        content[newest + 44] ^= 1  # the counter at its end
        path.with_name("rank_00001").write_bytes(content)
        found = read_heartbeat(path.with_name("rank_00001"))
        assert found is not None
        assert (found.phase, found.step) == (("gradients", step - 1) if step else ("start", 0))


def test_a_reader_never_sees_half_a_mark(tmp_path):
    path = heartbeat_path(tmp_path, 0)
    mine = Heartbeat(path, 0, 0)
    end = time.monotonic() + 0.5

    def write() -> None:
        while time.monotonic() < end:
            mine.mark("gradients", 1)
            mine.mark("update", 2)

    thread = threading.Thread(target=write)
    thread.start()
    seen = {
        (found.step, found.phase)
        for _ in iter(lambda: time.monotonic() < end, False)
        if (found := read_heartbeat(path))
    }
    thread.join()
    assert seen <= {(0, "start"), (1, "gradients"), (2, "update")}
    assert seen


def test_a_mark_costs_microseconds(tmp_path):
    mine = Heartbeat(heartbeat_path(tmp_path, 0), 0, 0)

    def microseconds() -> float:
        began = time.perf_counter()
        for step in range(2000):
            mine.mark("vote", step)
        return (time.perf_counter() - began) / 2000 * 1e6

    assert min(microseconds() for _ in range(10)) < 10  # about one; shared cores are slow now and then


def test_the_slowest_step_leaves_out_what_is_no_step(tmp_path):
    path = heartbeat_path(tmp_path, 0)
    mine = Heartbeat(path, 0, 0)
    mine.mark("first step", 0)
    mine.mark("gradients", 0)
    time.sleep(0.05)
    mine.mark("update", 0)
    mine.mark("gradients", 1)
    assert (found := read_heartbeat(path)) is not None and found.slowest == 0  # the first step's compilation is none
    time.sleep(0.02)
    mine.mark("validate")
    time.sleep(3)
    mine.mark("gradients", 2)
    assert (found := read_heartbeat(path)) is not None
    assert 0.02 <= found.slowest < 3


def test_a_step_has_the_given_deadline_or_twenty_slow_steps():
    assert deadline(heartbeat(slowest=0.1), 12) == 12
    assert deadline(heartbeat(slowest=2.0), 12) == 40
    assert deadline(heartbeat(slowest=0.0), 12) >= 300  # nobody knows yet how long a step is
    for phase in ("start", "init", "data", "model", "shard", "first step", "validate", "checkpoint", "end"):
        assert deadline(heartbeat(phase=phase), 12) >= 300


def test_the_culprit_is_the_rank_the_others_wait_for():
    waiting = [heartbeat(0, 8, "vote"), heartbeat(2, 8, "vote")]
    assert culprit([*waiting, heartbeat(1, 7, "checkpoint")]) == heartbeat(1, 7, "checkpoint")
    assert culprit([*waiting, heartbeat(1, 8, "gradients")]) == heartbeat(1, 8, "gradients")
    equal = [heartbeat(0, at=5.0), heartbeat(1, at=3.0)]
    assert culprit(equal) == equal[1]
    assert culprit([]) is None


def test_a_rank_that_is_stopped_is_the_culprit_wherever_it_stands():
    """It may have come last into the collective where all are, or be ahead of those it still owes a message."""
    sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(3)]
    try:
        os.kill(sleepers[1].pid, signal.SIGSTOP)
        os.waitpid(sleepers[1].pid, os.WUNTRACED)
        equal = [replace(heartbeat(rank, at=float(rank)), pid=sleeper.pid) for rank, sleeper in enumerate(sleepers)]
        assert culprit(equal) == equal[1]
        ahead = replace(equal[1], step=6)
        assert culprit([equal[0], ahead, equal[2]]) == ahead
        os.kill(sleepers[1].pid, signal.SIGCONT)
        os.waitpid(sleepers[1].pid, os.WCONTINUED)
        assert culprit([equal[0], ahead, equal[2]]) == equal[0]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_a_rank_that_once_waited_long_does_not_stretch_the_deadline():
    waited = heartbeat(0, 8, "vote", slowest=100.0)
    found = culprit([waited, heartbeat(1, 9, "vote", slowest=0.1)])
    assert found == replace(waited, slowest=0.1)
