"""Fault 39: several processes, containers or nodes on the same files, and a file that is small only to look at."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from job import STAGE, left_behind, start
from ranks import run_ranks

from ups.distributed.launch.claim import claimed
from ups.distributed.parallel import reduce_gradients
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.track.jsonl import read_events

pytestmark = pytest.mark.faults

WRITES = """
import sys; from pathlib import Path; from ups.durable import write
for number in range(300): write(Path(sys.argv[1]), str(number).encode() * 2000)
"""
APPENDS = """
import sys; from ups.track.jsonl import Events
for number in range(100):
    with Events(sys.argv[1]) as events: events.write("crash", who=sys.argv[2], number=number, text="x" * 3000)
"""


def test_fault_39_containers_with_the_same_process_numbers_do_not_take_each_others_files(tmp_path, matrix):
    container = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*container, "true"], check=False, capture_output=True).returncode:
        pytest.skip("process numbers of their own need root, for a namespace")
    command = [*container, sys.executable, "-c", WRITES, str(tmp_path / "file")]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=100)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    matrix.row(
        39,
        fault="two containers, whose processes have the same numbers, replace one file 300 times each",
        required="no collision",
        seen="none; nothing left over",
    )


def test_fault_39_supervisors_that_append_to_one_file_tear_no_event(tmp_path, matrix):
    """Each opens the file for every event, as supervisors do, and cuts what a crash has left."""
    path = tmp_path / "events.jsonl"
    both = [subprocess.Popen([sys.executable, "-c", APPENDS, str(path), who]) for who in "ab"]
    assert [process.wait(100) for process in both] == [0, 0]
    events = read_events(path)
    numbers = {who: [event["number"] for event in events if event["who"] == who] for who in "ab"}
    assert numbers == {"a": list(range(100)), "b": list(range(100))}
    matrix.row(39, fault="two supervisors append 100 events each", required="none is torn", seen="all there, in order")


def test_fault_39_a_damaged_event_does_not_hide_the_others(place, matrix):
    job = start(place, "torn", "training.steps=20", "training.validate_every=20")
    assert job.wait() == 0, job.said()
    path = place.runs / "torn" / STAGE / "events.jsonl"
    path.write_text('{"kind": "torn", \n' + path.read_text())
    done = subprocess.run(
        [sys.executable, "-m", "ups", "explain", str(job.run), "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and json.loads(done.stdout)["outcome"]["state"] == "finished", done.stderr
    with pytest.warns(UserWarning, match="line 1 is damaged"):
        assert [event["step"] for event in read_events(path) if event["kind"] == "step"] == [20]
    matrix.row(
        39, fault="a damaged line in events.jsonl", required="the rest is read", seen="one warning, the rest read"
    )


def test_fault_39_a_lock_that_another_takes_while_it_is_shared_is_not_ours(tmp_path, monkeypatch, matrix):
    """To share a lock, the kernel lets go of it for a moment: here another job comes exactly then."""
    real = fcntl.flock
    other = []

    def flock(file, operation: int) -> None:
        if operation == fcntl.LOCK_SH and not other:
            real(file, fcntl.LOCK_UN)
            other.append((tmp_path / ".lock").open("r+"))
            real(other[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            other[0].truncate(0)
            other[0].write("elsewhere:1")
            other[0].flush()
            real(other[0], fcntl.LOCK_SH)
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="in use by another process"), claimed(tmp_path, "here:1"):
        pass
    other[0].close()
    matrix.row(
        39,
        fault="another job takes the run directory while its lock is made a shared one",
        required="one job a directory",
        seen="refused with a sentence",
    )


@pytest.mark.parametrize("merged", [False, True])
def test_fault_39_a_few_lines_of_aliases_do_not_fill_the_memory(place, matrix, merged):
    line = "a{}: {{<<: [{}]}}" if merged else "a{}: [{}]"
    lines = ["a0: {x: 1}", *(line.format(n, ", ".join([f"*b{n - 1}"] * 10)) for n in range(1, 20))]
    text = "\n".join(line.replace(": ", f": &b{number} ", 1) for number, line in enumerate(lines))
    place.config.write_text(text + "\n")
    began = time.monotonic()
    limited = ["bash", "-c", 'ulimit -v 8000000; exec "$0" "$@"', *place.command("aliases", ranks=None)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "stands for more than 100,000 values" in done.stderr, done.stderr[-500:]
    matrix.row(
        39,
        fault=f"a YAML file of 20 lines that stands for 10¹⁹ values ({'merges' if merged else 'lists'})",
        required="refused with a sentence",
        seen="one sentence, exit 2",
        detect=time.monotonic() - began,
    )
    assert left_behind(Path(place.runs / "aliases")) == []


def _reduced() -> list[float]:
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as rt:
        seen = set()
        for step in range(1100):
            gradients = [torch.ones(4), torch.ones(4) if step == 0 else None]
            reduce_gradients([gradients], rt)
            assert step == 0 or gradients[1] is None
            seen |= set(gradients[0].tolist())
        return sorted(seen)


def test_fault_39_what_steps_do_not_touch_is_not_summed_again(matrix):
    """Left in a bucket it would double in every step on two ranks, and be infinite after a thousand."""
    assert run_ranks(2, _reduced) == [[2.0]] * 2
    matrix.row(
        39,
        fault="a parameter that 1100 steps do not touch",
        required="it is not reduced again",
        seen="no gradient in any of them",
    )
