"""How fast a training goes and what it needs, between one look and the next."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from ups.distributed.runtime.host import process_use

T = TypeVar("T")


class Pace:
    """Of this rank: steps and samples a second, the share of the time that it waited for data, and memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waited = self._seconds = 0.0
        self._step: int | None = None

    def waiting(self, load: Callable[[], Iterable[T]]) -> Iterator[T]:
        """The batches; the time that they took to come is noted."""
        began = time.perf_counter()
        batches = iter(load())
        while (batch := next(batches, None)) is not None:
            self._waited += time.perf_counter() - began
            yield batch
            began = time.perf_counter()
        self._waited += time.perf_counter() - began

    def look(self, step: int, seconds: float, samples: int) -> dict[str, float | None]:
        """At a step, after so many seconds of training, of `samples` a step. `memory` in bytes: the most that tensors
        had on the GPU, or all that the process has now.
        """
        found: dict[str, float | None] = {"memory": self._memory()}
        if self._step is not None and seconds > self._seconds:
            passed = seconds - self._seconds
            rate = (step - self._step) / passed
            found |= {"steps_a_second": rate, "samples_a_second": samples * rate, "data_wait": self._waited / passed}
        self._step, self._seconds, self._waited = step, seconds, 0.0
        return found

    def _memory(self) -> float | None:
        if self._device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self._device))
        return process_use(os.getpid())[0]
