"""One optimiser step as two functions: `gradients(micro_batches)` and `update(step)`.

Between them lie the vote and the reduction over ranks. Neither function waits for the device: a gradient that is not
finite is skipped by a flag that stays there. `capture` records both and replays them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ups.data.sampler import noise
from ups.distributed.runtime import Runtime
from ups.fields import Batch
from ups.training.ema import EMA
from ups.training.stages.operator import OperatorStage

Sums = dict[str, Float[Tensor, ""]]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples of one task that are computed at once, in the host's memory until a step takes them.

    `weights` are each sample's share of the task's mean over the global batch: 1 / count, and 0 for padding. `slots`
    are their places in the global batch of training step `step`: what noise depends on.
    """

    batch: Batch
    weights: Float[Tensor, " B"]
    slots: Int[Tensor, " B"]
    step: Int[Tensor, ""]

    def mapped(self, change: Callable[[Tensor], Tensor]) -> MicroBatch:
        """The same with `change` applied to each tensor that a step computes from, always in the same order."""
        batch = self.batch
        return MicroBatch(
            replace(
                batch,
                values=change(batch.values),
                times=change(batch.times),
                parameters={name: change(value) for name, value in batch.parameters.items()},
                static={name: change(value) for name, value in batch.static.items()},
                forcings={name: change(value) for name, value in batch.forcings.items()},
                mask=None if batch.mask is None else change(batch.mask),
            ),
            change(self.weights),
            change(self.slots),
            change(self.step),
        )


class Step:
    replayed = False
    """Whether the last step only replayed graphs, so that nothing in it could fail on one rank alone."""

    def __init__(
        self, stage: OperatorStage, optimiser: torch.optim.Optimizer, ema: EMA, clip: float, seed: int
    ) -> None:
        self.stage, self.optimiser, self.ema, self.clip, self.seed = stage, optimiser, ema, clip, seed
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.device = self.parameters[0].device
        self.rate: float | Float[Tensor, ""] = 0.0
        self.share: float | Float[Tensor, ""] = 0.0
        if self.device.type == "cuda":  # where a graph finds new values in every replay
            self.rate = torch.zeros((), dtype=torch.float32, device=self.device)
            self.share = torch.zeros((), dtype=torch.float64, device=self.device)

    def gradients(self, micro_batches: Iterable[MicroBatch], tasks: int, runtime: Runtime) -> Sums:
        """Accumulate the gradient of the mean over `tasks` tasks of their mean losses; this rank's part of the means.

        Replicated parameters: no communication in here, so a rank that fails in here can still vote. Sharded ones:
        every rank must run the same micro-batches.
        """
        self.optimiser.zero_grad(set_to_none=True)
        sums: Sums = {}
        for micro in micro_batches:
            micro = micro.mapped(lambda tensor: tensor.to(self.device))
            runtime.doing.update(task=micro.batch.task)
            runtime.strike("forward")
            loss = self.stage.loss(micro.batch, self._noise(micro))
            total = loss.total @ micro.weights
            runtime.strike("loss", [total])
            (total / tasks).backward()
            task = micro.batch.task
            values = {task: total} | {f"{task}.{name}": part @ micro.weights for name, part in loss.parts.items()}
            for name, value in values.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
        return sums

    def _noise(self, micro: MicroBatch) -> Float[Tensor, "B H *space C"] | None:
        task, values = self.stage.model.tasks[micro.batch.task], micro.batch.values
        if task.steady or not self.stage.noise:
            return None
        shape = (task.history, *values.shape[2:])
        return noise(self.seed, micro.step, micro.slots, shape, device=self.device).to(values.dtype)

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
        """`update`, once its numbers are set."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate
        finite = torch.isfinite(norm).float()
        # Torch's fused optimisers leave everything as it was, their step count too, where this flag is 1.
        self.optimiser.found_inf, self.optimiser.grad_scale = 1 - finite, None  # pyright: ignore[reportAttributeAccessIssue]
        self.optimiser.step()
        self.ema.update(self.share, finite)
        return norm
