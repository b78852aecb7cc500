"""Faults 23, 28, 29 and 39: two nodes are two network namespaces; one of them is lost, or sees other files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
from job import Job, Place, difference, left_behind
from machines import LONG, LONG_STEPS, Namespace, start_inside

pytestmark = [pytest.mark.faults, pytest.mark.limit(200)]

HOST, OTHER = "10.83.0.1", "10.83.0.2"
RENDEZVOUS = f"{HOST}:29555"
CUT_AT = 50
ROUNDING = 1e-10  # in float64, where another number of ranks adds in another order


@pytest.fixture
def nodes() -> Iterator[tuple[Namespace, Namespace]]:
    """Two machines with a cable between them; the first has the rendezvous."""
    two: list[Namespace] = []
    try:
        two += [Namespace("-n", "ip link set lo up", "a network of two nodes") for _ in range(2)]
        ends = [f"name cable netns {node.pid}" for node in two]
        subprocess.run(f"ip link add {ends[0]} type veth peer {ends[1]}".split(), check=True, timeout=20)
        for node, address in zip(two, (HOST, OTHER), strict=True):
            node.do(f"ip address add {address}/24 dev cable && ip link set cable up")
        yield two[0], two[1]
    finally:
        for node in two:
            node.end()


@pytest.fixture
def start_both(nodes: tuple[Namespace, Namespace], place: Place) -> Callable[[], tuple[Job, Job]]:
    """Starts one training, of one rank a node."""

    def start() -> tuple[Job, Job]:
        arguments = (*LONG, "--nodes", "1:2", "--rendezvous", RENDEZVOUS)
        other = start_inside(nodes[1], place, "nodes", *arguments, ranks=1, who="-other")
        time.sleep(1)  # the host comes last: once it is there, it waits only a few seconds for more than the least
        return start_inside(nodes[0], place, "nodes", *arguments, ranks=1, who="-host"), other

    return start


@pytest.fixture
def jobs(start_both: Callable[[], tuple[Job, Job]]) -> tuple[Job, Job]:
    """The training on the host, and on the other node."""
    return start_both()


def ended(job: Job, seconds: float = 100.0) -> int:
    """A node's exit code; the other one may still be at work."""
    job.until(lambda: job.process.poll() is not None, "the node did not stop", seconds)
    return job.process.returncode


def trains_alone(job: Job, since: float) -> float:
    """Seconds from `since` until the host is beyond where it was, in another attempt."""
    job.reach(CUT_AT + 1, attempt=1)
    return time.monotonic() - since


def lose(node: Namespace, job: Job, rank: int, silent: bool = True) -> None:
    """A whole node at once, its supervisor and its rank; a machine that is `silent` closes no connection."""
    job.reach(CUT_AT, rank)
    if silent:
        node.do("ip link set cable down")
    job.process.kill()
    os.kill(job.last[0, rank].pid, signal.SIGKILL)


def test_fault_23_two_nodes_end_bit_equal_to_two_ranks_on_one(jobs, long_reference, matrix):
    assert [ended(job) for job in jobs] == [0, 0], [job.said() for job in jobs]
    assert left_behind(jobs[0].run) == []
    assert jobs[0].reports() == []
    assert difference(jobs[0].run, long_reference, LONG_STEPS) == 0
    assert {heartbeat.attempt for heartbeat in jobs[0].last.values()} == {0} and len(jobs[0].last) == 2
    matrix.row(
        23,
        fault="none: two nodes of one rank each",
        required="the same result as two ranks on one node",
        seen="bit-equal end",
        repeated=0,
    )


def test_fault_23_a_node_cut_off_stops_by_itself_and_the_host_goes_on_alone(nodes, jobs, long_reference, matrix):
    host, other = jobs
    host.reach(CUT_AT)
    nodes[1].do("ip link set cable down")
    cut = time.monotonic()
    assert ended(other) == 75
    stopped = time.monotonic()
    assert "cannot be reached; start all again to resume" in other.said()
    again = trains_alone(host, cut)
    assert again < 120
    assert stopped < host.trains[1], "two nodes that did not see each other were at work in one directory"
    assert ended(host) == 0, host.said()
    assert left_behind(host.run) == []
    (report,) = host.reports()  # the host's: the other one wrote none
    assert report["kind"] == "lost" and [rank["here"] for rank in report["ranks"]] == [True, False]
    assert report["what"].startswith("node 1 gives no sign")
    assert not (host.run / "crash" / "attempt_000" / "rank_1.json").exists()
    gap = difference(host.run, long_reference, LONG_STEPS)
    assert gap <= ROUNDING
    (resumed,) = host.events("resumed")
    matrix.row(
        23,
        fault="network cut between two nodes",
        required="goes on with the rest in under 120 s",
        seen=f"the node cut off stopped after {stopped - cut:.0f} s with exit code 75, before the host began again; "
        f"the host ended alone, {gap:.0e} from the undisturbed run; the report names the lost node",
        detect=report["seconds_to_detect"],
        recover=again,
        repeated=report["step"] - resumed["step"],
    )


@pytest.mark.parametrize("silent", [True, False])
def test_fault_23_the_host_goes_on_alone_when_the_other_node_is_lost_for_good(
    nodes, jobs, long_reference, matrix, silent
):
    host, other = jobs
    host.reach(CUT_AT)
    lost = time.monotonic()
    lose(nodes[1], other, 1, silent)
    again = trains_alone(host, lost)
    assert again < 120
    assert ended(host) == 0, host.said()
    assert left_behind(host.run) == []
    (report,) = host.reports()
    if silent:
        assert report["kind"] == "lost" and report["what"].startswith("node 1 gives no sign")
    else:
        assert report["kind"] == "connection" and "look at the network and the other nodes" in report["cause"]
    gap = difference(host.run, long_reference, LONG_STEPS)
    assert gap <= ROUNDING
    (resumed,) = host.events("resumed")
    matrix.row(
        23,
        fault=f"the other node is lost for good: {'power failure, silent' if silent else 'all its processes killed'}",
        required="goes on with the rest in under 120 s",
        seen=f"the host went on alone and ended {gap:.0e} from the undisturbed run",
        detect=report["seconds_to_detect"],
        recover=again,
        repeated=report["step"] - resumed["step"],
    )


def test_fault_23_the_other_node_stops_when_the_host_is_lost_and_both_resume(
    nodes, start_both, jobs, long_reference, matrix
):
    host, other = jobs
    host.reach(CUT_AT)
    lost = time.monotonic()
    lose(nodes[0], host, 0)
    assert ended(other) == 75
    stopped = time.monotonic() - lost
    assert left_behind(host.run) == []
    noticed, end = filter(None, other.said().splitlines())  # a sentence each, and nothing of torch's
    assert noticed.startswith(f"the rendezvous at {RENDEZVOUS} is lost: ")
    assert end.startswith(
        f"stopped: the node that hosts {RENDEZVOUS} is lost or cannot be reached; start all again to resume"
    )
    at = max(heartbeat.step for heartbeat in host.last.values())
    nodes[0].do("ip link set cable up")
    resumed = start_both()
    assert [ended(job) for job in resumed] == [0, 0], [job.said() for job in resumed]
    assert difference(host.run, long_reference, LONG_STEPS) == 0
    (event,) = host.events("resumed")
    matrix.row(
        23,
        fault="the node that hosts the rendezvous is lost: power failure, silent",
        required="clean stop, “resume”",
        seen="the other node stopped with exit code 75 and “resume”; the same commands again ended bit-equal",
        detect=stopped,
        repeated=at - event["step"],
    )


def start_on_both(nodes, places, name, *arguments, ranks=1, before=("", "")) -> tuple[Job, Job]:
    """One training on the host and on the other node, which may see things in different places."""
    more = (*arguments, "--nodes", "2", "--rendezvous", RENDEZVOUS)
    other = start_inside(nodes[1], places[1], name, *more, ranks=ranks, before=before[1], who="-other")
    time.sleep(1)
    return start_inside(nodes[0], places[0], name, *more, ranks=ranks, before=before[0], who="-host"), other


def test_fault_28_a_run_directory_by_another_name_is_the_same(nodes, place, long_reference, matrix):
    place.runs.mkdir()
    alias = place.runs.parent / "alias"
    alias.symlink_to(place.runs)
    jobs = start_on_both(nodes, (place, replace(place, runs=alias)), "spelled", *LONG)
    assert [ended(job) for job in jobs] == [0, 0], [job.said() for job in jobs]
    assert difference(place.runs / "spelled", long_reference, LONG_STEPS) == 0
    matrix.row(
        28,
        fault="two nodes name one run directory differently (a symbolic link)",
        required="keys do not hold paths",
        seen="bit-equal end",
        repeated=0,
    )


@pytest.mark.parametrize("secret", [False, True])
def test_fault_28_a_run_directory_that_is_not_shared_is_a_sentence(nodes, place, matrix, secret):
    """With a copy of the host's secret, the supervisors do not see it, but the ranks do."""
    apart = replace(place, runs=place.runs.parent / "apart")
    for each in (place, apart):
        (each.runs / "apart").mkdir(parents=True)
        if secret:
            (each.runs / "apart" / ".secret").write_text("0" * 64)
    began = time.monotonic()
    host, other = start_on_both(nodes, (place, apart), "apart", *LONG)
    assert ended(other) == 2, other.said()
    seconds = time.monotonic() - began
    assert seconds < 60 and "must share the run directory" in other.said()
    if secret:
        assert ended(host) == 2 and "must share the run directory" in host.said()
    else:  # it waits for a node of its own, as if nobody had come
        host.process.send_signal(signal.SIGTERM)
        assert ended(host) == 75, host.said()
    matrix.row(
        28,
        fault=f"two nodes with run directories of their own{', and the same secret' if secret else ''}",
        required="a sentence within seconds",
        seen=f"exit 2: “{other.said().strip().splitlines()[-1]}”".replace(str(place.runs.parent), "…"),
        detect=seconds,
    )


ONE_TASK = """
name: tiny
seed: 0
tasks:
  advection: {files: {train: [1D_Advection_Sols_beta0.4.hdf5]}}
stages: {operator: {width: 8, depth: 2, modes: 4, head: 8, conditions: 8}}
training: {steps: 10, batch_size: 4, validate_every: 5, checkpoint_every: 5}
runtime: {device: cpu, threads: 1}
data: {workers: 1}
"""


def test_fault_29_nodes_with_different_training_data_are_refused(nodes, place, matrix):
    """Only one value of one trajectory differs; what they validate on is the same."""
    place.config.write_text(ONE_TASK)
    folders = [place.runs.parent / name for name in ("one", "two")]
    make = ["-m", "ups", "data", "make", "advection", "--count", "20", "--set", "beta=0.4", "--set", "points=32"]
    subprocess.run([sys.executable, *make, "--out", str(folders[0] / "data")], check=True, timeout=100)
    shutil.copytree(folders[0], folders[1])
    with h5py.File(folders[1] / "data" / "1D_Advection_Sols_beta0.4.hdf5", "r+") as file:
        file["tensor"][12, -1, 5] += 0.5
    relative = replace(place, data=Path("data"))
    jobs = start_on_both(nodes, (relative, relative), "mixed", before=[f"cd {folder};" for folder in folders])
    assert [ended(job) for job in jobs] == [2, 2], [job.said() for job in jobs]
    assert all("nodes have different data of advection" in job.said() for job in jobs)
    assert list((place.runs / "mixed" / "store").glob("*/index.json")) == []
    matrix.row(
        29,
        fault="two nodes with training files that differ in one value",
        required="agreed on before the store is built",
        seen=f"exit 2 on both: “{jobs[0].said().strip().splitlines()[-1]}”; no store",
    )


def test_fault_39_ranks_of_a_node_with_its_own_disk_make_its_data_once(nodes, place, matrix):
    folders = [place.runs.parent / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    relative = replace(place, data=Path("data"))
    more = ("training.steps=4", "tasks.darcy.make.trajectories=400")
    jobs = start_on_both(nodes, (relative, relative), "own", *more, ranks=2, before=[f"cd {f};" for f in folders])
    assert [ended(job) for job in jobs] == [0, 0], [job.said() for job in jobs]
    assert jobs[0].reports() == [] and all(any((folder / "data").iterdir()) for folder in folders)
    matrix.row(
        39,
        fault="two nodes of two ranks, each with data on a disk of its own",
        required="ranks of a node do not collide on the generator's lock",
        seen="each node made its data once; finished",
    )
