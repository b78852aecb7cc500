"""What the host can tell about a death: free memory, /dev/shm, limits, and how often the kernel killed for memory."""

from __future__ import annotations

import os
import resource
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who supervises does not wait for it
    import torch


@dataclass(frozen=True)
class HostState:
    """Bytes and counts; None where this host does not say."""

    memory_free: int | None
    memory_total: int | None
    shm_free: int | None
    shm_total: int | None
    descriptor_limit: int
    oom_kills_cgroup: int | None
    oom_kills_host: int | None


def boot_id() -> str:
    """Of this machine, since it was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def process_space() -> int:
    """A number of the machine, or of its container, in which process ids mean the same as here."""
    return zlib.crc32(f"{boot_id()} {os.readlink('/proc/self/ns/pid')}".encode())


def host_memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_of(device: torch.device) -> int:
    """Bytes of the device, or of the host where it is a CPU."""
    if device.type != "cuda":
        return host_memory()
    import torch

    return torch.cuda.get_device_properties(device).total_memory


def host_state() -> HostState:
    """The host as it is now."""
    memory = _lines("/proc/meminfo")
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    cgroup = _lines("/sys/fs/cgroup/memory.events") or _lines("/sys/fs/cgroup/memory/memory.oom_control")
    return HostState(
        memory_free=_kilobytes(memory.get("MemAvailable")),
        memory_total=_kilobytes(memory.get("MemTotal")),
        shm_free=shm and shm.f_bavail * shm.f_frsize,
        shm_total=shm and shm.f_blocks * shm.f_frsize,
        descriptor_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        oom_kills_cgroup=cgroup.get("oom_kill"),
        oom_kills_host=_lines("/proc/vmstat").get("oom_kill"),
    )


def oom_kills(before: HostState, after: HostState) -> int | None:
    """Kills for memory between the two, of our control group where it says, else of the whole host."""
    for name in ("oom_kills_cgroup", "oom_kills_host"):
        first, last = getattr(before, name), getattr(after, name)
        if first is not None and last is not None:
            return last - first
    return None


def process_use(pid: int) -> tuple[int | None, int | None]:
    """Resident bytes and open descriptors of a living process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize(), len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, IndexError):  # it has just died
        return None, None


def work_of(session: int) -> tuple[float, int]:
    """CPU seconds and bytes read or written, so far, of the living processes of a session; waiting for a disk counts
    as a byte, so that two different answers show work.
    """
    seconds, moved = 0.0, 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != session:
                continue
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            moved += sum(int(line.split()[1]) for line in (process / "io").read_text().splitlines()[:2])
            states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in process.glob("task/*")]
            moved += time.monotonic_ns() if "D" in states else 0
        except (OSError, IndexError):  # it has just died
            continue
    return seconds, moved


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):  # it has just died
        return False


def _lines(path: str) -> dict[str, int]:
    """The `name number` lines of one of the kernel's files; nothing where there is no such file."""
    try:
        text = Path(path).read_text()
    except OSError:
        return {}
    pairs = (line.replace(":", " ").split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) >= 2 and pair[1].isdigit()}


def _kilobytes(value: int | None) -> int | None:
    return None if value is None else 1024 * value
