"""Faults 12, 13, 32 and 33: a checkpoint that was not finished, is no longer what was written, or cannot be removed."""

from __future__ import annotations

import re
import shutil

import pytest
from job import EVERY, STAGE, difference, start
from machines import MACHINE, Namespace, start_inside

from ups import checkpoint

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(
    ("spot", "rank"),
    [
        ("before its files", 1),
        ("within a file", 1),
        ("after its files", 0),
        ("at the rename", 0),
        ("at the pointer", 0),
    ],
)
def test_fault_12_a_death_while_a_checkpoint_is_written_leaves_the_one_before(place, reference, matrix, spot, rank):
    """One that has its name is whole, whether or not `latest` has come to name it."""
    places = {"before its files": "checkpoint_files", "after its files": "checkpoint"}
    if spot in places:
        job = start(place, "written", fault=f"kill at {places[spot]} rank {rank} step {3 * EVERY}")
    else:
        job = start(place, "written", **MACHINE, MACHINE_DIES=f"{rank} {spot}")
    assert job.wait() == 0, job.said()
    (step,) = (event["step"] for event in job.events("resumed"))
    if spot == "at the pointer":
        assert step >= 3 * EVERY
    else:
        assert step >= EVERY  # one that is due while another is written comes a little later
        assert spot not in places or step < 3 * EVERY
    (report,) = job.reports()
    how = "SIGXFSZ" if spot == "within a file" else "SIGKILL"
    assert report["rank"] == rank and how in report["what"]
    assert list((job.stage / "checkpoints").glob("*.tmp")) == []
    assert difference(job.run, reference) == 0
    matrix.row(
        12,
        fault=f"{how} of rank {rank} while a checkpoint is written: {spot}",
        required="older good one used",
        seen=f"restarted from step {step}, {'which is whole' if spot == 'at the pointer' else 'the one before'}; "
        "bit-equal end",
        **job.crash(),
    )


@pytest.mark.parametrize("damage", ["one flipped byte", "truncation", "truncated manifest"])
def test_fault_13_a_damaged_checkpoint_is_set_aside_and_the_older_one_used(place, half_way, reference, matrix, damage):
    stopped, (*_, older, newest) = half_way
    shutil.copytree(stopped.runs, place.runs)
    folder = place.runs / "half" / STAGE / "checkpoints" / checkpoint.name_of(newest)
    file = folder / "manifest.json" if "manifest" in damage else sorted(folder.glob("*.safetensors"))[1]
    content = bytearray(file.read_bytes())
    if damage == "one flipped byte":
        content[-100] ^= 0x04
    file.write_bytes(content if damage == "one flipped byte" else content[:-7])
    job = start(place, "half")
    assert job.wait() == 0, job.said()
    resumed = job.events("resumed")[-1]
    assert resumed["step"] == older
    reason = re.search(r"is damaged \((.*)\); set aside", resumed["notes"][0])[1]
    assert file.name in reason
    assert folder.with_name(f"{folder.name}.bad").is_dir()
    assert difference(job.run, reference) == 0
    matrix.row(
        13,
        fault=f"{damage} in a checkpoint" if "manifest" not in damage else "truncation of a checkpoint's manifest",
        required="older good one used",
        seen=f"{reason}: set aside before anything was loaded, the one before used; bit-equal end",
        repeated=newest - resumed["step"],
    )


def test_fault_33_where_all_checkpoints_are_damaged_the_run_is_refused_until_they_are_removed(
    place, half_way, reference, matrix
):
    stopped, steps = half_way
    shutil.copytree(stopped.runs, place.runs)
    folder = place.runs / "half" / STAGE / "checkpoints"
    for step in steps:
        (folder / checkpoint.name_of(step) / "manifest.json").write_text("{}")
    for _ in range(2):
        job = start(place, "half")
        assert job.wait() == 2, job.said()
        assert "holds no usable checkpoint" in job.said() and "to train from the first step on, remove" in job.said()
        assert job.json("outcome.json")["state"] == "mistake"
    bad = list(folder.glob("*.bad"))
    assert len(bad) == len(steps) and job.events("resumed") == []
    for path in bad:
        shutil.rmtree(path)
    job = start(place, "half")
    assert job.wait() == 0, job.said()
    assert difference(job.run, reference) == 0
    matrix.row(
        33,
        fault="all checkpoints are damaged",
        required="refused until the user says so",
        seen="one sentence and exit 2, twice; trained from the first step when the user had removed them",
    )


def test_fault_32_an_old_checkpoint_that_cannot_be_removed_is_a_warning(place, reference, matrix):
    machine = Namespace("-m", "true", "a mount")
    try:
        job = start_inside(machine, place, "stuck")
        old = place.runs / "stuck" / STAGE / "checkpoints" / checkpoint.name_of(EVERY)
        job.until(old.is_dir, "no checkpoint was written")
        machine.do(f"mount --bind {old} {old}")  # what is mounted is neither renamed nor removed
        assert job.wait() == 0, job.said()
        kept = checkpoint.steps(place.runs / "stuck" / STAGE / "checkpoints")
    finally:
        machine.end()
    assert EVERY in kept and job.events("not_saved") == [] and job.reports() == []
    log = (place.runs / "stuck" / "logs" / "rank0.log").read_text()
    assert "an old checkpoint cannot be removed" in log and "Device or resource busy" in log
    assert difference(place.runs / "stuck", reference) == 0
    matrix.row(
        32,
        fault="an old checkpoint cannot be removed",
        required="a warning",
        seen=f"a warning in the log of rank 0; checkpoints of steps {', '.join(map(str, kept))}; bit-equal end",
        repeated=0,
    )
