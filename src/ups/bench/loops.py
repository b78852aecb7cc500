"""The usual loop: batch, forward, backward, clip, step, one operation after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ups.bench.batches import FromLoader, OnDevice
from ups.bench.ceilings import synchronise
from ups.bench.contestants import POINTS, Absent, Setting, Watch
from ups.bench.counts import Counts, count_step
from ups.bench.data import KEPT
from ups.bench.tasks import Model
from ups.data.draws import Draws
from ups.distributed.parallel import compile_parts
from ups.errors import UserError
from ups.fields import Batch
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.training.ema import EMA
from ups.training.optimisers import build_optimiser, learning_rate
from ups.training.settings import TrainingConfig
from ups.training.stages.operator import OperatorStage


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


def build(model: Model, learned: TrainedTask, seed: int) -> tuple[ModelSpec, Propagator]:
    """A model by its registered name; one that this version does not have is absent, not wrong."""
    spec = ModelSpec(model.architecture, dict(model.settings), (learned,))
    try:
        return spec, spec.build(seed)
    except UserError as error:
        raise Absent(str(error)) from error


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
        _, network = build(described, data.learned, setting.seed)
        way_of_running = self.runtime.config.model_copy(update={"compile": self.compiled})
        self.stage = OperatorStage(network.to(self.device), self.config, way_of_running)
        self.draws = Draws(setting.seed, self.stage.name, torch.tensor(0), torch.arange(self.config.batch_size))
        if self.compiled:
            compile_parts(network)
        self.optimiser = build_optimiser(self.stage.model, self.config)
        self.ema = EMA(self.stage.model, self.config.ema) if averaged else None
        source = OnDevice if way == "gather" else FromLoader
        self.batches: Iterator[Batch] = iter(source(data, self.device, setting.seed))
        self.done = 0
        self._same: Batch | None = None
        self._held = ExitStack()

    @property
    def module(self) -> nn.Module:
        return self.stage.model

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
            weights = [weight.detach() for weight in self.ema.live.values()]
            averages = list(self.ema.averages.values())
            torch._foreach_lerp_(averages, weights, self.ema.share(self.done))  # pyright: ignore[reportPrivateImportUsage]
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

    def train(self, watch: Watch) -> float:
        steps, due = self.config.steps, self.config.validate_every
        seconds, began = 0.0, time.perf_counter()
        for done in range(1, steps + 1):
            self.step(next(self.batches))
            self.runtime.check_stop(KEPT)
            watch.progress(done, "")
            if done % due == 0 or done == steps:
                synchronise(self.device)
                seconds += time.perf_counter() - began
                with torch.no_grad(), self.ema.applied() if self.ema else nullcontext():
                    watch.validate(done, seconds, self.stage.model)
                began = time.perf_counter()
        return seconds

    def trained(self) -> Propagator:
        if self.ema is not None:
            self._held.enter_context(self.ema.applied())
        return self.stage.model

    def close(self) -> None:
        """Let go of everything: worker processes end with the iterator that holds them."""
        self._held.close()
        del self.batches, self._same
