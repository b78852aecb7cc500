"""A run directory belongs to one job at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ups.errors import UserError
from ups.locks import held

LOCK = ".lock"


@contextmanager
def claimed(directory: Path, rendezvous: str | None = None) -> Iterator[None]:
    """The directory, made if need be, ours until we leave or die; nodes that meet at the same address share it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / LOCK
        lock = path.open("a+")
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}; choose another --runs folder") from error
    in_use = _in_use(directory)
    with lock:
        if held(lock, path):
            lock.truncate(0)
            lock.write(rendezvous or "")
            lock.flush()
        elif rendezvous is None or not _says(lock, rendezvous):
            raise in_use
        if rendezvous is not None:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if not _says(lock, rendezvous):  # to share it, a lock is let go for a moment, in which another may take it
                raise in_use
        yield


def refuse_claimed(directory: Path) -> None:
    """Refuse a directory in which another process works; nothing is claimed."""
    path = directory / LOCK
    if path.exists():
        with path.open("a+") as lock:
            if not held(lock, path):
                raise _in_use(directory)


def _in_use(directory: Path) -> UserError:
    return UserError(f"{directory} is in use by another process; wait for it, or give another name=...")


def _says(lock: IO[str], rendezvous: str) -> bool:
    """Whether the holder writes our address; nodes start at the same moment, so it may need one to write it."""
    for _ in range(30):
        lock.seek(0)
        if text := lock.read():
            return text == rendezvous
        time.sleep(0.1)
    return False
