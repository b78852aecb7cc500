"""Fault 27: a stranger on the network, or on the same machine."""

from __future__ import annotations

import base64
import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest
from job import difference, start
from machines import LONG, LONG_STEPS
from torch.distributed import TCPStore

pytestmark = pytest.mark.faults


def listening(pid: int) -> dict[int, str]:
    """The ports at which a process listens, with their addresses as the kernel writes them."""
    try:
        links = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:  # it has just ended
        return {}
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in links:
                address, port = local.split(":")
                found[int(port, 16)] = address
    return found


class Evil:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_fault_27_one_node_listens_on_the_loopback_alone_and_runs_no_code_of_a_stranger(
    place, long_reference, matrix, tmp_path
):
    job = start(place, "open", *LONG)
    job.reach(5)
    job.reach(5, rank=1)
    ports = {pid: listening(pid) for pid in (job.process.pid, job.pid(0), job.pid(1))}
    assert all(ports.values()), "nobody listens: the test looks at the wrong processes"
    assert {address for each in ports.values() for address in each.values()} == {"0100007F"}
    evil = base64.b64encode(pickle.dumps(Evil(tmp_path / "ran"))).decode()
    for port in ports[job.process.pid]:
        store = TCPStore("127.0.0.1", port, timeout=timedelta(seconds=5), wait_for_workers=False)
        store.set("torch.rendezvous.ups-open", evil)
    assert job.wait() == 75, job.said()
    assert "what is at the rendezvous was not written by a node of this run, and was not used" in job.said()
    assert not (tmp_path / "ran").exists(), "the stranger's code ran in the supervisor"
    assert (job.run / ".secret").stat().st_mode & 0o077 == 0
    again = start(place, "open", *LONG)
    assert again.wait() == 0, again.said()
    assert difference(again.run, long_reference, LONG_STEPS) == 0
    count = sum(map(len, ports.values()))
    matrix.row(
        27,
        fault="a stranger writes a pickle with code into the rendezvous of a job on one node",
        required="loopback only; no code of a stranger",
        seen=f"all {count} ports listen on 127.0.0.1 alone; what is not signed is not unpickled, but one sentence and "
        "exit 75; the same command again: bit-equal end",
    )
