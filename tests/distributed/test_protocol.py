"""One step on several ranks when something goes wrong on one of them: nobody waits, nobody differs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import free_port, run_ranks
from small import prepared, small_trainer, whole

from ups.distributed.faults import injection
from ups.distributed.faults.crash import PeerFailed
from ups.distributed.launch import backoff
from ups.distributed.parallel import reduce_gradients
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.distributed.vote import Ballot, Voting, vote
from ups.errors import GaveUp, Stopped
from ups.track.jsonl import read_events


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("protocol")
    prepared(folder)
    return folder


def fit(
    data: Path, run: Path, fault: str = "", runtime: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """Train on this rank with a fault; how it ended, the micro-batches and the tensors."""
    injection._FAULTS = injection.parse(fault)
    settings = RuntimeConfig(device="cpu", threads=1, **(runtime or {}))
    ended = "finished"
    try:
        with Runtime.start(settings, 0, run) as rt:
            trainer = small_trainer(rt, data, run, **({"steps": 6} | changes))
            try:
                trainer.fit()
            except (GaveUp, Stopped, PeerFailed, torch.OutOfMemoryError) as error:
                ended = f"{type(error).__name__}: {error}"
            tensors = {} if rt.mesh is not None else {name: whole(t) for name, t in trainer._tensors().items()}
            progress = {"step": trainer.state.step, "seconds": (trainer.state.seconds, trainer.state.device_seconds)}
            return {"ended": ended, "micro": trainer.micro, "tensors": tensors} | progress
    finally:
        injection._FAULTS = []


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_rank_out_of_memory_makes_all_take_smaller_steps_of_the_same_path(
    data: Path, tmp_path: Path, place: str
) -> None:
    undisturbed = run_ranks(2, fit, data, tmp_path / "undisturbed")
    results = run_ranks(2, fit, data, tmp_path / place, f"oom at {place} rank 1 step 3")
    for result, other in zip(results, undisturbed, strict=True):
        assert result["ended"] == "finished"
        assert result["micro"] == {"advection": 1, "darcy": 2} and other["micro"] == {"advection": 2, "darcy": 2}
        assert largest_difference(result["tensors"], other["tensors"]) <= 1e-10
    events = [e for e in read_events(tmp_path / place / "events.jsonl") if e["kind"] == "out_of_memory"]
    assert [(e["step"], e["task"], e["micro_batch"]) for e in events] == [(3, "advection", 1)]


def test_out_of_memory_with_one_sample_is_given_up_by_all(data: Path, tmp_path: Path) -> None:
    results = run_ranks(2, fit, data, tmp_path, "oom at forward rank 0 step 2", {"micro_batch": 1})
    assert all("GaveUp: out of memory with one sample of advection" in result["ended"] for result in results)


def test_a_failing_rank_is_named_and_its_peers_leave_with_it(data: Path, tmp_path: Path) -> None:
    failing, peer = run_ranks(2, _fails, data, tmp_path)
    assert failing == "RuntimeError: a failure on purpose at forward"
    assert peer == "PeerFailed: rank 0 failed in step 2"


def _fails(data: Path, run: Path) -> str:
    try:
        return fit(data, run, "raise at forward rank 0 step 2")["ended"]
    except RuntimeError as error:
        torch.distributed.destroy_process_group()
        return f"{type(error).__name__}: {error}"


def test_a_sharded_rank_out_of_memory_leaves_a_smaller_micro_batch_to_the_next_attempt(
    data: Path, tmp_path: Path
) -> None:
    sharded = {"strategy": "fsdp2", "micro_batch": 2}
    with pytest.raises(AssertionError):  # the other rank never answers: only the supervisor can end it
        run_ranks(2, fit, data, tmp_path, "oom at forward rank 1 step 2", sharded, timeout=10)
    assert backoff.micro_batches(tmp_path) == {"advection": 1}
    results = run_ranks(2, fit, data, tmp_path, "", sharded)
    assert [result["micro"] for result in results] == [{"advection": 1, "darcy": 2}] * 2


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_loss_that_is_not_a_number_on_one_rank_is_skipped_by_all(data: Path, tmp_path: Path, strategy: str) -> None:
    results = run_ranks(2, fit, data, tmp_path, "nan at loss rank 1 step 3", {"strategy": strategy})
    assert [result["ended"] for result in results] == ["finished"] * 2
    skipped = [event for event in read_events(tmp_path / "events.jsonl") if event["kind"] == "skipped"]
    assert [event["step"] for event in skipped] == [3]
    assert {task: len(ids) for task, ids in skipped[0]["samples"].items()} == {"advection": 4, "darcy": 3}
    if strategy == "ddp":
        assert all(torch.isfinite(tensor).all() for result in results for tensor in result["tensors"].values())


def test_a_second_of_two_ranks_is_two_device_seconds(data, tmp_path):
    """What is compared with them trains on one device, for as many."""
    for ended in run_ranks(2, fit, data, tmp_path):
        seconds, device_seconds = ended["seconds"]
        assert device_seconds == pytest.approx(2 * seconds) and seconds > 0


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("hsdp", 4)])
def test_replicas_that_differ_are_found(data: Path, tmp_path: Path, strategy: str, ranks: int) -> None:
    settings = {"strategy": strategy, "replica_check_every": 2, **({"shard": 2} if strategy == "hsdp" else {})}
    results = run_ranks(ranks, fit, data, tmp_path, "flip at update rank 1 step 3", settings)
    for result in results:
        assert "GaveUp: ranks that should hold the same parameters do not, found at step 4" in result["ended"]


def test_a_signal_to_one_rank_stops_all_after_the_same_step(data: Path, tmp_path: Path) -> None:
    results = run_ranks(2, fit, data, tmp_path, "term at update rank 1 step 2")
    assert {result["step"] for result in results} == {4}
    assert all("Stopped: step 4 of 6 is saved" in result["ended"] for result in results)


def test_a_refused_checkpoint_does_not_stop_training_and_is_tried_again(data: Path, tmp_path: Path) -> None:
    fault = "full at checkpoint rank 1 step 2; full at checkpoint rank 0 step 6"
    results = run_ranks(2, _fit_on_a_full_disk, data, tmp_path, fault, 60.0)
    assert [result["ended"] for result in results] == ["finished"] * 2
    events = read_events(tmp_path / "events.jsonl")
    refused = [event["reason"] for event in events if event["kind"] == "not_saved"]
    assert ["step 2 could" in refused[0], "step 6 could" in refused[-1]] == [True, True]
    assert "step_00000006" in {p.name for p in (tmp_path / "checkpoints").glob("step_*")}


def test_a_disk_that_refuses_checkpoints_for_too_long_is_given_up(data: Path, tmp_path: Path) -> None:
    fault = "full at checkpoint rank 1 step 6; full at checkpoint rank 1 step 6"
    results = run_ranks(2, _fit_on_a_full_disk, data, tmp_path, fault, 0.1)
    assert all("GaveUp: no checkpoint could be written for 0 s" in result["ended"] for result in results)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_ends_the_wait_for_a_disk_that_refuses_the_last_checkpoint(
    data: Path, tmp_path: Path, ranks: int
) -> None:
    fault = "term at checkpoint_files rank 0 step 6" + 999 * f"; full at checkpoint rank {ranks - 1} step 6"
    results = run_ranks(ranks, _fit_on_a_full_disk, data, tmp_path, fault, 60.0)
    assert all("Stopped: the checkpoint of step 6 could not be" in result["ended"] for result in results)
    assert all(" is the last that is saved" in result["ended"] for result in results)


def _fit_on_a_full_disk(data: Path, run: Path, fault: str, patience: float) -> dict[str, Any]:
    from ups.training import saving

    before, saving.RETRY = saving.RETRY, 0.2
    try:
        return fit(data, run, fault, {"disk_patience": patience}, checkpoint_every=2)
    finally:
        saving.RETRY = before


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped file", "gloo"])
def test_every_rank_learns_the_largest_of_every_vote(tmp_path: Path, mapped: bool) -> None:
    """Three ranks at odds in pace, and, in the mapped file, votes of an earlier job that must not count."""
    for _ in range(2):
        results = run_ranks(3, _many_votes, tmp_path if mapped else None)
        assert results == [[max((rank * 7 + turn) % 5 for rank in range(3)) for turn in range(200)]] * 3


def _many_votes(directory: Path | None) -> list[int]:
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0, directory) as rt:
        seen = []
        for turn in range(200):
            time.sleep(1e-3 * ((rt.rank * 5 + turn * 3) % 4))
            seen.append(vote(Ballot((rt.rank * 7 + turn) % 5, 0, 0, 0), rt).out_of_memory)
        return seen


def test_ranks_of_different_pace_vote_in_the_same_steps_and_rarely_while_nothing_can_fail() -> None:
    """Steps of 1 and 2 ms, a vote every 50 ms or so; step 150 may fail on one rank alone."""
    first, second = run_ranks(2, _paced_votes)
    assert first == second
    assert {0, 1, 150, 151} <= set(first)
    assert max(b - a for a, b in pairwise(first)) <= 50  # as no step is shorter than 1 ms
    assert len(first) < 150


def _paced_votes() -> list[int]:
    from ups.distributed import vote as module

    before, module.PERIOD = module.PERIOD, 0.05
    try:
        with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as rt:
            voting, seen = Voting(rt), []
            for step in range(300):
                time.sleep(1e-3 * (1 + rt.rank))
                safe = step not in (0, 150)
                if voting.due(step, safe):
                    seen.append(step)
                    voting.hold(step, Ballot(), safe)
            return seen
    finally:
        module.PERIOD = before


def test_a_parameter_no_task_touched_keeps_no_gradient(tmp_path: Path) -> None:
    assert run_ranks(2, _untouched) == [(None, [[3.0, 3.0]])] * 2


def _untouched() -> tuple[Any, list]:
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as rt:
        own, other = [None, torch.full((1, 2), float(rt.rank + 1))], [torch.ones(1), None]
        reduce_gradients([own, other], rt)
        assert own[1] is not None and other[1] is None and torch.equal(other[0], torch.full((1,), 2.0))
        return own[0], own[1].tolist()


def test_a_signal_that_nobody_answers_ends_the_rank(tmp_path: Path) -> None:
    """SIGTERM while a rank is stuck where no vote comes: it leaves by itself after its grace."""
    code = (
        "import os, time\n"
        "from ups.distributed.runtime.settings import RuntimeConfig\n"
        "from ups.distributed.runtime.start import Runtime\n"
        "with Runtime.start(RuntimeConfig(device='cpu', threads=1), 0):\n"
        "    print('up', flush=True)\n    time.sleep(60)\n    time.sleep(60)\n"
    )
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    variables = os.environ | ranks | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "UPS_GRACE": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) != 0
