"""A run directory belongs to one job at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ups.errors import UserError


@contextmanager
def claimed(directory: Path, rendezvous: str | None = None) -> Iterator[None]:
    """The directory, made if need be, ours until we leave or die; nodes that meet at the same address share it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("a+")
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}; choose another --runs folder") from error
    with lock:
        try:
            _lock(lock, rendezvous)
        except BlockingIOError:
            raise UserError(
                f"{directory} is in use by another process; wait for it, or give another name=..."
            ) from None
        yield


def _lock(lock: IO[str], rendezvous: str | None) -> None:
    """Exclusive, unless those who hold it wrote the address where we are to meet."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if rendezvous is None or not _says(lock, rendezvous):
            raise
        fcntl.flock(lock, fcntl.LOCK_SH)
        return
    lock.truncate(0)
    if rendezvous is not None:
        lock.write(rendezvous)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_SH)


def _says(lock: IO[str], rendezvous: str) -> bool:
    """Whether the holder writes our address; nodes start at the same moment, so it may need one to write it."""
    for _ in range(30):
        lock.seek(0)
        if text := lock.read():
            return text == rendezvous
        time.sleep(0.1)
    return False
