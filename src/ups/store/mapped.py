"""The shards of an array in one stretch of addresses: read as one array in memory, whatever file a row lies in.

Address space for the whole array is reserved first, which costs nothing; a shard is mapped into its place when it is
first asked for and its checksum is right. A mapping outlives its descriptor, so no file stays open. Python's `mmap`
cannot choose an address, hence the call of the C library.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
from pathlib import Path

import numpy as np
from jaxtyping import Int

from ups.store.layout import REWRITE, ArrayLayout, Shard, StoreDamaged, little_endian, shard_problem, size_problem

_FIXED = 0x10  # MAP_FIXED, of Linux and macOS alike
_NOWHERE = 1 << 62  # a place beyond all numbers

_map_file = ctypes.CDLL(None, use_errno=True).mmap
_map_file.restype = ctypes.c_void_p
_map_file.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Mapped:
    """`numbers` holds all shards of an array; what lies between them belongs to no row.

    Row r begins at `places[r]`: beyond all numbers until its shard is mapped.
    """

    def __init__(self, path: Path, layout: ArrayLayout) -> None:
        self._path, self._shards = path, layout.shards
        page, kind = mmap.PAGESIZE, little_endian(layout.dtype)
        self._slots = np.cumsum([0, *(-(-shard.bytes // page) * page for shard in layout.shards)])
        # Given back, with all that was mapped into it, when the last view of it is gone.
        size = int(self._slots[-1])
        reserved = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
        self.numbers = np.frombuffer(reserved, dtype=kind)
        self.places = np.full(layout.shape[0], _NOWHERE)
        self._row = math.prod(layout.shape[1:])
        self._firsts = np.array([shard.first for shard in layout.shards])
        self._lock = threading.Lock()

    def need(self, rows: Int[np.ndarray, " B"]) -> None:
        """Map the shards of these rows that are not yet; StoreDamaged names one that is not what was written."""
        with self._lock:
            missing = rows[self.places[rows] == _NOWHERE]
            for number in np.unique(self._firsts.searchsorted(missing, side="right") - 1):
                shard, slot = self._shards[number], int(self._slots[number])
                self._map(shard, self.numbers.ctypes.data + slot)
                places = slot // self.numbers.itemsize + self._row * np.arange(shard.rows)
                self.places[shard.first : shard.first + shard.rows] = places

    def _map(self, shard: Shard, address: int) -> None:
        if problem := size_problem(self._path, shard):
            raise StoreDamaged(problem, REWRITE, shard.file)
        # Read, not mapped: pages that only the checksum needs do not count as this process's memory.
        if problem := shard_problem(self._path, shard):
            raise StoreDamaged(problem, f"remove this file and {REWRITE}", shard.file)
        with (self._path / shard.file).open("rb", buffering=0) as file:
            flags = mmap.MAP_SHARED | _FIXED
            found = _map_file(address, shard.bytes, mmap.PROT_READ, flags, file.fileno(), 0)
        if found != address:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot map: {os.strerror(number)}", str(self._path / shard.file))
