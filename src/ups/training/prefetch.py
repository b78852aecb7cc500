"""The next steps' data, read before they are asked for: beside a GPU that computes, or several steps' at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import torch

STEPS = 8
"""So many are read at once on a CPU."""
ROOM = 16 * 2**20
"""Bytes that they may take together; steps with more work than that would gain nothing."""


class Loaded(Protocol):
    @property
    def nbytes(self) -> int: ...


How = TypeVar("How")
T = TypeVar("T", bound=Loaded)


def prefetched(
    load: Callable[[int, How], Iterable[T]], device: torch.device, on_device: bool
) -> Callable[[int, How], Iterable[T]]:
    """`load`, as suits the device. `on_device`: fields are in its memory, and there is nothing to wait for."""
    if device.type == "cpu":
        return BlockPrefetch(load)
    return load if on_device else ThreadPrefetch(load)


class ThreadPrefetch(Generic[How, T]):
    """`load(step, how)` of one step after the other, of which one thread always reads the next. An error in there is
    raised when its step is asked for.
    """

    def __init__(self, load: Callable[[int, How], Iterable[T]]) -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._begun: dict[tuple[int, How], Future[list[T]]] = {}

    def __call__(self, step: int, how: How) -> list[T]:
        now = self._begun.pop((step, how), None) or self._begin(step, how)
        items = now.result()
        self._begun = {(step + 1, how): self._begin(step + 1, how)}
        return items

    def _begin(self, step: int, how: How) -> Future[list[T]]:
        return self._thread.submit(lambda: list(self._load(step, how)))


class BlockPrefetch(Generic[How, T]):
    """`load(step, how)` of several steps in a row. What loads a small batch takes three times as long after a step has
    used the caches, so one after the other is the cheapest way to have eight.
    """

    def __init__(self, load: Callable[[int, How], Iterable[T]]) -> None:
        self._load = load
        self._read: dict[tuple[int, How], list[T]] = {}

    def __call__(self, step: int, how: How) -> list[T]:
        if (step, how) not in self._read:
            self._read.clear()
            for later in range(step, step + STEPS):
                try:
                    items = self._read[later, how] = list(self._load(later, how))
                except Exception:
                    if later == step:
                        raise
                    break  # it is loaded again, and the error raised, when its step is asked for
                if sum(item.nbytes for item in items) > ROOM // STEPS:
                    break
        return self._read.pop((step, how))
