"""A run directory belongs to one job at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

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
    with lock:
        if _held(lock, path):
            lock.truncate(0)
            lock.write(rendezvous or "")
            lock.flush()
        elif rendezvous is None or not _says(lock, rendezvous):
            raise in_use(directory)
        if rendezvous is not None:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if not _says(lock, rendezvous):  # to share it, a lock is let go for a moment, in which another may take it
                raise in_use(directory)
        yield


def is_claimed(directory: Path) -> bool:
    """Whether a process works in the directory; it is not claimed."""
    try:
        with (directory / LOCK).open("r+b") as lock:
            return not _held(lock, directory / LOCK)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _held(lock: IO[Any], path: Path) -> bool:
    """Whether the lock is ours now. Who only asks whether it is free has it for a moment, so it is tried again."""
    for _ in range(3):
        if held(lock, path):
            return True
        time.sleep(0.05)
    return False


def in_use(directory: Path) -> UserError:
    return UserError(f"{directory} is in use by another process; wait for it, or give another name=...")


def gone(directory: Path) -> UserError:
    return UserError(f"{directory} was removed or moved while its job ran, which is ended")


def _says(lock: IO[str], rendezvous: str) -> bool:
    """Whether the holder writes our address; nodes start at the same moment, so it may need one to write it."""
    for _ in range(30):
        lock.seek(0)
        if text := lock.read():
            return text == rendezvous
        time.sleep(0.1)
    return False
