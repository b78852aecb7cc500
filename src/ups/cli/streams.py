"""Output that nobody reads any more ends no work: a terminal that was closed, a pipe into `head`, a full disk's log."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

_GONE = {errno.EPIPE, errno.EIO}
_FULL = {errno.ENOSPC, errno.EDQUOT}


class _Lasting(io.FileIO):
    def write(self, content: Any, /) -> int:
        try:
            return super().write(content) or 0
        except OSError as error:
            # A rank's log may be incomplete; what a command was asked to print into a file may not.
            if error.errno not in (_GONE | _FULL if "RANK" in os.environ else _GONE):
                raise
            return len(content)


def outlast_readers() -> None:
    """From now on, what is printed to a reader that is gone is dropped."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        before = getattr(sys, name)
        before.flush()
        raw = io.BufferedWriter(_Lasting(number, "wb", closefd=False))
        lines = before.line_buffering or name == "stderr"
        setattr(sys, name, io.TextIOWrapper(raw, before.encoding, before.errors, line_buffering=lines))
