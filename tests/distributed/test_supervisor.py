"""A supervised job ends as it should, whatever happens to its ranks, and leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest
from supervised import alive, start

from ups.distributed.faults.crash_report import latest_report
from ups.distributed.launch.outcome import Outcome, decide, forget, outcome_of
from ups.distributed.launch.supervisor import rank_variables, supervise
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.spinning import SPIN, spin_briefly
from ups.errors import UserError
from ups.track.jsonl import read_events

pytestmark = pytest.mark.faults  # each starts and restarts processes; rows 7 and 11 do so in `make test`


def test_a_job_without_trouble_ends_with_its_decision(tmp_path):
    job = start(tmp_path, steps=3)
    assert job.wait() == 0
    assert "outcome: finished" in job.said()
    assert not job.reports()
    assert not any(map(alive, job.pids()))


def test_a_killed_rank_restarts_all_and_the_report_names_it(tmp_path):
    job = start(tmp_path, fault="kill at update rank 1 step 7")
    assert job.wait() == 0
    assert (
        "rank 1 was killed by SIGKILL in update, step 7; restarting from the last checkpoint (attempt 1)" in job.said()
    )
    (report,) = job.reports()
    assert (report["rank"], report["phase"], report["step"], report["kind"]) == (1, "update", 7, "signal")
    assert report["ranks"][1]["signal"] == "SIGKILL"
    assert len(job.pids()) == 4
    (event,) = [event for event in read_events(tmp_path / "events.jsonl") if event["kind"] == "crash"]
    assert event["rank"] == 1 and (tmp_path / event["report"]).is_file()
    assert event["seconds_to_detect"] < 1


def test_a_dead_rank_is_found_in_under_a_second_and_all_run_again_soon(tmp_path):
    job = start(tmp_path, steps=2000)
    job.started(0)
    pid, _ = job.started(1)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    job.wait_for("restarting")
    found = time.monotonic() - killed
    again = max(job.started(rank, attempt=1)[1] for rank in (0, 1)) - killed
    print(f"said after {found:.2f} s, running again after {again:.2f} s")
    job.signal(signal.SIGTERM)
    assert job.wait() == 75
    assert found < 5  # a look every 0.1 s, up to 1 s for the stacks, the report; shared cores are slow now and then
    assert again < 10
    assert job.reports()[0]["seconds_to_detect"] < 1


def test_leaving_with_code_0_without_a_decision_is_a_crash(tmp_path):
    job = start(tmp_path, fault="exit0 at update rank 1 step 3")
    assert job.wait() == 0
    (report,) = job.reports()
    assert report["rank"] == 1 and report["kind"] == "exit" and "code 0" in report["what"]


def test_a_sleeping_rank_is_found_at_its_deadline_with_its_own_stack(tmp_path):
    job = start(tmp_path, fault="sleep at gradients rank 1 step 7", deadline=1.0)
    assert job.wait() == 0
    (report,) = job.reports()
    assert (report["rank"], report["kind"], report["phase"], report["step"]) == (1, "hang", "gradients", 7)
    assert report["seconds_to_detect"] < 1.0 + 2
    assert "injection.py" in report["ranks"][1]["stacks"] and "_happen" in report["cause"]
    assert "wait_for_peers" in report["ranks"][0]["stacks"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_lets_the_ranks_save_and_leave(tmp_path, number):
    job = start(tmp_path, steps=100_000)
    for rank in (0, 1):
        job.started(rank)
    job.signal(number)
    assert job.wait() == 75
    assert json.loads((tmp_path / "outcome.json").read_text())["state"] == "stopped"
    assert not any(map(alive, job.pids()))
    assert not job.reports()


def test_ranks_that_do_not_leave_are_killed_when_their_grace_is_over(tmp_path):
    job = start(tmp_path, steps=100_000, fault="sleep at update rank 1 step 2", grace=1.0)
    for rank in (0, 1):
        job.started(rank)
    time.sleep(0.5)  # now rank 1 sleeps
    began = time.monotonic()
    job.signal(signal.SIGTERM)
    assert job.wait() == 75
    assert 0.8 < time.monotonic() - began < 4
    assert "did not leave in time" in job.said()
    assert not any(map(alive, job.pids()))


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    job = start(tmp_path, steps=100_000, fault="sleep at update rank 1 step 2", grace=30.0)
    for rank in (0, 1):
        job.started(rank)
    time.sleep(0.5)  # now rank 1 sleeps
    job.signal(signal.SIGINT)
    job.wait_for("stopping")
    job.signal(signal.SIGINT)
    assert job.wait(5) == 75
    assert not any(map(alive, job.pids()))


def test_no_rank_outlives_its_supervisor(tmp_path):
    job = start(tmp_path, steps=100_000)
    pids = [job.started(rank)[0] for rank in (0, 1)]
    job.signal(signal.SIGKILL)
    end = time.monotonic() + 2
    while any(map(alive, pids)):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_crash_in_every_attempt_gives_up_and_names_the_cause(tmp_path):
    fault = "; ".join(f"raise at update rank 1 step 0 attempt {attempt}" for attempt in range(5))
    job = start(tmp_path, fault=fault, restarts=1)
    assert job.wait() == 1
    assert len(job.reports()) == 2
    outcome = json.loads((tmp_path / "outcome.json").read_text())
    assert outcome["state"] == "gave_up"
    assert "a failure on purpose at update" in outcome["reason"] and "crash/" in outcome["reason"]
    assert not any(map(alive, job.pids()))


def test_crashes_with_progress_between_them_are_not_a_loop(tmp_path):
    from ups.distributed.launch import backoff

    (tmp_path / "stages" / "operator" / "checkpoints" / "step_00000010").mkdir(parents=True)
    (tmp_path / "backoff.json").write_text('{"micro_batch": {"burgers": 4}}')
    assert [backoff.count_crash(tmp_path, attempt) for attempt in (0, 1, 1)] == [1, 2, 2]
    (tmp_path / "stages" / "operator" / "checkpoints" / "step_00000020").mkdir()
    (tmp_path / "stages" / "operator" / "checkpoints" / "step_00000030.tmp").mkdir()
    assert backoff.count_crash(tmp_path, 2) == 1
    assert backoff.count_crash(tmp_path, 3) == 2
    backoff.clear(tmp_path)
    assert json.loads((tmp_path / "backoff.json").read_text()) == {"micro_batch": {"burgers": 4}}


def test_a_mistake_found_by_one_rank_ends_the_job_at_once(tmp_path):
    job = start(tmp_path, ranks=3, fault="skip at update rank 1 step 2; sleep at update rank 2 step 2")
    began = time.monotonic()
    assert job.wait() == 2
    assert time.monotonic() - began < 15
    assert "outcome: mistake: the file is not there" in job.said()
    assert not any(map(alive, job.pids()))
    assert not job.reports()


def test_two_jobs_on_one_host_do_not_disturb_each_other(tmp_path):
    first = start(tmp_path / "first", fault="kill at update rank 1 step 7")
    second = start(tmp_path / "second", steps=100)
    assert (first.wait(), second.wait()) == (0, 0)
    assert len(first.pids()) == 4 and len(second.pids()) == 2


def test_two_nodes_restart_together_and_the_cause_is_not_hidden(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{probe.getsockname()[1]}"
    fault = "kill at update rank 1 step 7"
    first = start(tmp_path, ranks=1, nodes="2", rendezvous=place, fault=fault)
    time.sleep(0.5)  # the first one hosts; the second finds the port taken by its own job
    second = start(tmp_path, ranks=1, nodes="2", rendezvous=place, fault=fault)
    assert (first.wait(), second.wait()) == (0, 0)
    report = latest_report(tmp_path)
    assert report is not None and "rank 1 was killed by SIGKILL in update, step 7" in report.read_text()
    assert {found["attempt"] for found in first.reports()} == {0}


def test_a_port_that_is_taken_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for nodes in ("1", "1:2"):
            job = start(tmp_path, nodes=nodes, rendezvous=place)
            assert job.wait() == 2
            assert job.said() == (
                f"error: --rendezvous {place}: the port is taken by something else; name another, or leave it out\n"
            )


@pytest.mark.parametrize(
    ("nodes", "place", "says"),
    [
        ("2", None, "needs --rendezvous"),
        ("3:2", None, "MIN:MAX"),
        ("x", None, "MIN:MAX"),
        ("1", "nowhere", "give HOST:PORT"),
        ("1", "no.such.host.invalid:29500", "is no host known here"),
    ],
)
def test_a_wrong_rendezvous_is_one_sentence(tmp_path, nodes, place, says):
    with pytest.raises(UserError, match=says):
        supervise(["true"], tmp_path, 1, config=RuntimeConfig(), nodes=nodes, address=place)


@pytest.mark.parametrize("earlier", ["finished", "stopped"])
def test_a_mistake_on_any_rank_leaves_a_finished_run_finished_and_no_other(tmp_path, earlier):
    forget(tmp_path)
    decide(tmp_path, Outcome(earlier, ""))
    before = forget(tmp_path)
    assert before == Outcome(earlier, "")
    mistake = Outcome("mistake", "there is nothing to profile", rank=1)
    decide(tmp_path, mistake)  # as a rank writes it, which the supervisor reads
    assert outcome_of(tmp_path) == mistake
    decide(tmp_path, mistake, before)
    assert outcome_of(tmp_path) == (before if earlier == "finished" else mistake)


def test_the_users_own_variables_win_save_the_one_that_makes_numbers_wrong(tmp_path):
    given = {"OMP_NUM_THREADS": "7", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    found = rank_variables(tmp_path, 2, RuntimeConfig(device="cpu"), given, interface="lo")
    assert "OMP_NUM_THREADS" not in found
    assert found["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert (found["OMP_WAIT_POLICY"], found[SPIN]) == ("PASSIVE", "0")
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_ranks_do_not_spin_because_the_command_that_starts_them_does(tmp_path):
    def spins(**given: str) -> str | None:
        return rank_variables(tmp_path, 2, RuntimeConfig(device="cpu"), given, interface="lo").get(SPIN)

    environment: dict[str, str] = {}
    spin_briefly(environment)
    assert spins(**environment) == "0"
    assert spins(GOMP_SPINCOUNT="77") is spins(OMP_WAIT_POLICY="ACTIVE") is None
