"""Faults on purpose, for tests: `UPS_FAULT="kill at update rank 1 step 7 attempt 0"`; several are separated by `;`.

Without the variable nothing here does anything. A fault happens at a named place of the program, on one rank, in one
step and one attempt (0 unless given), so that the same step succeeds after the restart.

    oom        torch's out-of-memory error            raise   another exception
    segv kill exit0   the process's death by SIGSEGV, by SIGKILL, by exit code 0
    sleep      never goes on                          skip    leaves out what comes next at this place
    nan        a loss that is not a number            flip    one parameter differs from its replicas
    term int   the signal, to this process            full    the disk's refusal
    squeeze    from now on, this rank's GPU has three quarters of the memory it has used so far: a real out-of-memory
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("oom", "raise", "segv", "kill", "exit0", "sleep", "skip", "nan", "flip", "term", "int", "full", "squeeze")


@dataclass(frozen=True)
class Fault:
    kind: str
    place: str
    rank: int
    step: int
    attempt: int = 0


def parse(text: str) -> list[Fault]:
    """The faults a variable's text names."""
    faults = []
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        kind, *rest = entry.split()
        given = dict(zip(rest[::2], rest[1::2], strict=True))
        if kind not in KINDS:
            raise ValueError(f"unknown fault {kind!r} in {entry!r}")
        faults.append(Fault(kind, given["at"], int(given["rank"]), int(given["step"]), int(given.get("attempt", 0))))
    return faults


_FAULTS = parse(os.environ.get("UPS_FAULT", ""))


def expect(fault: Fault) -> None:
    """Let one more happen: to see that the program answers it."""
    _FAULTS.append(fault)


def awaits(places: Collection[str]) -> bool:
    """Whether a fault is still to be injected at one of these places, on any rank."""
    return any(fault.place in places for fault in _FAULTS)


def inject_fault(place: str, rank: int, step: int, attempt: int, tensors: Sequence[Tensor] = ()) -> str | None:
    """Called at `place`: does what a fault for it asks, or returns its kind where only the caller can do it.

    `tensors` are the loss, whose backward pass is a place of its own, or the parameters.
    """
    for fault in _FAULTS:
        if (fault.rank, fault.step, fault.attempt) == (rank, step, attempt):
            if fault.place == place:
                _FAULTS.remove(fault)  # once: the same step may be tried again
                return _happen(fault, tensors)
            if place == "loss" and fault.place == "backward":
                _FAULTS.remove(fault)
                tensors[0].register_hook(lambda _, fault=fault: _happen(fault, ()) and None)
                return None
    return None


def _happen(fault: Fault, tensors: Sequence[Tensor]) -> str:
    if fault.kind == "nan":
        tensors[0].data.fill_(float("nan"))
        tensors[0].register_hook(lambda gradient: gradient * float("nan"))
    if fault.kind == "flip":
        next(part for part in (getattr(t, "_local_tensor", t) for t in tensors) if part.numel()).data.view(-1)[0] += 1.0
    if fault.kind == "oom":
        import torch

        raise torch.OutOfMemoryError(f"out of memory, on purpose, at {fault.place}")
    if fault.kind == "squeeze":
        import torch

        allowed = 0.75 * torch.cuda.max_memory_allocated() / torch.cuda.get_device_properties().total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(allowed)
    if fault.kind == "raise":
        raise RuntimeError(f"a failure on purpose at {fault.place}")
    if fault.kind == "full":
        raise OSError(errno.ENOSPC, "No space left on device, on purpose")
    if fault.kind == "segv":
        ctypes.string_at(0)
    if fault.kind == "exit0":
        os._exit(0)
    if fault.kind == "sleep":
        time.sleep(3600)
    if fault.kind in ("kill", "term", "int"):
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}[fault.kind])
    return fault.kind
