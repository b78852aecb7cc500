"""Faults 26, 36 and 37: what is slow is no hang, and what hangs is found wherever it happens."""

from __future__ import annotations

import pytest
from job import EVERY, difference, start
from machines import LONG, LONG_STEPS, MACHINE

from ups import checkpoint

pytestmark = pytest.mark.faults


@pytest.mark.limit(240)
def test_fault_26_training_goes_on_while_a_slow_disk_writes_a_checkpoint(place, reference, matrix):
    """A save takes several times the deadline, and more than the time between two checkpoints."""
    job = start(place, "slow", "runtime.deadline=3", **MACHINE, MACHINE_FSYNC="1")
    folder = job.stage / "checkpoints"
    job.reach(EVERY, 0)
    job.until(lambda: bool(checkpoint.steps(folder)), "no checkpoint was written", 200)
    meanwhile = job.last[0, 0].step
    assert checkpoint.steps(folder) == [EVERY] and meanwhile > 2 * EVERY
    assert job.wait(200) == 0, job.said()
    assert job.reports() == [] and job.events("resumed") == []
    saves = [job.times[0, 0, step, "checkpoint"] for step in (14, 29)]
    assert saves[1] - saves[0] > 2 * 3, "the saves were no slower than the deadline"
    assert difference(job.run, reference) == 0
    matrix.row(
        26,
        fault="every fsync takes a second longer, with a deadline of 3 s",
        required="slow is slow: training goes on while a save is in flight",
        seen=f"training was at step {meanwhile} when the checkpoint of step {EVERY} was there; the next ones came when "
        "it was; no restart; bit-equal end",
        repeated=0,
    )


@pytest.mark.limit(240)
@pytest.mark.parametrize(("phase", "step"), [("data", 0), ("validate", 14)])
def test_fault_36_a_rank_that_sleeps_outside_of_a_step_is_found_by_the_deadline(place, reference, matrix, phase, step):
    job = start(place, "asleep", "runtime.deadline=4", fault=f"sleep at {phase} rank 1 step {step}")
    assert job.wait() == 0, job.said()
    (report,) = job.reports()
    assert (report["kind"], report["rank"], report["phase"]) == ("hang", 1, phase)
    assert "in _happen" in next(entry for entry in report["ranks"] if entry["rank"] == 1)["stacks"]
    assert 4 <= report["seconds_to_detect"] < 12
    assert difference(job.run, reference) == 0
    matrix.row(
        36,
        fault=f"rank 1 sleeps in the phase `{phase}`; the deadline is 4 s",
        required="found by the documented deadline everywhere",
        seen=f"report: {report['what']}; bit-equal end",
        detect=report["seconds_to_detect"],
    )


def test_fault_37_a_heartbeat_that_cannot_be_read_ends_no_job_and_hides_no_hang(place, long_reference, matrix):
    """That of rank 0 is deleted; rank 1 hangs much later."""
    job = start(place, "deleted", *LONG, "runtime.deadline=4", fault="sleep at backward rank 1 step 90")
    job.reach(5)
    job.until(lambda: job.times.get((0, 0, 5, "vote"), 0) > 0 or job.last[0, 0].step > 30, "no step")
    (job.run / "heartbeats" / "rank_00000").unlink()
    assert job.wait() == 0, job.said()
    assert job.said().count("the heartbeat of rank 0, ") == 1 and "cannot be read" in job.said()
    (report,) = job.reports()
    assert (report["kind"], report["rank"], report["step"]) == ("hang", 1, 90)
    assert difference(job.run, long_reference, LONG_STEPS) == 0
    matrix.row(
        37,
        fault="the heartbeat of rank 0 is deleted; later rank 1 sleeps",
        required="read again, then say so",
        seen=f"said once, the job went on; then {report['what']}; bit-equal end",
        detect=report["seconds_to_detect"],
    )
