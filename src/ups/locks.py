"""A file that one process at a time may hold, until it is closed: by its end too, however that comes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Any


def held(file: IO[Any], path: Path) -> bool:
    """Whether the file, opened at `path`, is ours alone now; if not, another process has it or had it just now.

    A holder may remove or rename what it held: then the lock is on a file without that name, and another process may
    hold the one that has it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
