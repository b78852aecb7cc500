"""How wrong a stage is on the validation split: what chooses the weights that are kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.draws import Draws
from ups.distributed.runtime import Runtime
from ups.fields import Batch
from ups.training.data import Prepared
from ups.training.stage import Stage


@torch.no_grad()
def validation_errors(
    stage: Stage, tasks: Mapping[str, Prepared], runtime: Runtime, seed: int, dtype: torch.dtype
) -> dict[str, float]:
    """The mean error of each task; all ranks call it together and get the same."""
    own = [_sums(stage, task.validation, runtime, seed, dtype) for task in tasks.values()]
    sums = runtime.first(runtime.sum(torch.stack(own))).cpu()  # rank 0 has the last word
    return dict(zip(tasks, (sums[:, 0] / sums[:, 1]).tolist(), strict=True))


def _sums(stage: Stage, held: Batch, runtime: Runtime, seed: int, dtype: torch.dtype) -> Float[Tensor, " two"]:
    """The sum of this rank's errors, and their number. Every rank computes equally many, because sharded models compute
    together; fillers count for nothing.
    """
    rank, size, count, device = runtime.rank, runtime.size, len(held), runtime.device
    own = list(range(rank * count // size, (rank + 1) * count // size))
    places = own + [own[-1] if own else 0] * (-(-count // size) - len(own))
    draws = Draws(seed, f"{stage.name}, validation", torch.tensor(0), torch.tensor(places, device=device))
    errors = stage.validate(held.select(places).to(device, dtype), draws).errors[: len(own)].double()
    return torch.stack([errors.sum(), torch.ones_like(errors).sum()])
