"""How wrong a stage is on the validation split: what chooses the weights that are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.draws import Draws
from ups.distributed.runtime.start import Runtime
from ups.fields import Batch
from ups.training.data import TaskData
from ups.training.stage import Stage

_SMALLEST = 1e-12
"""Of an error: nothing is to be divided by zero, nor is its logarithm to be taken."""


@dataclass(frozen=True)
class Validation:
    """Each task's mean error, and that of what needs no training."""

    errors: Mapping[str, float]
    trivial: Mapping[str, float]

    @property
    def score(self) -> float:
        """The geometric mean of error over trivial error: a task counts by how much of it is learned, not by how hard
        it is. Not a number where one of them is none.
        """
        ratios = [error / max(self.trivial[task], _SMALLEST) for task, error in self.errors.items()]
        if not all(math.isfinite(ratio) for ratio in ratios):
            return math.nan
        return math.exp(math.fsum(math.log(max(ratio, _SMALLEST)) for ratio in ratios) / len(ratios))


@torch.no_grad()
def validate(
    stage: Stage, tasks: Mapping[str, TaskData], runtime: Runtime, seed: int, dtype: torch.dtype
) -> Validation:
    """All ranks call it together and get the same."""
    stage.trainable().eval()
    own = [_sums(stage, task.validation, runtime, seed, dtype) for task in tasks.values()]
    stage.trainable().train()
    runtime.heartbeat.mark("scores")  # from here on it is others who take long
    sums = runtime.first(runtime.sum(torch.stack(own))).cpu()  # rank 0 has the last word
    errors, trivial = (sums[:, :2] / sums[:, 2:]).T.tolist()
    return Validation(dict(zip(tasks, errors, strict=True)), dict(zip(tasks, trivial, strict=True)))


def _sums(stage: Stage, held: Batch, runtime: Runtime, seed: int, dtype: torch.dtype) -> Float[Tensor, " three"]:
    """The sums of this rank's errors and trivial errors, and their number. Every rank computes equally many, because
    sharded models compute together; fillers count for nothing.
    """
    rank, size, count, device = runtime.rank, runtime.size, len(held), runtime.device
    own = list(range(rank * count // size, (rank + 1) * count // size))
    places = own + [own[-1] if own else 0] * (-(-count // size) - len(own))
    draws = Draws(seed, f"{stage.name}, validation", torch.tensor(0), torch.tensor(places, device=device))
    scores = stage.validate(held.select(places).to(device, dtype), draws)
    errors, trivial = scores.errors[: len(own)].double(), scores.trivial[: len(own)].double()
    return torch.stack([errors.sum(), trivial.sum(), torch.ones_like(errors).sum()])
