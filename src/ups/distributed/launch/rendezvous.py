"""Where the nodes of a job meet: torch's store and rendezvous, on a free port or at the end point the user named.

When the network between nodes is cut, the side that has the store goes on and the other one must stop: both write to
one run directory. A node whose connection to the store is silent for SILENCE seconds kills its ranks and leaves; the
others start again without it only after it has missed three heartbeats and a last call for it, which takes longer.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from ups.errors import UserError

REACH = 20.0
"""Seconds in which a named end point must answer."""

SILENCE = 8.0
"""Seconds after which a node that hears nothing from the store is cut off; less than three heartbeats and a call."""

_ANSWER = 15.0  # seconds in which the store answers a question; a host that does not is lost
_HEARTBEAT = 3  # seconds; a node is lost after three missed ones
_JOIN, _LAST_CALL, _CLOSE = 600.0, 5.0, 10.0
_LOOK = 0.2  # seconds between looks whether the host is there
_OWNER = "ups/run"
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Rendezvous:
    """A joined rendezvous, whether this node hosts it, and the network interface the ranks should use."""

    handler: DynamicRendezvousHandler
    host: bool
    nodes: tuple[int, int]
    place: str
    interface: str | None


def join(name: str, least: int, most: int, place: str | None) -> Rendezvous:
    """Open the rendezvous of job `name` at `place`, HOST:PORT, or on a free port of the loopback."""
    if place is None:
        store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=_ANSWER), wait_for_workers=False)
        return _joined(name, least, most, store, True, f"127.0.0.1:{store.port}", "127.0.0.1")
    host, port = _end_point(place)
    if _can_host(host, port, place):
        store = TCPStore(host, port, is_master=True, timeout=timedelta(seconds=_ANSWER), wait_for_workers=False)
        store.set(_OWNER, name)
        return _joined(name, least, most, store, True, place, host)
    store = _reach(name, host, port, place, alone=most == 1)
    return _joined(name, least, most, store, False, place, _address_towards(host, port))


def _joined(name: str, least: int, most: int, store: TCPStore, host: bool, place: str, address: str) -> Rendezvous:
    handler = DynamicRendezvousHandler.from_backend(
        name,
        store,
        C10dRendezvousBackend(store, name),
        least,
        most,
        address,
        RendezvousTimeout(*(timedelta(seconds=seconds) for seconds in (_JOIN, _LAST_CALL, _CLOSE))),
        keep_alive_interval=_HEARTBEAT,
        keep_alive_max_attempt=3,
    )
    return Rendezvous(handler, host, (least, most), place, _interface_of(address))


def _end_point(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError(f"--rendezvous {place}: give HOST:PORT, such as node0:29500")
    try:
        return socket.gethostbyname(host), int(port)
    except OSError as error:
        raise UserError(f"--rendezvous {place}: {host} is no host known here ({error.strerror})") from error


def _can_host(host: str, port: int, place: str) -> bool:
    """Is HOST this node, and the port free?"""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that an ended job left is free
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):  # another node, or a job on this one
                return False
            raise UserError(f"--rendezvous {place}: cannot use that port ({error.strerror}); name another") from error
    return True


def _reach(name: str, host: str, port: int, place: str, alone: bool) -> TCPStore:
    """The store another node, or another supervisor of this job on this node, hosts."""
    local = _address_towards(host, port) == host
    taken = UserError(f"--rendezvous {place}: the port is taken by something else; name another, or leave it out")
    if local and alone:
        raise taken
    found = _connect(host, port, 2.0 if local else REACH)
    if found is None and local:
        raise taken
    if found is None:
        raise UserError(
            f"--rendezvous {place} cannot be reached from this node; start the job there too, and check the network"
        )
    store, owner = found
    if owner != name:
        raise taken
    store.set_timeout(timedelta(seconds=_ANSWER))
    _end_in_silence(host, port)
    return store


def _connect(host: str, port: int, seconds: float) -> tuple[TCPStore, str] | None:
    """The store at an end point and whose it is; None if nothing of torch's answers in time.

    Torch's client looks again after ever longer pauses, and would come too late for the last call of a host that was
    waited for: it is made once somebody listens. In a thread of its own: something else that listens there but never
    answers would hold it for ever.
    """
    found: list[tuple[TCPStore, str]] = []

    def try_it() -> None:
        if not _listened_to(host, port, seconds):
            return
        try:
            store = TCPStore(host, port, timeout=timedelta(seconds=seconds), wait_for_workers=False)
            found.append((store, store.compare_set(_OWNER, "", "").decode()))  # reads, does not wait for the key
        except (RuntimeError, ValueError) as error:  # nobody there, or somebody with other manners
            logging.getLogger(__name__).debug("no store at %s:%s: %s", host, port, error)

    thread = threading.Thread(target=try_it, daemon=True)
    thread.start()
    thread.join(seconds + 1)
    return found[0] if found else None


def _listened_to(host: str, port: int, seconds: float) -> bool:
    """Wait until somebody listens at an end point; False if nobody does in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return True
        except OSError:  # nobody yet, or no way there
            time.sleep(_LOOK)
    return False


def _end_in_silence(host: str, port: int) -> None:
    """Let the kernel end our connection to the store when its host is silent: torch itself would wait for ever.

    Torch does not give its socket away, so it is looked for among the descriptors of this process.
    """
    found = False
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(int(descriptor)))  # options are the connection's, not the number's
        except OSError:  # closed since it was listed
            continue
        with connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or not _leads_to(connection, host, port):
                continue
            found = True
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * SILENCE))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
                connection.setsockopt(socket.IPPROTO_TCP, option, 2)
    if not found:
        raise RuntimeError(f"no connection to {host}:{port} among this process's descriptors")


def _leads_to(connection: socket.socket, host: str, port: int) -> bool:
    try:
        peer = connection.getpeername()
    except OSError:  # it listens, or is no longer connected
        return False
    return (peer[0].removeprefix("::ffff:"), peer[1]) == (host, port)


def _address_towards(host: str, port: int) -> str:
    """This node's own address on the way to another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:  # nothing is sent
        try:
            way.connect((host, port))
        except OSError:
            return "127.0.0.1"
        return way.getsockname()[0]


def _interface_of(address: str) -> str | None:
    """The network interface that has `address`."""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(question, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
