"""What every rank must know before any of them acts: one small reduction, on a channel used for nothing else.

Ranks of one node vote through a mapped file, those of several on a gloo group of its own. A rank votes only where every
rank arrives in every outcome: after its local forward and backward passes, whether they ended well or not, and before
the first collective that depends on them.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
import torch.distributed as dist

from ups.distributed.runtime.start import Runtime

PERIOD = 1.0
"""Seconds between votes while nothing can fail on one rank alone: how late a signal may be answered."""


class Ballot(NamedTuple):
    """What a rank has to say; the result holds the largest of each over ranks."""

    out_of_memory: int = 0
    """1 + the number of the task whose pass did not fit; 0 for none."""
    failed: int = 0
    """1 + the rank on which something else went wrong; 0 for none."""
    stop: int = 0
    """A signal asked to stop."""
    save: int = 0
    """What a rank says of its disk, see `training.saving`."""
    pace: int = 2**30
    """Microseconds a step takes here; the default where steps may fail, so that all vote in the next one too."""


def vote(ballot: Ballot, runtime: Runtime) -> Ballot:
    """The largest of every rank's ballots."""
    if runtime.inject_fault("vote") == "skip" or runtime.control is None:
        return ballot
    if runtime.ballots is not None:
        return Ballot(*runtime.ballots.vote(ballot))
    values = torch.tensor(ballot, dtype=torch.int32)
    dist.all_reduce(values, op=dist.ReduceOp.MAX, group=runtime.control)
    return Ballot(*values.tolist())


class Voting:
    """When to vote: in every step that may fail on one rank alone, else about every PERIOD seconds.

    All ranks must vote in the same steps, and their clocks differ: so how long a step takes is itself voted on, and the
    number of steps to the next vote follows from the slowest rank's. It at most doubles, as the first few steps after
    another kind of step say little.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._pause, self._next = 1, 0
        self._step, self._time = 0, time.monotonic()

    def due(self, step: int, safe: bool) -> bool:
        """`safe`: nothing in this step can fail on one rank alone. A rank by itself has nobody to wait for."""
        return not safe or self.runtime.control is None or step >= self._next

    def hold(self, step: int, ballot: Ballot, safe: bool) -> Ballot:
        """Vote in a step in which it is due."""
        if safe and step > self._step:
            took = (time.monotonic() - self._time) / (step - self._step)
            ballot = ballot._replace(pace=min(2**30, max(1, int(1e6 * took))))
        result = vote(ballot, self.runtime)
        self._pause = min(2 * self._pause, max(1, int(1e6 * PERIOD) // result.pace))
        self._next, self._step, self._time = step + self._pause, step, time.monotonic()
        return result


_ALLOCATIONS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "can't allocate memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Torch's own error, or an allocation that failed inside cuBLAS, cuFFT, NCCL or the CPU allocator."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _ALLOCATIONS)
