"""How wrong a stage is on the validation split: what chooses the weights that are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.draws import Draws
from ups.data.prepare.row_ranges import in_steps
from ups.distributed.runtime.start import Runtime
from ups.fields import Batch
from ups.training.data import TaskData
from ups.training.stage import Scores, Stage

_SMALLEST = 1e-12
"""Of an error: nothing is to be divided by zero, nor is its logarithm to be taken."""
POINTS, BYTES = 2**21, 2**28
"""So many points of a frame, and bytes of trajectories, are rolled out at once, at most, unless one has more."""


@dataclass(frozen=True)
class Validation:
    """Each task's mean error, and that of what needs no training; the share of values that guards cut off, of tasks
    that have guards; of this rank's first trajectory the frames that were predicted, and the truth.
    """

    errors: Mapping[str, float]
    trivial: Mapping[str, float]
    cut_off: Mapping[str, float]
    shown: Mapping[str, tuple[Tensor, Tensor]]

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
    """All ranks call it together and get the same errors."""
    own: list[Tensor] = []
    shown: dict[str, tuple[Tensor, Tensor]] = {}
    stage.trainable().eval()
    for name, task in tasks.items():
        sums, seen = _rolled_out(stage, task.validation, runtime, seed, dtype)
        own.append(sums)
        if seen is not None:
            shown[name] = seen
    stage.trainable().train()
    runtime.heartbeat.mark("scores")  # from here on it is others who take long
    sums = runtime.first(runtime.sum(torch.stack(own))).cpu()  # rank 0 has the last word
    errors, trivial, cut_off = (
        dict(zip(tasks, found, strict=True)) for found in (sums[:, :3] / sums[:, 3:]).T.tolist()
    )
    guarded = {name: share for name, share in cut_off.items() if math.isfinite(share)}
    return Validation(errors, trivial, guarded, shown)


def _rolled_out(
    stage: Stage, held: Batch, runtime: Runtime, seed: int, dtype: torch.dtype
) -> tuple[Float[Tensor, " four"], tuple[Tensor, Tensor] | None]:
    """The sums of this rank's errors, trivial errors and shares cut off, and their number; what its first trajectory
    shows. Every rank computes equally many, because sharded models compute together; fillers count for nothing.
    """
    rank, size, count, device = runtime.rank, runtime.size, len(held), runtime.device
    own = list(range(rank * count // size, (rank + 1) * count // size))
    places = own + [own[-1] if own else 0] * (-(-count // size) - len(own))
    most = max(1, min(POINTS // math.prod(held.grid.shape), BYTES // (held.values.nbytes // count)))
    scores = []
    for part in in_steps(len(places), most):
        some = places[part.start : part.stop]
        draws = Draws(seed, f"{stage.name}, validation", torch.tensor(0), torch.tensor(some, device=device))
        scores.append(stage.validate(held.select(some).to(device, dtype), draws))
    each = [torch.cat(found)[: len(own)].double() for found in zip(*map(_each, scores), strict=True)]
    seen = scores[0].shown
    shown = None if seen is None else (seen, held.values[places[0], -len(seen) :])
    return torch.stack([*(found.sum() for found in each), torch.ones_like(each[0]).sum()]), shown


def _each(scores: Scores) -> tuple[Tensor, Tensor, Tensor]:
    none = torch.full_like(scores.errors, math.nan)
    return scores.errors, scores.trivial, none if scores.cut_off is None else scores.cut_off
