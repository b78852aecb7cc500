"""How fast a contestant's step is, what it waits for, what it needs, and how far that is from what the machine can do.

Blocks of steps of all contestants are timed in turn, so that a machine that was busy for a moment was busy for all of
them; the median block counts. What a step waits for its data is the difference to steps on one batch that is there
already, block by block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch

from ups.bench.contestants import Contestant
from ups.bench.loops import PREFETCH, WORKERS
from ups.bench.roofline import Ceilings, synchronise
from ups.bench.tasks import Model

BLOCKS = {"cpu": 31, "cuda": 7}
LONGEST = {"cpu": 0.15, "cuda": 0.25}
"""Seconds of a block, about. A CPU is shared with whatever else runs: more and shorter blocks, compared in turn."""
FEWEST = 4
"""Steps of a block, at least."""


@dataclass
class Timing:
    """What was seen of one contestant so far."""

    contestant: Contestant
    first: float
    """Seconds until the first step was done: data are placed, kernels loaded and, on a GPU, built and recorded."""
    steps: int
    """Of a block."""
    memory: int | None
    real: list[float]
    fixed: list[float]


def begin(make: Callable[[], Contestant], device: torch.device) -> Timing:
    """Make a contestant, warm it up, and find how many steps a block has."""
    held = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = torch.cuda.memory_allocated(device)
    began = time.perf_counter()
    contestant = make()
    contestant.advance(1)
    synchronise(device)
    first = time.perf_counter() - began
    contestant.advance(3)
    once = block(contestant, FEWEST, device)
    steps = max(FEWEST, min(1000, int(LONGEST[device.type] / once)))
    memory = torch.cuda.max_memory_allocated(device) - held if device.type == "cuda" else None
    return Timing(contestant, first, steps, memory, [], [])


def block(contestant: Contestant, steps: int, device: torch.device, *, fixed: bool = False) -> float:
    """Seconds a step."""
    synchronise(device)
    began = time.perf_counter()
    contestant.advance(steps, fixed=fixed)
    synchronise(device)
    return (time.perf_counter() - began) / steps


def round_of(timing: Timing, device: torch.device) -> None:
    """One block of real steps and one on a fixed batch."""
    # Batches that workers laid up while others were timed would flatter the block.
    timing.contestant.advance(min(timing.steps, PREFETCH * WORKERS + 2) if device.type == "cuda" else 1)
    timing.real.append(block(timing.contestant, timing.steps, device))
    timing.contestant.advance(1, fixed=True)
    timing.fixed.append(block(timing.contestant, timing.steps, device, fixed=True))


def result(timing: Timing, model: Model, batch_size: int, ceilings: Ceilings) -> dict[str, Any]:
    """What is written of a contestant."""
    counts, seconds, fixed = timing.contestant.count(), median(timing.real), median(timing.fixed)
    ceilings = (
        replace(ceilings, used="bf16") if model.precision == "bfloat16" and "bf16" in ceilings.matmul else ceilings
    )
    rate = ceilings.matmul[ceilings.used]
    moved, least = (ceilings.roofline(counts.flop, b) for b in (counts.moved, counts.least))
    return {
        "step_seconds": seconds,
        "samples_per_second": batch_size / seconds,
        "first_step_seconds": timing.first,
        "data_wait_share": max(0.0, 1 - fixed / seconds),
        "peak_memory_bytes": timing.memory,
        "blocks": timing.real,
        "blocks_fixed_data": timing.fixed,
        "steps_per_block": timing.steps,
        "counts": asdict(counts) | {"least": counts.least},
        "flop_per_second": counts.flop / seconds,
        "share_of_matmul": counts.flop / seconds / rate,
        "roofline_seconds": {"moved": moved, "least": least},
        "of_roofline": {"moved": seconds / moved, "least": seconds / least},
    }
