"""What a check finds in the machine: device, limits of the system, network, clock, room in memory and on disks."""

from __future__ import annotations

import importlib
import os
import re
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.cuda import nccl

from ups.distributed.runtime.host import host_state
from ups.distributed.runtime.preflight import left_idle, preflight
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import wants_cuda
from ups.errors import UserError
from ups.ops.findings import Finding, counted
from ups.track.environment import software
from ups.track.tracked import check_trackers

CLOCK = 2.0
"""Seconds that the clocks of this machine and of the run directory's disk may differ: nodes compare times of files."""
_GB = 1e9


def check_device(config: RuntimeConfig, ranks: int) -> Iterator[Finding]:
    """The device and what is needed to use it as asked."""
    cuda = wants_cuda(config)
    if not cuda:
        cores = len(os.sched_getaffinity(0))
        yield Finding("green", "device", f"{counted(ranks, 'CPU rank')} on {counted(cores, 'core')}; {software()}")
        threads = config.threads or int(os.environ.get("OMP_NUM_THREADS") or 1)
        if ranks * threads > cores:
            share = f"{counted(ranks, 'rank')} of {counted(threads, 'thread')} on {counted(cores, 'core')}"
            says = f"{share} slow one another; use fewer"
            yield Finding("amber", "device", says)
        if shutil.which("nvidia-smi") and not torch.cuda.is_available():
            says = f"the machine has NVIDIA's driver, which torch {torch.__version__} cannot use; install a CUDA build"
            yield Finding("amber", "device", says)
    else:
        count = torch.cuda.device_count()
        if ranks > count and os.environ.get("UPS_SHARE_DEVICE") != "1":
            raise UserError(f"{ranks} ranks were asked for and there are {count} GPUs here; use --ranks {count}")
        version = ".".join(map(str, nccl.version())) if dist.is_nccl_available() else "none"
        names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(n) for n in range(min(ranks, count))))
        built = f"CUDA {torch.version.cuda}, NCCL {version}, driver {driver()}"
        yield Finding("green", "device", f"{names}; {software()}, {built}")
        for note in left_idle(config.tf32, torch.cuda.get_device_capability(0)):
            yield Finding("amber", "device", note)
        if not dist.is_nccl_available() and ranks > 1:
            raise UserError("this torch was built without NCCL, which several GPUs need; install another build")
    if config.capture == "on" and not cuda:
        raise UserError("runtime.capture is on, but only steps on a GPU can be captured; use runtime.capture=auto")
    compiler = os.environ.get("CXX") or "g++"
    if config.compile and not cuda and shutil.which(compiler) is None:
        raise UserError(f"runtime.compile needs a C++ compiler, and there is no {compiler} here; install one")


def driver(told: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The version of NVIDIA's driver, as the system's own module says it."""
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", told.read_text()) if told.is_file() else None
    return found[1] if found else "unknown"


def check_limits(config: RuntimeConfig, ranks: int, largest: float) -> Iterator[Finding]:
    """What the system allows; `largest` is the size of the largest file that the run writes."""
    for note in preflight(wants_cuda(config), ranks):
        yield Finding("amber", "limits", note)
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY and soft < largest:
        raise UserError(f"files may have {soft / _GB:.3g} GB and the run writes {largest / _GB:.3g}; raise `ulimit -f`")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 256:
        raise UserError(f"at most {files} files may be open here and a run needs 256; raise `ulimit -n`")
    yield Finding("green", "limits", f"{files} open files, {_free_shared():.3g} GB of shared memory")


def check_network(ranks: int) -> Iterator[Finding]:
    """Ranks of one machine speak over its loopback."""
    if ranks == 1:
        return
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 2):
            port = server.getsockname()[1]
    except OSError as error:
        raise UserError(f"ranks could not meet on 127.0.0.1 ({error.strerror}); bring the interface lo up") from error
    yield Finding("green", "network", f"ranks can meet on 127.0.0.1, at port {port} for instance")


def check_directory(directory: Path) -> Iterator[Finding]:
    """Whether the run directory can be written to, and its disk's clock."""
    place = existing(directory)
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".ups-check.") as probe:
            probe.write(b" " * 2**20)
            probe.flush()
            os.fsync(probe.fileno())
            ahead = os.fstat(probe.fileno()).st_mtime - time.time()
    except OSError as error:
        raise UserError(f"cannot write to {place}: {error.strerror}; choose another --runs folder") from error
    if abs(ahead) > CLOCK:
        raise UserError(
            f"the clock of {place} is {ahead:+.0f} s from this machine's; set the clocks (ntpd), or restarts and "
            "rendezvous go wrong"
        )
    yield Finding("green", "directory", f"{directory} can be written to; clocks agree")


def check_disks(needs: Sequence[tuple[Path, str, float]]) -> Iterator[Finding]:
    """Of all that goes to one disk, in bytes, whether it has room: `needs` are (where, what, how much)."""
    disks: dict[int, list[tuple[Path, str, float]]] = {}
    for where, what, size in needs:
        place = existing(where)
        disks.setdefault(place.stat().st_dev, []).append((place, what, size))
    for wanted in disks.values():
        place, total = wanted[0][0], sum(size for _, _, size in wanted)
        free = shutil.disk_usage(place).free
        parts = ", ".join(f"{what} {size / _GB:.3g}" for _, what, size in wanted)
        if total > free:
            raise UserError(
                f"the disk of {place} has {free / _GB:.3g} GB free and the run needs {total / _GB:.3g} ({parts}); "
                "free some space, or choose another --runs folder or data.root"
            )
        level = "amber" if total > 0.8 * free else "green"
        yield Finding(level, "disk", f"{total / _GB:.3g} GB of {free / _GB:.3g} free on the disk of {place} ({parts})")


def check_trackers_of(config: RuntimeConfig) -> Iterator[Finding]:
    check_trackers(config)
    if config.tracking:
        yield Finding("green", "tracking", f"events.jsonl and {', '.join(config.tracking)}")


def memory_free(config: RuntimeConfig, ranks: int) -> tuple[float, str]:
    """Bytes that a rank may use, and what says so."""
    if wants_cuda(config):
        return float(min(torch.cuda.mem_get_info(n)[0] for n in range(torch.cuda.device_count()))), "free on the GPU"
    limits = {"of memory": host_state().memory_free, "of the control group": _cgroup_free()}
    known = {what: size / ranks for what, size in limits.items() if size is not None}
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        known["that `ulimit -v` allows"] = float(allowed)
    what = min(known, key=lambda name: known[name])
    return known[what], f"{what} for each rank" if ranks > 1 else what


def check_launcher(environment: Mapping[str, str]) -> Iterator[Finding]:
    """What a launcher has left in the environment."""
    if left := [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in environment]:
        raise UserError(f"{', '.join(left)} in the environment would be taken for a launcher's; unset them")
    for module in ("numpy", "h5py", "matplotlib", "safetensors"):  # what a run imports late
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UserError(f"{module} cannot be imported ({error}); install it again") from error
    yield Finding("green", "packages", "all are there")


def existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _free_shared() -> float:
    return (host_state().shm_free or 0) / _GB


def _cgroup_free() -> int | None:
    """What the control group leaves; None where it has no limit."""
    folder = Path("/sys/fs/cgroup")
    try:
        most, now = ((folder / f"memory.{name}").read_text().strip() for name in ("max", "current"))
    except OSError:
        return None
    return None if most == "max" else int(most) - int(now)
