"""How large a micro-batch fits, found before the first step and without ever failing.

A sharded rank that runs out of memory leaves its peers in the middle of a collective, so it must not happen. Memory is
linear in the micro-batch m, peak(m) = a + b m; two small passes, with the longest rollout, give a and b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ups.distributed.runtime.start import Runtime
from ups.training.step import MicroBatch, Step

SHARE = 0.92
"""Of the smallest card's memory, so much may be used."""


def fitting_micro_batches(
    wanted: Mapping[str, int], load: Callable[[str, int], MicroBatch], step: Step, runtime: Runtime
) -> dict[str, int]:
    """For each task the largest micro-batch up to the one wanted that fits on every rank; all ranks call it together.

    `load(task, m)` gives m samples of the longest rollout.
    """

    def peak(task: str, m: int) -> int:
        torch.cuda.reset_peak_memory_stats()
        step.gradients([load(task, m)], runtime)
        step.forget()
        return torch.cuda.max_memory_allocated()

    fitting = {}
    for task, most in wanted.items():
        peak(task, 1)  # what is allocated once (workspaces, tables) must not look like the cost of a sample
        one, two = peak(task, 1), peak(task, min(2, most))
        room = SHARE * (torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved())
        measured = runtime.gather((one, two, room))
        one, two = (max(values[i] for values in measured) for i in (0, 1))
        room = min(values[2] for values in measured)
        fitting[task] = most if two <= one else max(1, min(most, 1 + int((room - one) / (two - one))))
    return fitting
