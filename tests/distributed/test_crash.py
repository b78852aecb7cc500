"""The report of a crash names the rank that failed first, and shows where every rank was."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from pathlib import PurePosixPath

import pytest
from supervised import start

from ups.cli.main import app
from ups.distributed.faults.crash import PeerFailed, attempt_directory, is_connection_loss, record_failure
from ups.distributed.faults.crash_report import Death, Hang, last_frame, latest_report, write_crash_report
from ups.distributed.faults.explain import explanation
from ups.distributed.faults.heartbeat import Heartbeat, heartbeat_path, read_heartbeat
from ups.distributed.launch.outcome import Outcome, decide, reserve
from ups.distributed.runtime.host import host_state, oom_kills
from ups.errors import UserError


def failed(directory, rank, error, details=None):
    heartbeat = Heartbeat(heartbeat_path(directory, rank), rank, 0)
    heartbeat.mark("gradients", 7)
    try:
        raise error
    except Exception as caught:
        record_failure(directory, rank, 0, caught, heartbeat, details or {})


def report_of(directory, deaths, hang=None):
    report = write_crash_report(
        directory, deaths, attempt=0, command=["ups", "train", "a b"], before=host_state(), hang=hang
    )
    return json.loads(report.path.with_suffix(".json").read_text())


def test_an_abort_within_the_handler_of_a_segmentation_fault_is_told_as_the_fault(tmp_path):
    folder = attempt_directory(tmp_path, 0)
    folder.mkdir(parents=True)
    frame = 'Current thread 0x1 (most recent call first):\n  File "/a/native.py", line 7 in touch\n'
    text = f"Fatal Python error: Segmentation fault\n\n{frame}\nFatal Python error: Aborted\n\n{frame}"
    (folder / "rank_1.stacks").write_text(text)
    report = report_of(tmp_path, [Death(1, 11, -signal.SIGABRT)])
    assert "rank 1 was killed by SIGSEGV" in report["what"] and "/a/native.py:7" in report["cause"]
    (folder / "rank_1.stacks").write_text(text.partition("\nFatal Python error: Aborted")[2])
    assert "SIGABRT" in report_of(tmp_path, [Death(1, 11, -signal.SIGABRT)])["what"]


@pytest.mark.parametrize("stopped", [False, True])
def test_ranks_beyond_a_collective_are_blamed_unless_the_one_in_it_was_stopped(tmp_path, stopped):
    """A stopped rank may have given its part before; and once it goes on, to write its stack, all go on."""
    for rank, phase, step in ((0, "gradients", 16), (1, "reduce", 14)):
        Heartbeat(heartbeat_path(tmp_path, rank), rank, 0).mark(phase, step)
    waiting = read_heartbeat(heartbeat_path(tmp_path, 1))
    assert waiting is not None
    report = report_of(tmp_path, [], Hang(waiting, 12.2, 12.0, stopped=stopped))
    assert (report["kind"], report["rank"]) == ("hang", 1 if stopped else 0)
    if stopped:
        assert report["what"].startswith("rank 1 was stopped and has not moved for 12.2 s in reduce, step 14")
        assert "SIGSTOP" in report["cause"]
    else:
        assert "rank 0 is in gradients, step 16, without a collective" in report["what"]


def test_an_exception_is_blamed_and_not_its_survivors(tmp_path):
    job = start(tmp_path, ranks=3, fault="raise at update rank 1 step 5", gloo=True)
    assert job.wait(60) == 0
    (report,) = job.reports()
    assert (report["rank"], report["kind"], report["phase"], report["step"]) == (1, "exception", "update", 5)
    assert "RuntimeError" in report["what"] and "injection.py" in report["cause"]
    assert (report["task"], report["shapes"]) == ("burgers", [[8, 128]])
    survivors = [entry["exception"] for entry in report["ranks"] if entry["rank"] != 1 and entry["exception"]]
    print([survivor["message"] for survivor in survivors])


def test_a_segmentation_fault_leaves_its_python_stack(tmp_path):
    job = start(tmp_path, fault="segv at update rank 1 step 5")
    assert job.wait() == 0
    (report,) = job.reports()
    assert (report["rank"], report["kind"]) == (1, "signal") and "SIGSEGV" in report["what"]
    assert "string_at" in report["ranks"][1]["stacks"] and "string_at" in report["cause"]


def test_python_and_cpp_stacks_both_survive_a_fatal_signal(tmp_path):
    script = (
        "import ctypes, sys, torch; from pathlib import Path; from ups.distributed.faults.crash import arm;"
        "arm(Path(sys.argv[1]), 0, 0); ctypes.string_at(0)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGSEGV
    assert "string_at" in (tmp_path / "crash" / "attempt_000" / "rank_0.stacks").read_text()
    assert "frame #" in ended.stderr or "libtorch" in ended.stderr or "SIGSEGV" in ended.stderr


def test_a_signal_is_blamed_before_an_exception(tmp_path):
    failed(tmp_path, 0, RuntimeError("a strange end"))
    found = report_of(tmp_path, [Death(0, 10, 1, order=0), Death(1, 11, -signal.SIGSEGV, order=1)])
    assert (found["rank"], found["kind"]) == (1, "signal")


def test_an_abort_by_a_watchdog_is_blamed_after_the_exception_of_a_peer(tmp_path):
    """NCCL aborts a rank whose peer is gone, often before that peer has left itself."""
    failed(tmp_path, 0, RuntimeError("a strange end"))
    found = report_of(tmp_path, [Death(1, 11, -signal.SIGABRT, order=0), Death(0, 10, 1, order=1)])
    assert (found["rank"], found["kind"]) == (0, "exception")
    failed(tmp_path, 0, ConnectionResetError("Connection closed by peer"))
    found = report_of(tmp_path, [Death(1, 11, -signal.SIGABRT, order=0), Death(0, 10, 1, order=1)])
    assert (found["rank"], found["kind"]) == (1, "signal")


def test_the_report_says_which_collectives_nccl_had_not_ended_and_runs_no_code(tmp_path):
    folder = attempt_directory(tmp_path, 0)
    folder.mkdir(parents=True)
    entries = [
        {"profiling_name": "nccl:all_reduce", "collective_seq_id": number, "state": state}
        for number, state in ((3, "completed"), (4, "scheduled"))
    ]
    (folder / "flight_0").write_bytes(pickle.dumps({"entries": entries}))
    (folder / "flight_1").write_bytes(pickle.dumps({"entries": [PurePosixPath("of another kind")]}))
    report = report_of(tmp_path, [Death(0, 10, 1)])
    zero, one = (report["flight_recorder"][f"crash/attempt_000/flight_{rank}"] for rank in range(2))
    assert zero == ["nccl:all_reduce, number 4, scheduled"] and one[0].startswith("cannot be read: it asks for pathlib")
    text = max((tmp_path / "crash").glob("*.md")).read_text()
    assert "flight_0: nccl:all_reduce, number 4, scheduled" in text


def test_an_abort_by_a_watchdog_is_blamed_after_another_signal(tmp_path):
    found = report_of(tmp_path, [Death(0, 10, -signal.SIGABRT, order=0), Death(1, 11, -signal.SIGKILL, order=1)])
    assert found["rank"] == 1


def test_an_exception_is_blamed_before_a_lost_connection_whoever_was_first(tmp_path):
    failed(tmp_path, 0, ConnectionResetError("Connection closed by peer"))
    failed(tmp_path, 2, PeerFailed("rank 1 failed"))
    failed(tmp_path, 1, ValueError("braces {like these} stay"), {"task": "darcy", "shapes": {"a": [2, 3]}})
    found = report_of(tmp_path, [Death(0, 10, 1, 0), Death(2, 12, 1, 1), Death(1, 11, 1, 2)])
    assert (found["rank"], found["kind"], found["task"], found["shapes"]) == (1, "exception", "darcy", {"a": [2, 3]})
    assert "braces {like these} stay" in found["what"]
    assert found["command"] == "ups train 'a b'"


def test_only_lost_connections_point_at_the_network(tmp_path):
    failed(tmp_path, 0, ConnectionResetError("Connection closed by peer"))
    found = report_of(tmp_path, [Death(0, 10, 1)])
    assert found["kind"] == "connection" and "network" in found["cause"]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"), True),
        (RuntimeError("[gloo/transport/tcp/pair.cc:144] recv timed out"), True),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), True),
        (BrokenPipeError(), True),
        (PeerFailed("rank 3 failed"), True),
        (RuntimeError("CUDA out of memory"), False),
        (RuntimeError("cannot restore the peer review"), False),
        (ValueError("gloo connection closed"), False),
    ],
)
def test_lost_connections_are_told_from_failures(error, lost):
    assert is_connection_loss(error) is lost


def test_the_innermost_frame_is_found_in_either_kind_of_text():
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n  File "b.py", line 2, in g\nValueError'
    stacks = 'Thread 0x1:\n  File "c.py", line 3 in h\n\nCurrent thread 0x2:\n  File "d.py", line 4 in i\n'
    assert last_frame(trace) == "b.py:2 (g)"
    assert last_frame(stacks) == "d.py:4 (i)"
    twice = f"Fatal Python error: Segmentation fault\n\n{stacks}\nFatal Python error: Aborted\n\nCurrent thread 0x3:\n"
    assert last_frame(twice + '  File "e.py", line 5 in wait\n') == "d.py:4 (i)"
    assert last_frame("") is None


def test_the_host_tells_its_memory():
    state = host_state()
    assert state.memory_free and state.memory_total and 0 < state.memory_free <= state.memory_total
    assert oom_kills(state, state) in (0, None)


def test_explain_prints_the_latest_report(tmp_path, capsys):
    (tmp_path / "config.yaml").touch()
    text, content = explanation(tmp_path)
    assert "has not ended" in text and content == {"outcome": None, "crash": None}
    reserve(tmp_path)
    decide(tmp_path, Outcome("stopped", "saved at step 40"))
    assert "saved at step 40" in explanation(tmp_path)[0]
    failed(tmp_path, 0, ValueError("older"))
    report_of(tmp_path, [Death(0, 10, 1)])
    failed(tmp_path, 0, ValueError("newer"))
    report_of(tmp_path, [Death(0, 10, 1)])
    app(["explain", str(tmp_path)], standalone_mode=False)
    printed = capsys.readouterr().out
    assert "ValueError: newer" in printed and "older" not in printed
    app(["explain", str(tmp_path), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["crash"]["rank"] == 0
    assert latest_report(tmp_path) is not None


def test_a_node_that_only_lost_a_connection_does_not_hide_the_cause(tmp_path):
    failed(tmp_path, 1, ValueError("the cause"))
    report_of(tmp_path, [Death(1, 11, 1)])
    (tmp_path / "crash" / "attempt_000" / "rank_1.json").unlink()
    failed(tmp_path, 0, ConnectionResetError("Connection closed by peer"))
    report_of(tmp_path, [Death(0, 10, 1)])
    latest = latest_report(tmp_path)
    assert latest is not None and "the cause" in latest.read_text()


def test_explaining_what_is_no_run_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="is not a run"):
        explanation(tmp_path)
