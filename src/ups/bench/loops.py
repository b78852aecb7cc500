"""The usual loop, one operation after the other (batch, forward, backward, clip, step), and how it gets its batches:
gathered on the device, or by torch's DataLoader.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ups.bench.contestants import POINTS, Setting, Validate
from ups.bench.data import KEPT, Data
from ups.bench.roofline import Counts, count_step, synchronise
from ups.bench.tasks import Model
from ups.data.draws import Draws
from ups.distributed.parallel import compile_parts
from ups.fields import Batch
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.training.ema import EMA
from ups.training.optimisers import build_optimiser, learning_rate
from ups.training.settings import TrainingConfig
from ups.training.stages.operator import OperatorStage

WORKERS = 4
PREFETCH = 2


def on_device(data: Data, device: torch.device, seed: int) -> Iterator[Batch]:
    """The whole set as one tensor on the device; a batch is one indexing there. Every trajectory once an epoch."""
    fields, size = data.fields.to(device), data.task.batch_size
    count, frames = fields.shape[:2]
    random = torch.Generator(device).manual_seed(seed)
    order = torch.zeros(0, dtype=torch.long, device=device)
    wrap = window_batch(data, size, device)
    while True:
        if len(order) < size:
            order = torch.cat([order, torch.randperm(count, generator=random, device=device)])
        ids, order = order[:size], order[size:]
        starts = torch.randint(frames - 1, (size,), generator=random, device=device)
        yield wrap(fields[ids[:, None], starts[:, None] + torch.arange(2, device=device)])


def from_loader(data: Data, device: torch.device, seed: int) -> Iterator[Batch]:
    """Batches of a DataLoader, epoch after epoch, brought to the device."""
    batches, wrap = loader(data, device, seed), cache(lambda size: window_batch(data, size, device))
    while True:
        for values in batches:
            yield wrap(len(values))(values.to(device, non_blocking=True))


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


def window_batch(data: Data, size: int, device: torch.device) -> Callable[[Float[Tensor, "B 2 *space C"]], Batch]:
    """A function that makes windows of two frames a Batch; what never changes is on the device beforehand."""
    spec, header = data.learned.spec, data.train.header
    times = torch.tensor([0.0, data.task.dt], dtype=torch.float64, device=device).expand(size, -1)
    parameters = {
        name: torch.full((size,), float(header.parameters[name] or 0.0), device=device) for name in spec.parameters
    }
    ids, (grid, boundary) = torch.zeros(size, dtype=torch.long, device=device), (header.grid, header.boundary)
    same = {"times": times, "grid": grid, "boundary": boundary, "parameters": parameters, "static": {}, "ids": ids}
    return partial(Batch, spec.name, **same)


class Clock:
    """Seconds of training, of which validation is none; the device is waited for before they are read."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self.began = device, 0.0, time.perf_counter()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        synchronise(self.device)
        self.seconds += time.perf_counter() - self.began
        yield
        self.began = time.perf_counter()


def recipe(model: Model, batch_size: int, steps: int) -> TrainingConfig:
    """How everybody trains: one step ahead, cosine schedule, weights clipped and decayed alike."""
    return TrainingConfig(
        steps=max(1, steps),
        batch_size=batch_size,
        learning_rate=model.learning_rate,
        optimiser=model.optimiser,
        precision=model.precision,
        warmup=min(100, steps // 10),
        validate_every=max(1, steps // POINTS),
        checkpoint_every=max(1, steps),
    )


def build(model: Model, learned: TrainedTask, seed: int) -> Propagator:
    return ModelSpec(model.architecture, dict(model.settings), (learned,)).build(seed)


class Loop:
    """A model in a plain loop. `way`: gather (the set is on the device) or loader (torch's DataLoader).

    `averaged`: a step also averages the weights, and the averages are judged, as our Trainer does. The model is
    compiled where the Trainer compiles it, unless told otherwise.
    """

    def __init__(self, model: str, setting: Setting, way: str, *, averaged: bool, compiled: bool | None = None) -> None:
        self.model, self.setting, self.averaged = model, setting, averaged
        data, self.runtime = setting.data, setting.runtime
        self.compiled = self.runtime.config.compile if compiled is None else compiled
        self.device = self.runtime.device
        described = data.task.models[model]
        self.config = recipe(described, data.task.batch_size, setting.steps)
        network = build(described, data.learned, setting.seed)
        way_of_running = self.runtime.config.model_copy(update={"compile": self.compiled})
        self.stage = OperatorStage(network.to(self.device), self.config, way_of_running)
        self.draws = Draws(setting.seed, self.stage.name, torch.tensor(0), torch.arange(self.config.batch_size))
        self.module: nn.Module = network
        if self.compiled:
            compile_parts(network)
        self.optimiser = build_optimiser(self.stage.model, self.config)
        self.ema = EMA(self.stage.model, self.config.ema) if averaged else None
        self.batches = (on_device if way == "gather" else from_loader)(data, self.device, setting.seed)
        self.done = 0
        self._same: Batch | None = None
        self._held = ExitStack()

    def step(self, batch: Batch) -> Float[Tensor, ""]:
        """One optimiser step; the mean relative L2 error of the batch before it."""
        loss = self.stage.loss(batch, self.draws).total.mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.stage.model.parameters(), self.config.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.config, self.done)
        self.optimiser.step()
        if self.ema is not None:
            self.ema.update(self.ema.share(self.done))
        self.done += 1
        return loss.detach()

    def advance(self, steps: int, *, fixed: bool = False) -> None:
        for _ in range(steps):
            self.step(self._fixed() if fixed else next(self.batches))

    def _fixed(self) -> Batch:
        if self._same is None:
            self._same = next(self.batches)
        return self._same

    def count(self) -> Counts:
        if self.compiled:  # what a compiler makes of it cannot be counted
            return Loop(self.model, self.setting, "gather", averaged=self.averaged, compiled=False).count()
        batch = self._fixed()
        self.step(batch)  # the first one also makes tables
        return count_step(lambda: self.step(batch), self.module, self.optimiser)

    def train(self, validate: Validate, progress: Callable[[int, str], None]) -> float:
        steps, due, clock = self.config.steps, self.config.validate_every, Clock(self.device)
        for done in range(1, steps + 1):
            self.step(next(self.batches))
            self.runtime.check_stop(KEPT)
            progress(done, "")
            if done % due == 0 or done == steps:
                with clock.stopped(), torch.no_grad(), self.ema.applied() if self.ema else nullcontext():
                    validate(done, clock.seconds, self.stage.model)
        return clock.seconds

    def trained(self) -> Propagator:
        if self.ema is not None:
            self._held.enter_context(self.ema.applied())
        return self.stage.model

    def close(self) -> None:
        """Let go of everything: worker processes end with the iterator that holds them."""
        self._held.close()
        del self.batches, self._same
