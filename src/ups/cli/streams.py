"""Output that nobody reads ends no work: a closed or stopped terminal, a pipe into `head` or `less`, a full disk."""

from __future__ import annotations

import errno
import io
import os
import select
import stat
import sys
from typing import Any

_GONE = {errno.EPIPE, errno.EIO}
_FULL = {errno.ENOSPC, errno.EDQUOT}


PATIENCE = 1.0
"""Seconds that a rank waits for a reader who stopped reading: its peers wait for it, and it must not seem to hang."""


class _Lasting(io.FileIO):
    _stuck = False

    def write(self, content: Any, /) -> int:
        try:
            written = super().write(content)
            if written is None and select.select([], [self], [], 0 if self._stuck else PATIENCE)[1]:
                written = super().write(content)
            self._stuck = written is None  # a pipe or terminal that takes no more
            return len(content) if written is None else written
        except OSError as error:
            # A rank's log may be incomplete; what a command was asked to print into a file may not.
            if error.errno not in (_GONE | _FULL if "RANK" in os.environ else _GONE):
                raise
            return len(content)


def outlast_readers() -> None:
    """From now on, what is printed to a reader that is gone is dropped; in a rank, and of messages on stderr, what is
    printed to one that does not read too.
    """
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        before.flush()
        own = _without_waiting(number) if name == "stderr" or "RANK" in os.environ else None
        raw = io.BufferedWriter(_Lasting(number if own is None else own, "wb", closefd=own is not None))
        lines = before.line_buffering or name == "stderr"
        setattr(sys, name, io.TextIOWrapper(raw, before.encoding, before.errors, line_buffering=lines))


def _without_waiting(number: int) -> int | None:
    """The same pipe or terminal, opened so that writing never waits: for us, not for all that share it."""
    mode = os.fstat(number).st_mode
    if not (stat.S_ISFIFO(mode) or os.isatty(number)):
        return None
    try:
        return os.open(f"/dev/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # another user's, or gone
        return None
