"""The usual loop, one operation after the other (batch, forward, backward, clip, step), and how it gets its batches:
gathered on the device, or by torch's DataLoader.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ups.bench.contestants import Setting
from ups.bench.data import Data
from ups.bench.roofline import Counts, count_step
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
    workers = worker_count(device)
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


def worker_count(device: torch.device) -> int:
    """None on a CPU, whose cores the model needs."""
    return WORKERS if device.type == "cuda" and len(os.sched_getaffinity(0)) >= 2 * WORKERS else 0


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


def recipe(model: Model, batch_size: int, steps: int) -> TrainingConfig:
    """How everybody trains: one step ahead, cosine schedule, weights clipped and decayed alike."""
    return TrainingConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=model.learning_rate,
        optimiser=model.optimiser,
        precision=model.precision,
        warmup=min(100, steps // 10),
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
        data, runtime = setting.data, setting.runtime
        described = data.task.models[model]
        self.config = recipe(described, data.task.batch_size, setting.steps)
        network = build(described, data.learned, setting.seed).to(runtime.device)
        way_of_running = runtime.config.model_copy(update={} if compiled is None else {"compile": compiled})
        self.stage = OperatorStage(network, self.config, way_of_running)
        self.draws = Draws(setting.seed, self.stage.name, torch.tensor(0), torch.arange(data.task.batch_size))
        self.module: nn.Module = network
        if way_of_running.compile:
            compile_parts(network)
        self.optimiser = build_optimiser(network, self.config)
        self.ema = EMA(network, self.config.ema) if averaged else None
        self.batches = (on_device if way == "gather" else from_loader)(data, runtime.device, setting.seed)
        self.done = 0

    @cached_property
    def same(self) -> Batch:
        """The batch of steps on a fixed one."""
        return next(self.batches)

    def step(self, batch: Batch) -> Float[Tensor, ""]:
        """One optimiser step; the mean relative L2 error of the batch before it."""
        loss = self.stage.loss(batch, self.draws).total.mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), self.config.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(self.config, self.done)
        self.optimiser.step()
        if self.ema is not None:
            self.ema.update(self.ema.share(self.done))
        self.done += 1
        return loss.detach()

    def advance(self, steps: int, *, fixed: bool = False) -> None:
        for _ in range(steps):
            self.step(self.same if fixed else next(self.batches))

    def count(self) -> Counts:
        return counted(self.model, self.setting, self.averaged)

    @contextmanager
    def judged(self) -> Iterator[Propagator]:
        with self.ema.applied() if self.ema else nullcontext():
            yield self.stage.model


def counted(model: str, setting: Setting, averaged: bool) -> Counts:
    """Of a plain step: graphs, and what a compiler makes of one, cannot be counted."""
    loop = Loop(model, setting, "gather", averaged=averaged, compiled=False)
    loop.advance(1, fixed=True)  # the first one also makes tables
    return count_step(lambda: loop.advance(1, fixed=True), loop.module, loop.optimiser)
