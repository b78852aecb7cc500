"""One optimiser step as two functions: `gradients(micro_batches)` and `update(step)`.

Between them lie the vote and the reduction over ranks. Neither function waits for the device: a gradient that is not
finite is skipped by a flag that stays there. `capture` records both and replays them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ups.data.draws import Draws
from ups.distributed.runtime.start import Runtime
from ups.fields import Batch
from ups.store.place import Window
from ups.training.ema import EMA
from ups.training.stage import Stage

Sums = dict[str, Float[Tensor, ""]]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples of one task that are computed at once: their fields in the host's memory, or where to gather them.

    `weights` are each sample's share of the task's mean over the global batch: 1 / count, and 0 for padding. `slots`
    are their places in the global batch of training step `step`: what is drawn depends on both.
    """

    samples: Batch | Window
    weights: Float[Tensor, " B"]
    slots: Int[Tensor, " B"]
    step: Int[Tensor, ""]

    @property
    def nbytes(self) -> int:
        """Of the fields that are in the host's memory."""
        return self.samples.values.nbytes if isinstance(self.samples, Batch) else 0

    def mapped(self, change: Callable[[Tensor], Tensor]) -> MicroBatch:
        """The same with `change` applied to each tensor that a step computes from, always in the same order."""
        return MicroBatch(self.samples.mapped(change), change(self.weights), change(self.slots), change(self.step))

    def read(self) -> Batch:
        return self.samples.read() if isinstance(self.samples, Window) else self.samples


class Step:
    replayed = False
    """Whether the last step only replayed graphs, so that nothing in it could fail on one rank alone."""

    def __init__(self, stage: Stage, optimiser: torch.optim.Optimizer, ema: EMA, clip: float, seed: int) -> None:
        self.stage, self.optimiser, self.ema, self.clip, self.seed = stage, optimiser, ema, clip, seed
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.device = self.parameters[0].device
        self.rate: float | Float[Tensor, ""] = 0.0
        self.share: float | Float[Tensor, ""] = 0.0
        if self.device.type == "cuda":  # where a graph finds new values in every replay
            self.rate = torch.zeros((), dtype=torch.float32, device=self.device)
            self.share = torch.zeros((), dtype=torch.float32, device=self.device)

    def gradients(self, micro_batches: Iterable[MicroBatch], tasks: int, runtime: Runtime) -> Sums:
        """Accumulate the gradient of the mean over `tasks` tasks of their mean losses; this rank's part of the means.

        Replicated parameters: no communication in here, so a rank that fails in here can still vote. Sharded ones:
        every rank must run the same micro-batches.
        """
        self.optimiser.zero_grad(set_to_none=True)
        sums: Sums = {}
        for micro in micro_batches:
            micro = micro.mapped(lambda tensor: tensor.to(self.device))
            batch, task = micro.read(), micro.samples.task
            runtime.doing.update(task=task)
            runtime.inject_fault("forward")
            loss = self.stage.loss(batch, Draws(self.seed, self.stage.name, micro.step, micro.slots))
            total = loss.total @ micro.weights
            runtime.inject_fault("loss", [total])
            (total / tasks).backward()
            values = {task: total} | {f"{task}.{name}": part @ micro.weights for name, part in loss.parts.items()}
            for name, value in values.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
        return sums

    def forget(self) -> None:
        """Drop what is kept from step to step: nothing is."""

    def update(self, step: int, learning_rate: float) -> Float[Tensor, ""]:
        """Clip, step, average. A gradient that is not finite changes nothing; its norm, returned, tells."""
        self.schedule(step, learning_rate)
        return self.apply()

    def schedule(self, step: int, learning_rate: float) -> None:
        """Set what `apply` takes from the schedule."""
        share = self.ema.share(step)
        if isinstance(self.rate, Tensor) and isinstance(self.share, Tensor):
            self.rate.fill_(learning_rate)
            self.share.fill_(share)
        else:
            self.rate, self.share = learning_rate, share

    def apply(self) -> Float[Tensor, ""]:
        """`update`, once its numbers are set. A GPU is not waited for: what it does depends on a flag that stays there.
        A CPU knows the norm, and so does nothing that would change nothing.
        """
        total = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        norm = total.full_tensor() if isinstance(total, DTensor) else total
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        if norm.device.type == "cuda":
            nn.utils.clip_grads_with_norm_(self.parameters, self.clip, total)
            # Torch's fused optimisers leave everything as it was, their step count too, where this flag is 1.
            skipped = (norm - norm).ne(0).float()  # infinity less itself is no number, and that is not 0
            self.optimiser.found_inf, self.optimiser.grad_scale = skipped, None  # pyright: ignore[reportAttributeAccessIssue]
            self.optimiser.step()
            self.ema.update(self.share, skipped)
        elif math.isfinite(size := float(norm)):
            if size + 1e-6 > self.clip:  # where torch would not multiply by 1
                nn.utils.clip_grads_with_norm_(self.parameters, self.clip, total)
            self.optimiser.step()
            self.ema.update(self.share)
        return norm
