"""What this process needs from its machine, looked at before the first collective."""

from __future__ import annotations

import resource
import shutil
import sys
from pathlib import Path

from ups.errors import UserError

SHARED_MEMORY = 64 * 2**20
"""Bytes of /dev/shm that NCCL may use for each rank of a node."""
DESCRIPTORS = 1024


def refuse_other_systems() -> None:
    if sys.platform != "linux":
        raise UserError(
            "training and evaluation run on Linux alone, whose scheduler and /proc they ask; load what was trained "
            "elsewhere with ups.load, or train in a container or a virtual machine"
        )


def preflight(cuda: bool, ranks: int) -> tuple[str, ...]:
    """Sentences about limits that NCCL may meet. Our own code uses neither shared memory nor many descriptors."""
    notes = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(DESCRIPTORS, hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
        soft = min(DESCRIPTORS, hard)
    if not cuda or ranks == 1:
        return ()
    if soft < DESCRIPTORS:
        notes.append(f"at most {soft} open files are allowed and NCCL may need {DESCRIPTORS}; raise `ulimit -n`")
    shared = Path("/dev/shm")
    free = shutil.disk_usage(shared).free if shared.is_dir() else 0
    if free < SHARED_MEMORY * ranks:
        notes.append(
            f"/dev/shm has {free / 2**20:.0f} MB free and NCCL may need {SHARED_MEMORY * ranks / 2**20:.0f} MB; "
            "enlarge it (docker: --shm-size=1g) or set NCCL_SHM_DISABLE=1"
        )
    return tuple(notes)


def left_idle(tf32: bool, capability: tuple[int, int]) -> tuple[str, ...]:
    """What a GPU of this compute capability could do faster, and was not told to."""
    if tf32 or capability < (8, 0):
        return ()
    return ("float32 products are exact here; runtime.tf32=true rounds their factors to 10 bits and trains faster",)
