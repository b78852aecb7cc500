"""How the loops beside ours get their batches: gathered on the device, or by torch's DataLoader."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader

from ups.bench.data import Data
from ups.fields import Batch

WORKERS = 4
PREFETCH = 2


class OnDevice:
    """The whole set as one tensor on the device; a batch is one indexing there. Every trajectory once an epoch."""

    def __init__(self, data: Data, device: torch.device, seed: int) -> None:
        self.data, self.fields = data, data.fields.to(device)
        self.random = torch.Generator(device).manual_seed(seed)
        self.order = torch.zeros(0, dtype=torch.long, device=device)

    def __iter__(self) -> Iterator[Batch]:
        size = self.data.task.batch_size
        count, frames = self.fields.shape[:2]
        where = self.fields.device
        wrap = window_batch(self.data, size, where)
        while True:
            if len(self.order) < size:
                again = torch.randperm(count, generator=self.random, device=where)
                self.order = torch.cat([self.order, again])
            ids, self.order = self.order[:size], self.order[size:]
            starts = torch.randint(frames - 1, (size,), generator=self.random, device=where)
            yield wrap(self.windows(ids, starts))

    def windows(self, ids: Int[Tensor, " B"], starts: Int[Tensor, " B"]) -> Float[Tensor, "B 2 *space C"]:
        return self.fields[ids[:, None], starts[:, None] + torch.arange(2, device=ids.device)]


class Pairs(torch.utils.data.Dataset):
    """Every frame and the one after it, as samples."""

    def __init__(self, fields: Float[Tensor, "N T *space C"]) -> None:
        self.fields, self.each = fields, fields.shape[1] - 1

    def __len__(self) -> int:
        return len(self.fields) * self.each

    def __getitem__(self, index: int) -> Float[Tensor, "2 *space C"]:
        row, frame = divmod(index, self.each)
        return self.fields[row, frame : frame + 2]


def loader(data: Data, device: torch.device, seed: int) -> DataLoader:
    """Shuffled batches of all pairs: four worker processes and pinned memory beside a GPU, else in this process."""
    pairs = Pairs(data.fields)
    workers = worker_count(device, data)
    options: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": PREFETCH} if workers else {}
    return DataLoader(
        pairs,
        data.task.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
        num_workers=workers,
        pin_memory=device.type == "cuda",
        worker_init_fn=_leave_garbage,
        **options,
    )


def _leave_garbage(worker: int) -> None:
    """A worker is a fork: what is garbage in it may be a GPU's memory or graph, and freeing one there kills it."""
    gc.freeze()


def worker_count(device: torch.device, data: Data) -> int:
    """None on a CPU, whose cores the model needs, nor where shared memory is too small for the batches in flight."""
    cores = len(os.sched_getaffinity(0))
    if device.type != "cuda" or cores < 2 * WORKERS:
        return 0
    batch = 2 * data.fields[0, 0].nbytes * data.task.batch_size
    room = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    return WORKERS if room > 2 * batch * WORKERS * (PREFETCH + 1) else 0


def endless(batches: DataLoader) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from batches


class FromLoader:
    """Batches of a DataLoader, brought to the device."""

    def __init__(self, data: Data, device: torch.device, seed: int) -> None:
        self.data, self.device = data, device
        self.loader = loader(data, device, seed)

    def __iter__(self) -> Iterator[Batch]:
        wraps = {}
        for values in endless(self.loader):
            if len(values) not in wraps:
                wraps[len(values)] = window_batch(self.data, len(values), self.device)
            yield wraps[len(values)](values.to(self.device, non_blocking=True))


def window_batch(data: Data, size: int, device: torch.device):
    """A function that makes windows of two frames a Batch; what never changes is on the device beforehand."""
    spec, header = data.learned.spec, data.train.header
    times = torch.tensor([0.0, data.task.dt], dtype=torch.float64, device=device).expand(size, -1)
    parameters = {
        name: torch.full((size,), float(header.parameters[name] or 0.0), device=device) for name in spec.parameters
    }
    ids = torch.zeros(size, dtype=torch.long, device=device)

    def wrap(values: Float[Tensor, "B 2 *space C"]) -> Batch:
        return Batch(spec.name, values, times, data.train.grid, data.train.boundary, parameters, {}, ids)

    return wrap
