"""The vote of ranks on one node: each writes its ballot into a small mapped file and reads the others'.

A reduction over sockets wakes four threads a vote, which costs a millisecond or more where ranks share cores; this
costs microseconds. Nobody waits for a dead peer longer than its launcher needs to end us all, as in any collective.

    RUN/heartbeats/ballots_000     one row a rank and turn: number of the vote, ballot, checksum
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

_ROW = struct.Struct("<q5iI")
_PATIENT, _LONGEST = 0.002, 0.001
"""Seconds after which a rank that waits sleeps between two looks, and how long at most: what it burns, others lack."""


class Ballots:
    """`Ballots(...).vote((0, 0, 1, 0, 900))`: the largest of each of five numbers over ranks."""

    def __init__(self, directory: Path, rank: int, size: int, attempt: int, barrier: Callable[[], object]) -> None:
        path = directory / "heartbeats" / f"ballots_{attempt:03d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._rank, self._size, self._number = rank, size, 0
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            for turn in range(2):  # over what an earlier job left; a hole would be SIGBUS on a full disk
                os.pwrite(file, bytes(_ROW.size), self._place(turn, rank).start)
            barrier()
            self._map = mmap.mmap(file, 2 * size * _ROW.size)
        finally:
            os.close(file)

    def vote(self, ballot: Sequence[int]) -> tuple[int, ...]:
        """Two rows a rank, used in turn: nobody can be two votes ahead, because each needs everyone's ballot."""
        self._number += 1
        turn = self._number % 2
        content = struct.pack("<q5i", self._number, *ballot)
        self._map[self._place(turn, self._rank)] = content + struct.pack("<I", zlib.crc32(content))
        largest, began = tuple(ballot), time.monotonic()
        for rank in range(self._size):
            while (theirs := self._read(turn, rank)) is None:
                waited = time.monotonic() - began
                time.sleep(0 if waited < _PATIENT else min(waited / 40, _LONGEST))
            largest = tuple(map(max, largest, theirs))
        return largest

    def _read(self, turn: int, rank: int) -> tuple[int, ...] | None:
        """A rank's ballot of this vote; None while it has not voted, or is just writing."""
        row = self._map[self._place(turn, rank)]
        number, *ballot, checksum = _ROW.unpack(row)
        return tuple(ballot) if number == self._number and checksum == zlib.crc32(row[:-4]) else None

    def _place(self, turn: int, rank: int) -> slice:
        start = (turn * self._size + rank) * _ROW.size
        return slice(start, start + _ROW.size)
