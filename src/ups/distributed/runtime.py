"""Where a process runs: its rank, device and threads. The first line of everything that trains.

    with Runtime.start(config.runtime, seed) as rt:
        ...

It alone chooses the device and the number of threads and catches signals; it is handed to whatever needs ranks, and
nothing else asks. One process for now: rank 0 of 1.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch

from ups.config.schema import RuntimeConfig
from ups.errors import Stopped, UserError


@dataclass
class StopFlag:
    """Set by a signal, read between steps. A second Ctrl-C stops at once, the usual way."""

    asked: bool = False


@dataclass(frozen=True)
class Runtime:
    rank: int
    size: int
    device: torch.device
    threads: int
    stop: StopFlag = field(default_factory=StopFlag)

    @classmethod
    @contextmanager
    def start(cls, config: RuntimeConfig, seed: int) -> Iterator[Runtime]:
        if config.device == "cuda" and not torch.cuda.is_available():
            raise UserError("runtime.device is cuda, but torch sees no GPU here; use runtime.device=cpu")
        cuda = config.device == "cuda" or (config.device == "auto" and torch.cuda.is_available())
        threads = config.threads or len(os.sched_getaffinity(0))
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        runtime = cls(0, 1, torch.device("cuda", 0) if cuda else torch.device("cpu"), threads)

        def ask(number: int, frame: FrameType | None) -> None:
            if runtime.stop.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            runtime.stop.asked = True

        handlers = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield runtime
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            torch.set_num_threads(before)

    def check_stop(self, saved: str) -> None:
        """Leave in good order if the user asked to; `saved` says what is kept."""
        if self.stop.asked:
            raise Stopped(saved)
