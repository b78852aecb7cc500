"""How nodes find the one that hosts their rendezvous."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

from ups.distributed.launch.rendezvous import _LAST_CALL, _connect, join


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_node_that_waited_for_the_host_is_there_before_its_last_call(tmp_path: Path) -> None:
    """Torch's own client, after seven seconds in vain, is up to five seconds late."""
    port, found = free_port(), []

    def connect() -> None:
        found.append((_connect("127.0.0.1", port, 20.0), time.monotonic()))

    early = threading.Thread(target=connect)
    early.start()
    time.sleep(7)
    opened = time.monotonic()
    host = join(tmp_path, 1, 2, f"127.0.0.1:{port}")
    early.join(20)
    ((store, then),) = found
    assert host.host and store is not None and store[1] == f"ups-{tmp_path.name}"
    assert then - opened < _LAST_CALL / 2


def test_nobody_there_is_found_out_in_time_and_so_is_somebody_else() -> None:
    began = time.monotonic()
    assert _connect("127.0.0.1", free_port(), 1.0) is None
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert _connect("127.0.0.1", deaf.getsockname()[1], 1.0) is None
    assert time.monotonic() - began < 15
