"""Faults 1 to 10: what can happen to one rank, and what becomes of the training on the command line."""

from __future__ import annotations

import os
import signal

import pytest
from job import difference, start
from machines import MACHINE

pytestmark = pytest.mark.faults

ROUNDING = 1e-10  # in float64, where another micro-batch or strategy adds in another order


def report_of(job, attempt=0):
    return next(report for report in job.reports() if report["attempt"] == attempt)


@pytest.mark.smoke
def test_fault_01_out_of_memory_in_forward_makes_all_ranks_take_smaller_passes(place, reference, matrix):
    out_of_memory_in_a_pass(1, "forward", 1, place, reference, matrix)


def test_fault_02_out_of_memory_in_backward_makes_all_ranks_take_smaller_passes(place, reference, matrix):
    out_of_memory_in_a_pass(2, "backward", 0, place, reference, matrix)


def out_of_memory_in_a_pass(number, spot, rank, place, reference, matrix):
    job = start(place, "memory", fault=f"oom at {spot} rank {rank} step 12")
    assert job.wait() == 0, job.said()
    halved = job.events("out_of_memory")
    assert [(e["step"], e["task"], e["micro_batch"], e["attempt"]) for e in halved] == [(12, "advection", 1, 0)]
    logs = [(job.run / "logs" / f"rank{rank}.log").read_text() for rank in range(2)]
    assert all(log.count("out of memory in step 12: from now on 1 of advection at a time") == 1 for log in logs)
    assert job.reports() == [] and job.events("resumed") == []
    differs = difference(job.run, reference)
    assert 0 < differs <= ROUNDING
    matrix.row(
        number,
        fault=f"out of memory on rank {rank} in {spot}",
        required="survives, smaller micro-batch on all ranks, no restart",
        seen=f"micro-batch 3 → 1 on both ranks, the same batch again, no restart; differs by {differs:.0e}",
    )


def test_fault_03_out_of_memory_in_the_optimiser_step_restarts(place, reference, matrix):
    """When parameters and moments of that rank are new and its averages are not: nothing of it may be gone on with."""
    job = start(place, "optimiser", **MACHINE, MACHINE_OOM="1 12")
    assert job.wait() == 0, job.said()
    report = report_of(job)
    assert (report["rank"], report["kind"], report["phase"], report["step"]) == (1, "exception", "update", 12)
    assert "rank 1 ran out of memory" in report["cause"]
    assert "self.optimiser.step()" in report["ranks"][1]["exception"]["traceback"]
    assert difference(job.run, reference) == 0
    matrix.row(
        3,
        fault="out of memory on rank 1 in the optimiser step",
        required="restarts, survives",
        seen="reported within the optimiser's step, restarted; bit-equal end",
        **job.crash(),
    )


def test_fault_04_out_of_memory_under_fsdp2_restarts_with_a_smaller_micro_batch(place, reference, matrix):
    sharded = ("runtime.strategy=fsdp2", "runtime.micro_batch=2")
    job = start(place, "sharded", *sharded, fault="oom at forward rank 1 step 12")
    assert job.wait() == 0, job.said()
    report = report_of(job)
    assert (report["rank"], report["kind"], report["step"]) == (1, "exception", 12)
    noted = job.json("backoff.json")
    assert noted["micro_batch"] == {"advection": 1}
    differs = difference(job.run, reference)
    assert 0 < differs <= ROUNDING
    matrix.row(
        4,
        fault="out of memory on rank 1 under fsdp2",
        required="restarts with a smaller micro-batch, survives",
        seen=f"micro-batch 2 → 1, restarted; differs from ddp by {differs:.0e}",
        **job.crash(),
    )


def test_fault_05_a_segmentation_fault_in_mid_step_restarts(place, reference, matrix):
    job = start(place, "segv", fault="segv at backward rank 1 step 12")
    assert job.wait() == 0, job.said()
    report = report_of(job)
    assert (report["rank"], report["kind"], report["phase"], report["step"]) == (1, "signal", "gradients", 12)
    assert "SIGSEGV" in report["what"] and "ctypes/__init__.py:" in report["cause"]
    assert 'step.py", line ' in report["ranks"][1]["stacks"]
    assert difference(job.run, reference) == 0
    matrix.row(
        5,
        fault="SIGSEGV of rank 1 in its backward pass",
        required="restarts, survives; report: rank, phase, line",
        seen="report: rank 1, gradients, step 12, file and line; bit-equal end",
        **job.crash(),
    )


def test_fault_06_an_exception_in_mid_step_restarts(place, reference, matrix):
    job = start(place, "exception", fault="raise at forward rank 0 step 13")
    assert job.wait() == 0, job.said()
    report = report_of(job)
    assert (report["rank"], report["kind"], report["phase"], report["step"]) == (0, "exception", "gradients", 13)
    assert "a failure on purpose at forward" in report["cause"] and "injection.py:" in report["cause"]
    assert report["task"] == "advection" and report["shapes"] == [3, 2, 32, 1]
    assert difference(job.run, reference) == 0
    matrix.row(
        6,
        fault="an exception on rank 0 in its forward pass",
        required="restarts, survives; report: rank, phase, line",
        seen="report: rank 0, gradients, step 13, file, line, task and shapes; bit-equal end",
        **job.crash(),
    )


@pytest.mark.smoke
def test_fault_07_sigkill_of_one_rank_restarts(place, reference, matrix):
    job = start(place, "killed", fault="kill at update rank 1 step 12")
    assert job.wait() == 0, job.said()
    report = report_of(job)
    assert (report["rank"], report["kind"], report["phase"], report["step"]) == (1, "signal", "update", 12)
    assert "rank 1 was killed from outside with SIGKILL" in report["cause"]
    assert "rank 1 was killed by SIGKILL in update, step 12; restarting" in job.said()
    cells = job.crash()
    # Saves are put off while the disk is slow: all steps may have to be repeated, or none after one that came just now.
    assert cells["detect"] < 1 and 0 <= cells["repeated"] <= 12
    assert difference(job.run, reference) == 0
    matrix.row(
        7,
        fault="SIGKILL of rank 1",
        required="restarts, survives; report: rank, phase, step",
        seen="report: rank 1, update, step 12; bit-equal end",
        **cells,
    )


def test_fault_08_a_rank_that_exits_with_0_early_has_crashed(place, reference, matrix):
    job = start(place, "early", fault="exit0 at update rank 0 step 12")
    assert job.wait() == 0, job.said()
    report = report_of(job)
    assert (report["rank"], report["kind"], report["phase"], report["step"]) == (0, "exit", "update", 12)
    assert difference(job.run, reference) == 0
    matrix.row(
        8,
        fault="rank 0 exits with code 0 early",
        required="crash, restarts, survives",
        seen="report: rank 0 left with code 0 though nothing was decided; bit-equal end",
        **job.crash(),
    )


@pytest.mark.parametrize("fault", ["sleep at backward", "skip at vote", "skip at reduce", "SIGSTOP"])
def test_fault_09_a_rank_that_does_not_go_on_is_found(place, reference, matrix, fault):
    """One that leaves out a collective is ahead of the one that waits in it: the report shows where both stand."""
    stopped = fault == "SIGSTOP"
    job = start(place, "hang", fault="" if stopped else f"{fault} rank 1 step 12")
    if stopped:
        job.reach(12, rank=1)
        os.kill(job.pid(1), signal.SIGSTOP)
    assert job.wait() == 0, job.said()
    report = report_of(job)
    assert report["kind"] == "hang"
    assert report["rank"] == 1
    assert ("was stopped" in report["what"]) == stopped
    assert report["step"] == (13 if fault == "skip at reduce" else 12) or stopped  # it went on to the next vote
    ranks = {entry["rank"]: entry for entry in report["ranks"]}
    assert all(entry["exit"] is None for entry in ranks.values())
    assert all("trainer.py" in entry["stacks"] for entry in ranks.values())
    assert ("in _happen" in ranks[1]["stacks"]) == fault.startswith("sleep")
    cells = job.crash()
    assert 12 <= cells["detect"] < 14  # the deadline, and two seconds
    assert difference(job.run, reference) == 0
    matrix.row(
        9,
        fault=f"rank 1: {fault}",
        required="found within 15 s of its last heartbeat; its own stack in the report; restarts",
        seen=f"report: {report['what']}; bit-equal end",
        **cells,
    )


def test_fault_10_a_loss_that_is_not_a_number_is_skipped_by_all_ranks(place, reference, matrix):
    """Ranks compare their parameters after every step; one that had not skipped would be found at once."""
    job = start(
        place, "nan", "runtime.replica_check_every=1", fault="nan at loss rank 1 step 12; nan at loss rank 0 step 21"
    )
    assert job.wait() == 0, job.said()
    skipped = job.events("skipped")
    assert [event["step"] for event in skipped] == [12, 21]
    assert all({t: len(ids) for t, ids in e["samples"].items()} == {"advection": 6, "darcy": 1} for e in skipped)
    assert job.reports() == [] and job.events("resumed") == []
    assert difference(job.run, reference) > ROUNDING
    matrix.row(
        10,
        fault="NaN in the loss of rank 1, then of rank 0",
        required="skipped on all ranks, counted, ids saved",
        seen="both steps skipped on both ranks, whose parameters agree after every step; ids in events.jsonl",
    )
