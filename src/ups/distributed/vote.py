"""What every rank must know before any of them acts: one small reduction a step, on a channel used for nothing else.

Ranks of one node vote through a mapped file, those of several on a gloo group of its own. A rank votes only where every
rank arrives in every outcome: after its local forward and backward passes, whether they ended well or not, and before
the first collective that depends on them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist

from ups.distributed.runtime import Runtime


class Ballot(NamedTuple):
    """What a rank has to say; the result holds the largest of each over ranks."""

    out_of_memory: int = 0
    """1 + the number of the task whose pass did not fit; 0 for none."""
    failed: int = 0
    """1 + the rank on which something else went wrong; 0 for none."""
    stop: int = 0
    """A signal asked to stop."""
    save: int = 0
    """A checkpoint was refused by the disk and should be tried again."""


def vote(ballot: Ballot, runtime: Runtime) -> Ballot:
    """The largest of every rank's ballots."""
    if runtime.strike("vote") == "skip" or runtime.control is None:
        return ballot
    if runtime.ballots is not None:
        return Ballot(*runtime.ballots.vote(ballot))
    values = torch.tensor(ballot, dtype=torch.int32)
    dist.all_reduce(values, op=dist.ReduceOp.MAX, group=runtime.control)
    return Ballot(*values.tolist())


_ALLOCATIONS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "can't allocate memory", "out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Torch's own error, or an allocation that failed inside cuBLAS, cuFFT, NCCL or the CPU allocator."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _ALLOCATIONS)
