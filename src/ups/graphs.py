"""Work on a GPU recorded as a CUDA graph: what every recording has to mind, in one place.

Whoever drops graphs waits for the GPU first, and drops all that were recorded on one stream together: torch may give
memory back that a running replay still uses (expandable segments; it waits for the stream of the recording only), and
2.12 on takes with a graph what matrix products on its stream share with other graphs (pytorch/pytorch 193402).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass
class Launches:
    """Of this process, for whoever has to explain a CUDA error."""

    recorded: int = 0
    replayed: int = 0
    last: Any = None
    """What was replayed last, or is being made."""


launches = Launches()


def replay(graph: torch.cuda.CUDAGraph, what: Any) -> None:
    """Replay a graph; `what` tells it from others in a crash report."""
    launches.replayed, launches.last = launches.replayed + 1, what
    graph.replay()


@contextmanager
def record(stream: torch.cuda.Stream, pool: Any = None) -> Iterator[torch.cuda.CUDAGraph]:
    """Within, work on the GPU is recorded and not done. Other threads (a checkpoint's) may go on using it.

    Garbage is not collected meanwhile: an old graph that dies spoils the one being recorded (pytorch/pytorch 161037).
    """
    graph = torch.cuda.CUDAGraph()
    launches.recorded, launches.last = launches.recorded + 1, "a graph that was being recorded"
    collecting = gc.isenabled()
    gc.disable()
    try:
        with (
            torch.cuda.stream(stream),  # left again even where torch's own context fails to end
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            yield graph
    finally:
        if collecting:
            gc.enable()


def first_cause(error: Exception) -> Exception:
    """What went wrong within a recording: torch raises another error when it ends one that failed."""
    while isinstance(error.__context__, Exception):
        error = error.__context__
    return error


def branches(works: Iterable[Callable[[], None]], device: torch.device) -> None:
    """One after the other; where they are recorded, each as a branch of the graph: a replay computes them at the same
    time, where one small kernel after the other would leave most of a GPU idle. They write to places of their own.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        for work in works:
            work()
        return
    here, sides = torch.cuda.current_stream(device), []
    for number, work in enumerate(works):
        sides.append(_side(device, number))
        sides[-1].wait_stream(here)
        with torch.cuda.stream(sides[-1]):
            work()
    for side in sides:
        here.wait_stream(side)


@cache
def _side(device: torch.device, number: int) -> torch.cuda.Stream:
    """One of a device's streams for branches, always the same: torch has 32 of them, and gives them out again."""
    return torch.cuda.Stream(device)
