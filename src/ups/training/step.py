"""One optimiser step as two functions: `gradients(batch)` and `update()`.

What lies between them is the place of a vote and a reduction over ranks; what is inside can be captured as a graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ups.fields import Batch
from ups.training.ema import EMA
from ups.training.losses import LossParts
from ups.training.stages.operator import OperatorStage


class Step:
    def __init__(self, stage: OperatorStage, optimiser: torch.optim.Optimizer, ema: EMA, clip: float) -> None:
        self.stage, self.optimiser, self.ema, self.clip = stage, optimiser, ema, clip
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]

    def gradients(self, micro_batches: Sequence[tuple[Batch, Tensor | None]]) -> LossParts:
        """The gradient of the mean loss over tasks, accumulated task by task (one micro-batch each, with its noise)."""
        self.optimiser.zero_grad(set_to_none=True)
        totals: dict[str, Float[Tensor, ""]] = {}
        for batch, noise in micro_batches:
            loss = self.stage.loss(batch, noise)
            (loss.total / len(micro_batches)).backward()
            totals |= {f"{batch.task}.{name}": value.detach() for name, value in loss.parts.items()}
            totals[batch.task] = loss.total.detach()
        mean = torch.stack([totals[batch.task] for batch, _ in micro_batches]).mean()
        return LossParts(mean, totals)

    def update(self, step: int, learning_rate: float) -> Float[Tensor, ""]:
        """Clip, step, average. A gradient that is not finite changes nothing; its norm, returned, tells."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip)
        if torch.isfinite(norm):
            for group in self.optimiser.param_groups:
                group["lr"] = learning_rate
            self.optimiser.step()
            self.ema.update(step)
        return norm
