"""What a process knows of its GPU when a CUDA error ends it: that error comes late, and names no kernel.

It is added to the exception, so that it stands on the terminal and in the crash report: the last graph, how many were
recorded and replayed, and what the allocator holds. With UPS_CUDA_HISTORY=1 the allocator also keeps its history, which
`rank_R.memory.pickle` beside the rank's stacks then holds, for https://docs.pytorch.org/memory_viz.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ups import graphs
from ups.distributed.faults.crash import attempt_directory

_CUDA = re.compile(r"cuda|cublas|cufft|cudnn|nccl", re.IGNORECASE)
_ENTRIES = 200_000  # of the allocator's history: some minutes of eager steps
_HELD = ("allocated_bytes.all", "reserved_bytes.all", "inactive_split_bytes.all")


@contextmanager
def cuda_errors(device: torch.device, directory: Path | None, rank: int, attempt: int) -> Iterator[None]:
    """Within, an error of the GPU gets a note of what is known."""
    keeps = device.type == "cuda" and os.environ.get("UPS_CUDA_HISTORY") == "1"
    if keeps:  # private, as is `_dump_snapshot`: torch has no other way to its allocator's history
        torch.cuda.memory._record_memory_history(max_entries=_ENTRIES, stacks="python")
    try:
        yield
    except RuntimeError as error:
        if device.type == "cuda" and _CUDA.search(str(error)):
            error.add_note(_known())
            if keeps and directory is not None:
                error.add_note(_dump(attempt_directory(directory, attempt) / f"rank_{rank}.memory.pickle"))
        raise


def _known() -> str:
    """From this process's own books: after some errors the device answers no question."""
    counts = f"{graphs.launches.recorded} graphs were recorded and {graphs.launches.replayed} replayed"
    held = torch.cuda.memory_stats()
    told = ", ".join(f"{name.partition('.')[0]} {held.get(f'{name}.current', 0)}" for name in _HELD)
    told += f", allocations {held.get('num_device_alloc', 0)}, retries {held.get('num_alloc_retries', 0)}"
    return f"{counts}, last: {graphs.launches.last}; the allocator: {told}"


def _dump(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.cuda.memory._dump_snapshot(str(path))
    except (OSError, RuntimeError) as error:
        return f"the allocator's history could not be written: {error}"
    return f"the allocator's history is in {path}"
