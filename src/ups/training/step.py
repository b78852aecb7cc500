"""One optimiser step as two functions: `gradients(micro_batches)` and `update(step)`.

Between them lie the vote and the reduction over ranks. Neither function waits for the device: a gradient that is not
finite is skipped by a flag that stays there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ups.distributed.runtime import Runtime
from ups.fields import Batch
from ups.training.ema import EMA
from ups.training.stages.operator import OperatorStage

Sums = dict[str, Float[Tensor, ""]]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples of one task that are computed at once.

    `weights` are each sample's share of the task's mean over the global batch: 1 / count, and 0 for padding.
    """

    batch: Batch
    noise: Float[Tensor, "B H *space C"] | None
    weights: Float[Tensor, " B"]


class Step:
    def __init__(self, stage: OperatorStage, optimiser: torch.optim.Optimizer, ema: EMA, clip: float) -> None:
        self.stage, self.optimiser, self.ema, self.clip = stage, optimiser, ema, clip
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]

    def gradients(self, micro_batches: Iterable[MicroBatch], tasks: int, runtime: Runtime) -> Sums:
        """Accumulate the gradient of the mean over `tasks` tasks of their mean losses; this rank's part of the means.

        Replicated parameters: no communication in here, so a rank that fails in here can still vote. Sharded ones:
        every rank must run the same micro-batches.
        """
        self.optimiser.zero_grad(set_to_none=True)
        sums: Sums = {}
        for micro in micro_batches:
            runtime.strike("forward")
            loss = self.stage.loss(micro.batch, micro.noise)
            total = loss.total @ micro.weights
            runtime.strike("loss", [total])
            (total / tasks).backward()
            task = micro.batch.task
            values = {task: total} | {f"{task}.{name}": part @ micro.weights for name, part in loss.parts.items()}
            for name, value in values.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
        return sums

    def update(self, step: int, learning_rate: float) -> Float[Tensor, ""]:
        """Clip, step, average. A gradient that is not finite changes nothing; its norm, returned, tells."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        finite = torch.isfinite(norm).float()
        # Torch's fused optimisers leave everything as it was, their step count too, where this flag is 1.
        self.optimiser.found_inf, self.optimiser.grad_scale = 1 - finite, None  # pyright: ignore[reportAttributeAccessIssue]
        self.optimiser.step()
        self.ema.update(step, finite)
        return norm
