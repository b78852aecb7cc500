"""Fault 23: two nodes are two network namespaces; the network between them, or one of them, is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

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


def lose(job: Job, rank: int) -> None:
    """A whole node at once: its supervisor and its rank."""
    job.reach(CUT_AT, rank)
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


def test_fault_23_the_host_goes_on_alone_when_the_other_node_is_lost_for_good(jobs, long_reference, matrix):
    host, other = jobs
    host.reach(CUT_AT)
    lost = time.monotonic()
    lose(other, 1)
    again = trains_alone(host, lost)
    assert again < 120
    assert ended(host) == 0, host.said()
    assert left_behind(host.run) == []
    (report,) = host.reports()
    assert report["kind"] == "connection" and "look at the network and the other nodes" in report["cause"]
    gap = difference(host.run, long_reference, LONG_STEPS)
    assert gap <= ROUNDING
    (resumed,) = host.events("resumed")
    matrix.row(
        23,
        fault="the other node is lost for good",
        required="goes on with the rest in under 120 s",
        seen=f"the host went on alone and ended {gap:.0e} from the undisturbed run",
        detect=report["seconds_to_detect"],
        recover=again,
        repeated=report["step"] - resumed["step"],
    )


def test_fault_23_the_other_node_stops_when_the_host_is_lost_and_both_resume(start_both, jobs, long_reference, matrix):
    host, other = jobs
    host.reach(CUT_AT)
    lost = time.monotonic()
    lose(host, 0)
    assert ended(other) == 75
    stopped = time.monotonic() - lost
    assert left_behind(host.run) == []
    noticed, end = filter(None, other.said().splitlines())  # a sentence each, and nothing of torch's
    assert noticed.startswith(f"the rendezvous at {RENDEZVOUS} is lost: ")
    assert end.startswith(
        f"stopped: the node that hosts {RENDEZVOUS} is lost or cannot be reached; start all again to resume"
    )
    at = max(heartbeat.step for heartbeat in host.last.values())
    resumed = start_both()
    assert [ended(job) for job in resumed] == [0, 0], [job.said() for job in resumed]
    assert difference(host.run, long_reference, LONG_STEPS) == 0
    (event,) = host.events("resumed")
    matrix.row(
        23,
        fault="the node that hosts the rendezvous is lost",
        required="clean stop, “resume”",
        seen="the other node stopped with exit code 75 and “resume”; the same commands again ended bit-equal",
        detect=stopped,
        repeated=at - event["step"],
    )
