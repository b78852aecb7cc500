"""One training's checkpoints: saved while it goes on, by all its ranks together, loaded by any number of them.

`save` only copies this rank's share to CPU memory; one background thread writes it, however long that takes. Each piece
of each tensor is copied and written by exactly one rank: a DTensor's part by the rank that has it, a replicated tensor
by one of its holders, chosen so that all write about as much. Ranks need not talk to agree on that; they talk, on a
group used for nothing else, to learn whether everyone's part is on the disk before the checkpoint gets its name.

A failure is exchanged like any other result. So a full disk on one rank is the same NotSaved on all of them, and none
waits for a rank that gave up.
"""

from __future__ import annotations

import json
import math
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor

from ups import checkpoint
from ups.checkpoint.files import Manifest
from ups.distributed.faults.injection import inject_fault
from ups.durable import crc32_of, seal, sync, write
from ups.errors import UserError

T = TypeVar("T")

DISK = 600.0
"""Seconds in which a disk must answer; one that does not counts as a hang."""


class NotSaved(UserError):
    """The disk refused a checkpoint; the ones before it are untouched."""


class _Problem(NamedTuple):
    rank: int
    text: str
    ours: bool
    """A defect of the program, not a disk's refusal or a user's mistake."""


class Checkpoints:
    """`save` and `load` are called by all ranks together. `group`: gloo, used by nothing else; None on one rank."""

    def __init__(
        self,
        directory: Path,
        *,
        rank: int = 0,
        size: int = 1,
        group: dist.ProcessGroup | None = None,
        attempt: int = 0,
    ) -> None:
        if (group is None) != (size == 1):
            raise ValueError("several ranks need a group for their checkpoints, and one rank needs none")
        self.directory, self.rank, self.size, self.group, self.attempt = directory, rank, size, group, attempt
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._at_disk: float | None = None  # since when the thread waits for the disk, not for other ranks

    def save(
        self, step: int, tensors: Mapping[str, Shaped[Tensor, "..."]], manifest: Mapping[str, Any], *, best: bool
    ) -> None:
        """Copy the state as it is now and start to write it; `manifest` is anything JSON can hold.

        Waits for the save before; whether that one failed is forgotten, unless a peer was lost.
        """
        content = json.loads(json.dumps(manifest))  # as it is now; what JSON cannot hold fails here
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and not isinstance(self._error, NotSaved):
            raise self._error
        sizes = {name: tensor.numel() for name, tensor in tensors.items()}
        share = _copy(_share(tensors, self.rank, self.size))
        self._error = None
        # A daemon: a process that crashes must not wait for its disk; a decided end calls `wait`.
        self._thread = threading.Thread(
            target=self._run, args=(step, share, sizes, content, best), name=f"save {step}", daemon=True
        )
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a save is in flight here; asks nobody and waits for nothing. Ranks end theirs at different times."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, alive: Callable[[], None] = lambda: None) -> None:
        """Until nothing is being saved. NotSaved, with the same sentence on every rank, if the last save failed.

        A slow disk is no hang: `alive` is called now and then, unless a single call to the disk takes DISK seconds.
        """
        while self._thread is not None and self._thread.is_alive():
            if self._at_disk is None or time.monotonic() - self._at_disk < DISK:
                alive()
            self._thread.join(0.2)
        if self._error is not None:
            raise self._error

    def load(self, into: Mapping[str, Shaped[Tensor, "..."]]) -> Manifest | None:
        """Fill tensors in place from the newest good checkpoint; None, and nothing filled, where there is none at all.

        It may have been saved on another number of ranks, under another strategy. Damaged ones are set aside with a
        warning. What is wrong on one rank is raised on all of them.
        """
        manifest = self._together(lambda: self._newest() if self.rank == 0 else None, _not_loaded)[0]
        if manifest is not None:
            self._together(lambda: checkpoint.fill(manifest, into), _not_loaded)
        return manifest

    def _newest(self) -> Manifest | None:
        manifest = checkpoint.newest(self.directory)
        if manifest and manifest.best and checkpoint.find(self.directory, "best") != manifest.path:
            checkpoint.point(self.directory, "best", manifest.step)  # killed between the rename and the pointer
        return manifest

    def _run(self, step: int, share: dict[str, Tensor], sizes: dict[str, int], content: Any, best: bool) -> None:
        try:
            self._write(step, share, sizes, content, best)
        except Exception as error:
            self._error = error

    def _write(self, step: int, share: dict[str, Tensor], sizes: dict[str, int], content: Any, best: bool) -> None:
        """The background thread's work. Every rank takes the same three steps, whatever happens in them."""
        temporary = self.directory / f"{checkpoint.name_of(step)}.tmp"

        def failure(problem: _Problem) -> NotSaved:
            where = f"rank {problem.rank}: " if self.size > 1 else ""
            return NotSaved(
                f"the checkpoint of step {step} could not be written to {self.directory} ({where}{problem.text}); "
                "make room or mend the directory's permissions; earlier checkpoints are untouched"
            )

        def prepare() -> None:
            if self.rank == 0:
                self.directory.mkdir(exist_ok=True)  # not its parents: a run that was removed does not come back
                checkpoint.recover(self.directory)
                for leftover in self.directory.glob("step_*.tmp"):
                    shutil.rmtree(leftover, ignore_errors=leftover != temporary)
                for leftover in self.directory.glob("[lb]*.tmp"):  # `latest` or `best`, killed before its rename
                    leftover.unlink()
                temporary.mkdir()

        def write_own() -> dict[str, dict[str, int]]:
            inject_fault("checkpoint_files", self.rank, step, self.attempt)
            files = {}
            for file in _write_files(temporary, share, self.rank, self.size):
                self._at_disk = time.monotonic()  # for the next file
                sync(file)
                files[file.name] = {"bytes": file.stat().st_size, "crc32": crc32_of(file)}
            inject_fault("checkpoint", self.rank, step, self.attempt)
            return files

        def finish() -> None:
            if self.rank == 0:
                head = {"format": checkpoint.FORMAT, "step": step, "best": best, "files": files, "content": content}
                _check_files(temporary, files, sizes)
                write(temporary / checkpoint.MANIFEST, seal(head))
                self._publish(temporary, step, best)

        try:
            self._together(prepare, failure)
            files = {name: file for own in self._together(write_own, failure) for name, file in own.items()}
            self._together(finish, failure)
        except NotSaved:
            if self.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _publish(self, temporary: Path, step: int, best: bool) -> None:
        """Give a complete checkpoint its name, let the pointers name it, and remove what is no longer kept."""
        final = temporary.with_suffix("")
        old = final.with_suffix(".old")
        if final.exists():
            final.rename(old)
        temporary.rename(final)
        sync(self.directory)
        checkpoint.point(self.directory, "latest", step)
        if best:
            checkpoint.point(self.directory, "best", step)
        shutil.rmtree(old, ignore_errors=True)
        checkpoint.prune(self.directory)

    def _together(self, work: Callable[[], T], failure: Callable[[_Problem], Exception]) -> list[T]:
        """What `work` gave on each rank; where it failed on one, the same `failure` is raised on every rank."""
        value = cause = problem = None
        self._at_disk = time.monotonic()
        try:
            value = work()
        except Exception as error:
            cause = error
            text = (error.strerror if isinstance(error, OSError) else None) or str(error)
            ours = not isinstance(error, UserError | OSError)
            problem = _Problem(self.rank, f"{type(error).__name__}: {text}" if ours else text, ours)
        self._at_disk = None
        answers = self._exchange((value, problem))
        for _, problem in answers:
            if problem is not None:
                raise failure(problem) from cause
        return [value for value, _ in answers]

    def _exchange(self, value: Any) -> list[Any]:
        """Each rank's value, on every rank."""
        if self.size == 1:
            return [value]
        own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        lengths = [int(length) for length in self._gather(torch.tensor([own.numel()], device="cpu"))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8, device="cpu")
        padded[: own.numel()] = own
        parts = self._gather(padded)
        return [pickle.loads(part[:length].numpy().tobytes()) for part, length in zip(parts, lengths, strict=True)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        work = dist.all_gather(gathered, tensor, group=self.group, async_op=True)
        assert work is not None
        # Not `work.wait()` at once: a thread inside torch's C++ aborts the process when the interpreter ends, which
        # would turn an exception in training into a SIGABRT in the crash report.
        while not work.is_completed():
            time.sleep(0.005)
        work.wait()
        return gathered


def _not_loaded(problem: _Problem) -> Exception:
    return RuntimeError(f"rank {problem.rank}: {problem.text}") if problem.ours else UserError(problem.text)


def _share(tensors: Mapping[str, Tensor], rank: int, size: int) -> dict[str, Tensor]:
    """Those of the tensors this rank writes. Every rank finds the same division without asking the others."""
    share = {}
    written: dict[int, list[int]] = {}  # bytes given to each holder so far, by the number of holders
    for name in sorted(tensors):
        tensor = tensors[name]
        holders, own, held = size, rank, tensor
        if isinstance(tensor, DTensor):
            holders, own = _replica(tensor)
            held = tensor.to_local()
        loads = written.setdefault(holders, [0] * holders)
        writer = loads.index(min(loads))
        loads[writer] += tensor.numel() * tensor.element_size() + 1
        # An uneven division leaves some ranks nothing of a short tensor.
        if writer == own and (held.numel() or not tensor.numel()):
            share[name] = tensor
    return share


def _replica(tensor: DTensor) -> tuple[int, int]:
    """How many ranks hold what this one holds of a tensor, and the number of this one among them."""
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "every rank is part of the mesh"
    holders, own = 1, 0
    for size, at, placement in zip(tensor.device_mesh.shape, coordinate, tensor.placements, strict=True):
        if placement.is_replicate():
            holders, own = holders * size, own * size + at
    return holders, own


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in CPU memory, each contiguous and of its own: tied tensors share memory, which safetensors refuses."""
    with torch.no_grad():
        return {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }


def _write_files(path: Path, tensors: dict[str, Tensor], rank: int, size: int) -> list[Path]:
    """Write this rank's tensors (DTensors for parts) with torch's safetensors writer; the files written."""
    writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
    # Otherwise torch, where it sees a GPU, waits for its stream from this thread, although nothing here is on it.
    writer.per_thread_copy_ahead = 0
    planner = DefaultSavePlanner()
    planner.set_up_planner(tensors, is_coordinator=True)
    plan = writer.prepare_global_plan([planner.create_local_plan()] * size)[rank]  # numbers the file by its rank
    results = writer.write_data(plan, planner).wait()
    return sorted({path / result.storage_data.relative_path for result in results})


def _check_files(path: Path, files: Mapping[str, Mapping[str, int]], sizes: Mapping[str, int]) -> None:
    """The files of all ranks are here, and their headers name each element of each tensor once."""
    for name, file in files.items():
        if not (path / name).is_file() or (path / name).stat().st_size != file["bytes"]:
            raise OSError(f"rank 0 does not see {name}: all nodes must share the run directory")
    stored = {
        name: sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        for name, entry in checkpoint.entries_of(path).items()
    }
    if stored != sizes:
        wrong = sorted(name for name in stored.keys() | sizes.keys() if stored.get(name) != sizes.get(name))
        raise RuntimeError(f"{', '.join(wrong[:3])}: not every element was written once")
