"""Where the nodes of a job meet: torch's store and rendezvous, on a free port or at the end point the user named.

When the network between nodes is cut, the side that has the store goes on and the other one must stop: both write to
one run directory. A node whose connection to the store is silent for SILENCE seconds kills its ranks and leaves; the
others start again without it only after it has missed three heartbeats and a last call for it, which takes longer.

Stores listen on the address of the rendezvous alone, the loopback where there is one node. Torch unpickles what it
finds in its store, so that it is shown only what a node signed that can read `RUN/.secret`, which only the owner may.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
    Token,
)

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


def join(directory: Path, least: int, most: int, place: str | None) -> Rendezvous:
    """Open the rendezvous of the job in `directory` at `place`, HOST:PORT, or on a free port of the loopback."""
    name = f"ups-{directory.name}"
    host, port = ("127.0.0.1", 0) if place is None else _end_point(place)
    server = _server(host, port, place)
    if server is None:
        assert place is not None
        store = _reach(name, host, port, place, alone=most == 1)
        return _joined(directory, least, most, store, False, place, _address_towards(host, port))
    port = server.getsockname()[1]
    answer = timedelta(seconds=_ANSWER)
    store = TCPStore(
        host, port, is_master=True, timeout=answer, wait_for_workers=False, master_listen_fd=server.detach()
    )
    store.set(_OWNER, name)
    return _joined(directory, least, most, store, True, place or f"{host}:{port}", host)


class _Signed(RendezvousBackend):
    """A rendezvous' state, signed: what others than this run's nodes have written is refused before it is unpickled."""

    def __init__(self, store: TCPStore, name: str, secret: bytes) -> None:
        self._inner, self._secret = C10dRendezvousBackend(store, name), secret

    @property
    def name(self) -> str:
        return self._inner.name

    def get_state(self) -> tuple[bytes, Token] | None:
        found = self._inner.get_state()
        return found and (self._checked(found[0]), found[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        found = self._inner.set_state(self._signature(state) + state, token)
        return found and (self._checked(found[0]), *found[1:])

    def _signature(self, state: bytes) -> bytes:
        return hmac.digest(self._secret, state, hashlib.sha256)

    def _checked(self, signed: bytes) -> bytes:
        size = hashlib.sha256().digest_size
        signature, state = signed[:size], signed[size:]
        if not hmac.compare_digest(signature, self._signature(state)):
            raise RendezvousStateError("what is at the rendezvous was not written by a node of this run")
        return state


def _secret(directory: Path) -> bytes:
    """What all nodes of a run know and nobody else, made by whoever is first."""
    path = directory / ".secret"
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        end = time.monotonic() + REACH
        while path.stat().st_size < 64 and time.monotonic() < end:  # another node is just writing it
            time.sleep(_LOOK)
    return path.read_bytes()


def _joined(
    directory: Path, least: int, most: int, store: TCPStore, host: bool, place: str, address: str
) -> Rendezvous:
    name = f"ups-{directory.name}"
    handler = DynamicRendezvousHandler.from_backend(
        name,
        store,
        _Signed(store, name, _secret(directory)),
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


def _server(host: str, port: int, place: str | None) -> socket.socket | None:
    """Listens at HOST:PORT, if HOST is this node and the port free; one that an ended job left is."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):  # another node, or a job on this one
            return None
        raise UserError(f"--rendezvous {place}: cannot use that port ({error.strerror}); name another") from error


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
