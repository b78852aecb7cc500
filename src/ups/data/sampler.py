"""Which samples a step sees: a pure function of (seed, step).

The global batch of step s is the same for any number of ranks, any split into micro-batches and any number of
restarts, because nothing here remembers anything. Resuming a run needs one number, the step; there is no generator
state to save. Integer hashes stand in for generators, so the order also survives a change of NumPy or torch.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64
from torch import Tensor

from ups.data.settings import SamplingConfig
from ups.errors import UserError

_MASK64 = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_STEP = 0xD1342543DE82EF95
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

# One stream of hashes a purpose, so that the order, the start frames and the strides are independent.
_ORDER, _START, _STRIDE = 1, 2, 3


def mix(*values: int) -> int:
    """A stable 64-bit hash of integers (taken modulo 2⁶⁴): `mix(seed, task, epoch)` seeds one stream.

    h ← scramble(a·h + v + γ) for each value v in turn, where scramble is splitmix64's bijection. Order and number of
    the values matter.
    """
    state = 0
    for value in values:
        x = (state * _STEP + value + _GAMMA) & _MASK64
        x = ((x ^ (x >> 30)) * _MULTIPLIERS[0]) & _MASK64
        x = ((x ^ (x >> 27)) * _MULTIPLIERS[1]) & _MASK64
        state = x ^ (x >> 31)
    return state


def mix_each(prefix: int, values: Int[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """`mix(a, b, v)` for every v, where `prefix` is mix(a, b)."""
    x = values.astype(np.uint64) + np.uint64((prefix * _STEP + _GAMMA) & _MASK64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MULTIPLIERS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MULTIPLIERS[1])
    return x ^ (x >> np.uint64(31))


class Span(NamedTuple):
    """What a sample holds beyond its task's history: so many frames, and how far apart. `strides` is a table of (frames
    from one step to the next, weight), of which every sample draws its own.
    """

    frames: int
    strides: tuple[tuple[int, float], ...] = ((1, 1.0),)


class TaskShare(NamedTuple):
    """A task as the sampler sees it: how many trajectories of how many frames, its share of every batch, and the
    frames a step starts from.
    """

    name: str
    trajectories: int
    frames: int
    share: float
    history: int = 1


@dataclass(frozen=True, eq=False)
class TaskIndices:
    """One task's part of a global batch: windows of `frames` frames, one a sample, whose frames are a stride apart.

    `slots` are the samples' places in the global batch, unique within a step across tasks: what `Draws` depend on.
    `weights` are 1, or 0 for a sample that only fills a rank's place; over all ranks they sum to the global count.
    """

    task: str
    ids: Int[Tensor, " b"]
    starts: Int[Tensor, " b"]
    strides: Int[Tensor, " b"]
    slots: Int[Tensor, " b"]
    weights: Float[Tensor, " b"]
    frames: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def windows(self) -> Int[Tensor, "b T"]:
        """The numbers of every sample's frames."""
        return self.starts[:, None] + self.strides[:, None] * torch.arange(self.frames)

    def padded(self, rank: int, size: int) -> TaskIndices:
        """The part of rank `rank` of `size`, brought to the length that the longest part has. Parts are disjoint, cover
        all, and differ by at most one sample before that.

        So every rank runs the same number of micro-batches of the same shape, and none waits for a collective that
        another never starts. A missing sample repeats the rank's last one (the task's first where the rank has none)
        with weight 0: real data, whose loss is finite, and which counts for nothing.
        """
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} of {size} does not exist")
        first, end = rank * len(self) // size, (rank + 1) * len(self) // size
        if size == 1:
            return self
        places = torch.arange(first, first - (-len(self) // size))
        real = places < end
        part = self._take(places.where(real, torch.tensor(end - 1 if end > first else 0)))
        return replace(part, weights=part.weights * real)

    def micro_batches(self, size: int | None) -> Iterator[TaskIndices]:
        """Consecutive pieces of `size` samples, the last one shorter where it does not divide; None: one piece."""
        if size is None or size >= len(self):
            yield self
            return
        for places in torch.arange(len(self)).split(size):
            yield self._take(places)

    def _take(self, places: Int[Tensor, " n"]) -> TaskIndices:
        taken = {name: getattr(self, name)[places] for name in ("ids", "starts", "strides", "slots", "weights")}
        return replace(self, **taken)


@dataclass(frozen=True)
class Sampler:
    """The order of training: `Sampler((("advection", 1000, 41, 1.0), ("darcy", 800, 1, 0.5)), seed=0, batch_size=16)`.

    Every step has samples of every task, in numbers proportional to the shares. Each task walks through a permutation
    of its trajectories, a new one each epoch: sample j of step s is at position s·b + j of that endless walk, so every
    trajectory is seen exactly once an epoch.
    """

    tasks: tuple[TaskShare, ...]
    seed: int
    batch_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(TaskShare(*task) for task in self.tasks))
        if self.batch_size < len(self.tasks):
            raise UserError(
                f"batch_size is {self.batch_size} for {len(self.tasks)} tasks; every task needs at least one sample a "
                f"step, so make it {len(self.tasks)} or more"
            )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Samples a step of each task: largest remainder, at least one each, summing to `batch_size`."""
        total = math.fsum(task.share for task in self.tasks)
        quotas = [self.batch_size * task.share / total for task in self.tasks]
        counts = [max(1, math.floor(quota)) for quota in quotas]
        order = range(len(counts))
        while sum(counts) < self.batch_size:
            counts[max(order, key=lambda i: quotas[i] - counts[i])] += 1
        while sum(counts) > self.batch_size:
            counts[min((i for i in order if counts[i] > 1), key=lambda i: quotas[i] - counts[i])] -= 1
        return tuple(counts)

    def indices(
        self, step: int, window: int, strides: Sequence[tuple[int, float]] = ((1, 1.0),)
    ) -> tuple[TaskIndices, ...]:
        """The global batch of `step`: a task's history and the `window` frames that follow it, one part a task.

        `strides` is a table of (frames from one step to the next, weight), of which every sample draws its own, so
        that no step is of long lead times alone. Strides too long for a task's trajectories are left out of its draws.
        A task of one frame is steady: its only window is that frame.
        """
        parts, first_slot = [], 0
        for task, count in zip(self.tasks, self.counts, strict=True):
            key = mix(self.seed, zlib.crc32(task.name.encode()))
            steps = window + task.history - 1 if task.frames > 1 else 0
            positions = step * count + np.arange(count, dtype=np.int64)
            epochs, places = np.divmod(positions, task.trajectories)
            ids = np.empty(count, dtype=np.int64)
            for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
                here = epochs == epoch
                ids[here] = _permutation(mix(key, _ORDER, epoch), task.trajectories)[places[here]]
            # Multiples of γ modulo 2⁶⁴ are spread evenly, so every step has its share of every stride.
            draws = np.uint64(mix(key, _STRIDE)) + positions.astype(np.uint64) * np.uint64(_GAMMA)
            stride = _draw_strides(task, steps, strides, draws)
            windows = (task.frames - steps * stride).astype(np.uint64)
            starts = (mix_each(mix(key, _START), positions) % windows).astype(np.int64)
            slots = torch.arange(first_slot, first_slot + count)
            parts.append(
                TaskIndices(
                    task.name,
                    torch.from_numpy(ids),
                    torch.from_numpy(starts),
                    torch.from_numpy(stride),
                    slots,
                    torch.ones(count),
                    frames=steps + 1,
                )
            )
            first_slot += count
        return tuple(parts)


def sampling_shares(
    sampling: SamplingConfig, trajectories: Mapping[str, int], shares: Mapping[str, float], costs: Mapping[str, float]
) -> dict[str, float]:
    """Each task's share of every batch: as written in the config (`shares`), or from its number of trajectories n.

    `cost`: as written over the cost of a sample, so that shares are of the work and not of the samples: a field in two
    dimensions costs as much as a dozen in one. Costs are counted, never timed, so that every machine computes the same.
    `balanced`: all alike; `proportional`: ∝ n, so that epochs of all tasks take equally long; `temperature`: ∝ n^(1/T),
    between the two: T = 1 is proportional, T → ∞ balanced.
    """
    if sampling.mode in ("cost", "shares"):
        return {name: share / (costs[name] if sampling.mode == "cost" else 1) for name, share in shares.items()}
    exponent = {"balanced": 0.0, "proportional": 1.0, "temperature": 1.0 / sampling.temperature}[sampling.mode]
    return {name: float(n) ** exponent for name, n in trajectories.items()}


def check_ranks(batch_size: int, ranks: int) -> None:
    """Refuse a batch that leaves a rank without a sample: it would only cost its price and slow the others."""
    if batch_size < ranks:
        raise UserError(
            f"training.batch_size is {batch_size} for {ranks} ranks; every rank needs a sample a step, so make it "
            f"{ranks} or more, or use fewer ranks"
        )


def _draw_strides(
    task: TaskShare, steps: int, strides: Sequence[tuple[int, float]], draws: UInt64[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """For each draw the stride whose share of the weights contains draw / 2⁶⁴, among those that fit into the
    trajectory.
    """
    if steps == 0:
        return np.ones(len(draws), dtype=np.int64)
    fitting = [(stride, weight) for stride, weight in strides if stride > 0 and steps * stride < task.frames]
    ends = list(itertools.accumulate(weight for _, weight in fitting))
    if not ends or ends[-1] <= 0:
        raise UserError(
            f"task {task.name!r} has {task.frames} frames, too few for {steps} steps at any of the strides "
            f"{[stride for stride, _ in strides]}; shorten the rollout, the history or the strides"
        )
    places = np.searchsorted(np.array(ends[:-1]), draws / 2**64 * ends[-1], side="right")
    return np.array([stride for stride, _ in fitting], dtype=np.int64)[places]


@lru_cache(maxsize=64)
def _permutation(key: int, n: int) -> Int[np.ndarray, " n"]:
    """0 … n−1 sorted by their hashes; cached because consecutive steps walk through the same one."""
    order = np.argsort(mix_each(key, np.arange(n)), kind="stable")
    order.setflags(write=False)
    return order
