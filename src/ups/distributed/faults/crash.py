"""What a rank leaves behind when it dies: stacks and the failure, in `RUN/crash/attempt_000/`.

    arm(directory, rank, attempt)              early in the process: from now on every death leaves stacks
    record_failure(directory, rank, ...)       on an exception, before leaving

`rank_R.stacks` holds the Python stacks of all threads, written by the process itself at a fatal signal or
when the supervisor asks with SIGUSR1; `rank_R.json` the exception. Nothing here communicates with other ranks.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from ups.distributed.faults.heartbeat import Heartbeat

_CONNECTION = re.compile(
    r"connection (closed|reset|refused|was lost|aborted)|broken pipe|remote process exited|socket|failed to recv"
    r"|timed? ?out|\bstore\b|network error|peer|no route to host|unreachable",
    re.IGNORECASE,
)
_COMMUNICATION = re.compile(r"gloo|nccl|c10d|process ?group|tcpstore|all_?reduce|broadcast|barrier|rendezvous", re.I)

_stacks: list[IO[str]] = []
"""The open stacks file: faulthandler keeps only its number, so that the object must live as long as the process."""


class PeerFailed(RuntimeError):
    """Raised by a rank that leaves because another one failed, so that it is not blamed itself."""


def attempt_directory(directory: Path, attempt: int) -> Path:
    """Where the ranks of one attempt leave what a report is made of."""
    return directory / "crash" / f"attempt_{attempt:03d}"


def arm(directory: Path, rank: int, attempt: int) -> None:
    """Every death from here on leaves Python stacks in `rank_R.stacks`, and C++ stacks in the rank's log.

    The order matters: torch's handlers first, so that faulthandler's run before them and both stacks survive.
    """
    if torch := sys.modules.get("torch"):  # without torch there is no C++ worth a stack
        torch._C._set_print_stack_traces_on_fatal_signal(True)
    folder = attempt_directory(directory, attempt)
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / f"rank_{rank}.stacks").open("w")
    _stacks[:] = [file]
    faulthandler.enable(file, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file, all_threads=True)


def record_failure(
    directory: Path,
    rank: int,
    attempt: int,
    error: BaseException,
    heartbeat: Heartbeat,
    details: Mapping[str, Any],
) -> None:
    """Write `rank_R.json`: the exception, where it happened, memory, and `details` (task, shapes, device, ...)."""
    folder = attempt_directory(directory, attempt)
    folder.mkdir(parents=True, exist_ok=True)
    failure = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "rank": rank,
        "pid": os.getpid(),
        "type": type(error).__name__,
        "message": str(error),
        "follows": is_connection_loss(error),
        "traceback": "".join(traceback.format_exception(error)),
        "phase": heartbeat.phase,
        "step": heartbeat.step,
        "details": dict(details),
        "memory": _memory(),
        "descriptors": {
            "open": len(os.listdir("/proc/self/fd")),
            "limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        },
    }
    temporary = folder / f".rank_{rank}.json"
    temporary.write_text(json.dumps(failure, indent=1, default=str) + "\n")
    temporary.rename(folder / f"rank_{rank}.json")


def is_connection_loss(error: BaseException) -> bool:
    """Is this the failure of a survivor, whose peer is gone, rather than one of its own?"""
    if isinstance(error, PeerFailed | ConnectionError):
        return True
    if type(error).__name__ in ("DistNetworkError", "DistStoreError"):
        return True
    text = str(error)
    communicates = type(error).__name__ == "DistBackendError" or _COMMUNICATION.search(text)
    return bool(isinstance(error, RuntimeError) and communicates and _CONNECTION.search(text))


def _memory() -> dict[str, Any]:
    """Bytes: this process's resident memory, and the GPU's if torch uses one."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory: dict[str, Any] = {"resident": pages * resource.getpagesize()}
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return memory
    memory |= {"cuda_allocated": torch.cuda.memory_allocated(), "cuda_reserved": torch.cuda.memory_reserved()}
    try:
        free, total = torch.cuda.mem_get_info()
        memory |= {"cuda_free": free, "cuda_total": total}
    except RuntimeError as error:  # after some GPU errors no question to the device is answered any more
        memory["cuda"] = f"cannot be asked: {error}"
    return memory
