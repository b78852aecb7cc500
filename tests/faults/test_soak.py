"""A minute of the soak, with one training on two ranks; `make soak` takes half an hour of it."""

from __future__ import annotations

import signal
import time

import pytest
from job import start
from soak import count_faults, soak, table
from storm import IN_STEP, KINDS, plan

MINUTES, SEED, LEAST = 0.7, 0, 3


@pytest.mark.faults
@pytest.mark.limit(400)
def test_a_storm_of_faults_changes_no_parameter_and_alarms_nobody_in_vain(tmp_path, matrix):
    seen = soak(tmp_path, MINUTES, SEED)
    assert [entry.problem for entry in seen if entry.problem] == [], table(seen)
    assert count_faults(seen) >= LEAST, table(seen)
    worst = max(entry.recovery for entry in seen if entry.recovery is not None)
    matrix.row(
        40,
        fault="a minute of the soak: random faults, one after another and two at a time",
        required="parameters as in the undisturbed run after every recovery, no hang, no restart without a reason",
        seen=f"{count_faults(seen)} faults, {sum(entry.compared for entry in seen)} checkpoints compared after them, "
        f"all bit-equal; training again after {worst:.1f} s at most",
        recover=worst,
    )


def test_a_seed_repeats_its_storm_and_every_kind_of_fault_comes_up():
    plans = [plan(3, number) for number in range(40)]
    assert plans == [plan(3, number) for number in range(40)] != [plan(4, number) for number in range(40)]
    planned = [fault.kind.name for made in plans for step in made.disturbances for fault in step.faults]
    calm = [
        fault.kind.name for number in range(5) for d in plan(3, number, calm=True).disturbances for fault in d.faults
    ]
    assert {*planned, *calm} == KINDS.keys()
    assert sum(len(disturbance.faults) == 2 for made in plans for disturbance in made.disturbances) > 100
    for made in plans:
        steps = [disturbance.step for disturbance in made.disturbances]
        assert steps == sorted(set(steps))
        inside = [d for d in made.disturbances if d.attempt is not None]
        assert all(d.faults[0].kind in IN_STEP and d.faults[0].rank != d.faults[1].rank for d in inside if d.faults[1:])


@pytest.mark.faults
def test_fault_11_more_signals_while_a_job_is_leaving_do_not_take_its_exit_code(place, matrix):
    """The soak met this: two times SIGTERM, the second when all was saved and the process about to end."""
    job = start(place, "asked")
    job.reach(12)
    while job.process.poll() is None:
        job.process.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert job.process.returncode == 75, job.said()
    matrix.row(
        11,
        fault="SIGTERM to the supervisor, a hundred times a second until it has left",
        required="saved, exit 75, resumes bit-equal",
        seen="exit 75",
    )
