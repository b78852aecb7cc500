"""Where a process runs: its rank, device, threads, groups and mesh. The first line of everything that trains.

    with Runtime.start(config.runtime, seed, directory) as rt:
        ...

It alone reads RANK, chooses the device, makes process groups, catches signals and seeds; it is handed to whatever needs
ranks, and nothing else asks. Without RANK in the environment it is rank 0 of 1 and there are no groups. GPUs speak
NCCL and CPUs gloo; where that is not possible it fails and says why.

All groups have long time-outs that nobody changes: dead peers are found by their sockets, hangs by the heartbeat.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _get_default_store as _default_store

from ups.distributed.ballots import Ballots
from ups.distributed.faults import crash, injection
from ups.distributed.faults.cuda_errors import cuda_errors
from ups.distributed.faults.heartbeat import Heartbeat, heartbeat_path
from ups.distributed.faults.watchdog import watching
from ups.distributed.launch.outcome import supervised
from ups.distributed.runtime.host import boot_id
from ups.distributed.runtime.preflight import left_idle, preflight, refuse_other_systems
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.signals import StopFlag, stoppable
from ups.errors import GaveUp, Stopped, UserError
from ups.track.environment import software

Result = TypeVar("Result")

TIMEOUT = timedelta(hours=2)
"""Of collectives: longer than any phase in which a peer may rightly be."""
_SEEN = 10.0  # seconds in which a file that one node writes must be seen by the others
_HEARING = 2.0  # seconds rank 0 waits for the others to hear of its failure
_ENDS = {kind.__name__: kind for kind in (UserError, Stopped, GaveUp)}
"""Ends by decision: the ranks that follow one decide the same."""


@dataclass(frozen=True)
class Ranks:
    """Who we are among how many, in all and on this node, as the launcher says; `attempt` counts restarts."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    attempt: int = 0
    launched: bool = False

    @classmethod
    def read(cls) -> Ranks:
        if "RANK" not in os.environ:
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                raise UserError("WORLD_SIZE is set but RANK is not; start ranks with `ups train --gpus N` or torchrun")
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        needed = (*names, "MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in needed if name not in os.environ]:
            raise UserError(
                f"RANK is set but {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not; start ranks with "
                "`ups train --gpus N` or torchrun, or unset RANK"
            )
        try:
            numbers = [int(os.environ[name]) for name in names]
        except ValueError:
            shown = ", ".join(f"{name}={os.environ[name]}" for name in names)
            raise UserError(f"the launcher's variables are not whole numbers ({shown}); unset them") from None
        return cls(*numbers, attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), launched=True)


@dataclass(frozen=True)
class Runtime:
    """`ballots`, on one node, or `control` carries votes and nothing else; `saving` checkpoints, and what ranks agree
    on at the start.
    """

    config: RuntimeConfig
    ranks: Ranks
    device: torch.device
    threads: int
    heartbeat: Heartbeat
    ballots: Ballots | None = None
    control: ProcessGroup | None = None
    saving: ProcessGroup | None = None
    mesh: DeviceMesh | None = None
    directory: Path | None = None
    """Of the run, which all ranks share."""
    notes: tuple[str, ...] = ()
    stop: StopFlag = field(default_factory=StopFlag)
    doing: dict[str, Any] = field(default_factory=dict)
    """What this rank computes just now, for its crash report: task, shapes, sample ids."""

    @property
    def rank(self) -> int:
        return self.ranks.rank

    @property
    def size(self) -> int:
        return self.ranks.size

    @classmethod
    @contextmanager
    def start(cls, config: RuntimeConfig, seed: int, directory: Path | None = None) -> Iterator[Runtime]:
        refuse_other_systems()
        ranks = Ranks.read()
        cuda = wants_cuda(config)
        if ranks.launched:
            _overwrite_environment(ranks)
            if directory is not None:
                crash.arm(directory, ranks.rank, ranks.attempt)
        heartbeats = heartbeat_path(directory, ranks.rank) if ranks.launched and directory is not None else None
        heartbeat = Heartbeat(heartbeats, ranks.rank, ranks.attempt)
        heartbeat.mark("init", 0)
        stop = StopFlag()
        with stoppable(stop, ranks.launched, ranks.rank, directory), _threads(config, ranks) as threads:
            device = _device(cuda, ranks)
            notes = preflight(cuda, ranks.size)
            if cuda and torch.version.cuda is not None:
                notes += left_idle(config.tf32, torch.cuda.get_device_capability(device))
            ballots = control = saving = None
            if ranks.launched:
                who = {"store": _store(ranks), "rank": ranks.rank, "world_size": ranks.size}
                own = device if cuda else None
                dist.init_process_group("nccl" if cuda else "gloo", timeout=TIMEOUT, device_id=own, **who)
                control, saving = _group(), _group()
                if ranks.size == ranks.local_size and directory is not None:
                    barrier = partial(dist.barrier, control)
                    ballots = Ballots(directory, ranks.rank, ranks.size, ranks.attempt, barrier)
            runtime = cls(
                config, ranks, device, threads, heartbeat, ballots, control, saving, None, directory, notes, stop
            )
            runtime._agree_on_machines()
            if ranks.launched:  # ranks that differ in their strategy would wait for each other's groups
                layout = f"{config.strategy}, shard {config.shard}"
                runtime.agree("strategy", layout, "give every rank the same runtime.strategy and runtime.shard")
                runtime = replace(runtime, mesh=device_mesh(config, ranks, device))
            _reproducible(config, seed)
            watchdog = nullcontext()
            if ranks.launched and directory is not None and not supervised():
                first = ranks.rank - ranks.local_rank
                node = range(first, first + ranks.local_size)
                watchdog = watching(directory, ranks.rank, node, ranks.attempt, config.deadline)
            with watchdog, cuda_errors(device, directory, ranks.rank, ranks.attempt):
                yield runtime
        # Reached only without an exception: after one, peers may never answer again.
        if ranks.launched:
            dist.destroy_process_group()

    def check_stop(self, saved: str) -> None:
        """Leave in good order if the user asked to; `saved` says what is kept."""
        if self.stop.asked:
            raise Stopped(saved)

    def agree(self, what: str, value: str, remedy: str) -> None:
        """Refuse to go on when ranks differ in something all must share."""
        values = self.gather(value)
        if len(set(values)) > 1:
            other = next(rank for rank, theirs in enumerate(values) if theirs != values[0])
            raise UserError(
                f"ranks disagree on the {what}: rank 0 has {values[0]}, rank {other} has {values[other]}; {remedy}"
            )

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank; small things only, and not in every step."""
        values: list[Any] = [value] * self.size
        if self.saving is not None:
            dist.all_gather_object(values, value, group=self.saving)
        return values

    def in_turn(self, what: str, work: Callable[[], Result]) -> Result:
        """Rank 0 does the work, for as long as it takes; then the first rank of every other node, which may have
        files of its own; then the others do it too, and find it mostly done.
        """
        if self.rank == 0:
            return self._telling(what, work)
        self._wait_for(what)
        node = f" on node {self.rank // self.ranks.local_size}"
        if self.ranks.local_rank == 0:
            return self._telling(what, work, node)
        if self.rank >= self.ranks.local_size:
            self._wait_for(what, node)
        return work()

    def check_shared(self, directory: Path) -> None:
        """Refuse to go on where ranks do not see one another's files in the directory of the run."""
        if self.size == 1:
            return
        proof = directory / "heartbeats" / f"shared_{self.from_first('proof', lambda: uuid.uuid4().hex)}"
        if self.rank == 0:
            proof.touch()
        seen, until = False, time.monotonic() + _SEEN
        while not seen and time.monotonic() < until:
            seen = proof.name in os.listdir(proof.parent)  # which network file systems ask their server for
            time.sleep(0 if seen else 0.1)
        blind = [rank for rank, saw in enumerate(self.gather(seen)) if not saw]
        if self.rank == 0:
            proof.unlink()
        if blind:
            raise UserError(
                f"rank {', '.join(map(str, blind))} does not see what rank 0 writes to {directory}; all nodes must "
                "share the run directory"
            )

    def from_first(self, what: str, work: Callable[[], Result]) -> Result:
        """Rank 0 does the work, for as long as it takes; every rank gets its result."""
        if self.saving is None:
            return work()
        result: list[Any] = [None]
        if self.rank == 0:
            result = [self._telling(what, work)]
        else:
            self._wait_for(what)
        dist.broadcast_object_list(result, src=0, group=self.saving)
        return result[0]

    def together(self, what: str, work: Callable[[Callable[[], None]], Result]) -> list[Result]:
        """Every rank does its part, for as long as it takes; every rank gets all results, in their order.

        `work` is given a function to call now and then: it raises when the part of another rank has failed.
        """
        result = self._telling(what, lambda: work(lambda: self._check_failed(what)), f" {self.rank}")
        for rank in range(self.size):
            self._wait_for(what, f" {rank}")
        return self.gather(result)

    def _telling(self, what: str, work: Callable[[], Result], whose: str = "") -> Result:
        """Do the work and tell the others: that it is done, or in one sentence why not."""
        try:
            result = work()
        except BaseException as error:
            self._tell_failure(what, error)
            raise
        if self.size > 1:
            _default_store().set(f"{self.ranks.attempt}/{what}{whose}", "done")
        return result

    def _tell_failure(self, what: str, error: BaseException) -> None:
        key = f"{self.ranks.attempt}/{what} failed"
        if self.size == 1 or _default_store().check([key]):  # another rank failed first, and this one follows
            return
        end = next((name for name, kind in _ENDS.items() if isinstance(error, kind)), None)
        sentence = str(error) if end else f"{type(error).__name__}: {error}"
        _default_store().set(key, f"{self.rank} {end} {sentence}")
        until = time.monotonic() + _HEARING
        while self.rank == 0 and time.monotonic() < until:  # the store may go with this process
            if _default_store().add(f"{key}: heard", 0) == self.size - 1:
                return
            time.sleep(0.05)

    def _check_failed(self, what: str) -> None:
        """Follow a rank that has failed in this, with its own kind of end where that was a decision."""
        key = f"{self.ranks.attempt}/{what} failed"
        if self.size > 1 and _default_store().check([key]):
            rank, end, sentence = _default_store().get(key).decode().split(" ", 2)
            _default_store().add(f"{key}: heard", 1)
            raise _ENDS.get(end, crash.PeerFailed)(f"rank {rank}: {sentence}")

    def _wait_for(self, what: str, whose: str = "") -> None:
        """No collective has the patience for data that take hours to make, so ask the store now and then."""
        while self.size > 1 and not _default_store().check([f"{self.ranks.attempt}/{what}{whose}"]):
            self._check_failed(what)
            self.check_stop(f"rank {self.rank} only waited for {'the others' if whose else 'rank 0'}")
            self.heartbeat.mark(self.heartbeat.phase)  # it is not this rank that takes long
            time.sleep(0.05)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def first(self, values: torch.Tensor) -> torch.Tensor:
        """Rank 0's values, on every rank, in place."""
        if self.size > 1:
            dist.broadcast(values, 0)
        return values

    def inject_fault(self, place: str, tensors: Sequence[torch.Tensor] = ()) -> str | None:
        """Where tests let faults happen; nothing outside of them."""
        if self.heartbeat.heard is not None:
            self.heartbeat.heard(place)
        return injection.inject_fault(place, self.rank, self.heartbeat.step, self.ranks.attempt, tensors)

    def _agree_on_machines(self) -> None:
        self.agree("software", software(), "install the same versions on every node")
        if self.device.type == "cuda" and not _shares_devices():
            card = str(torch.cuda.get_device_properties(self.device).uuid)
            places = self.gather((boot_id(), card))
            if twice := [rank for rank, place in enumerate(places) if places.index(place) != rank]:
                other = places.index(places[twice[0]])
                raise UserError(f"ranks {other} and {twice[0]} use the same GPU; start at most one rank a GPU")


def wants_cuda(config: RuntimeConfig) -> bool:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("runtime.device is cuda, but torch sees no GPU here; use runtime.device=cpu")
    return config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())


def _shares_devices() -> bool:
    """Two ranks on one GPU: for tests on a machine that has only one."""
    return os.environ.get("UPS_SHARE_DEVICE") == "1"


def _overwrite_environment(ranks: Ranks) -> None:
    """Overwritten, not defaulted: torchrun starts its workers with the dangerous value already set."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3"
    if ranks.local_size == ranks.size:  # one node: no name has to resolve, no interface to be guessed
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if _shares_devices():
        os.environ["NCCL_HOSTID"] = f"rank{ranks.rank}"
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"


def _device(cuda: bool, ranks: Ranks) -> torch.device:
    if not cuda:
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if ranks.local_size > count and not _shares_devices():
        raise UserError(
            f"{ranks.local_size} ranks were asked for on this node, which has {count} GPU{'s' if count > 1 else ''}; "
            f"use --gpus {count}"
        )
    device = torch.device("cuda", ranks.local_rank % count)
    torch.cuda.set_device(device)
    return device


def _store(ranks: Ranks) -> TCPStore | None:
    """Where the ranks of a supervisor meet: it listens on their own network alone. None: as their launcher says."""
    if not supervised():
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listening = socket.create_server((address, port)).detach() if ranks.rank == 0 else None
    return TCPStore(address, port, ranks.size, ranks.rank == 0, TIMEOUT, master_listen_fd=listening)


def _group() -> ProcessGroup:
    """All ranks again, on gloo, whatever the device."""
    group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    assert isinstance(group, ProcessGroup)
    return group


def device_mesh(config: RuntimeConfig, ranks: Ranks, device: torch.device) -> DeviceMesh | None:
    """(dp_replicate, dp_shard) where parameters are sharded; nothing where every rank has all of them."""
    if config.strategy == "ddp":
        return None
    shard = config.sharing(ranks.size, ranks.local_size)
    names = ("dp_replicate", "dp_shard")
    return init_device_mesh(device.type, (ranks.size // shard, shard), mesh_dim_names=names)


def _reproducible(config: RuntimeConfig, seed: int) -> None:
    """The one place for torch's switches of precision and determinism, and for seeds."""
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = config.tf32
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if config.deterministic and os.environ.get("CUBLAS_WORKSPACE_CONFIG") != ":4096:8":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        if torch.cuda.is_initialized():  # torch would keep smaller memory that it has, and take it for as large
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(config.deterministic)
    torch.manual_seed(seed)


@contextmanager
def _threads(config: RuntimeConfig, ranks: Ranks) -> Iterator[int]:
    """As the configuration says, else as OMP_NUM_THREADS does (torch has read it), else this rank's share of cores."""
    before = torch.get_num_threads()
    share = max(1, len(os.sched_getaffinity(0)) // ranks.local_size)
    threads = config.threads or (before if "OMP_NUM_THREADS" in os.environ else share)
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)
