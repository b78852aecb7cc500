"""One step many times: a loop on a CPU, a CUDA graph that is replayed on a GPU.

A step of a small batch is hundreds of kernels of a few microseconds, and handing them over one by one takes longer than
computing them. On a GPU a step is recorded once for each key and shape and then replayed: the result is the eager one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ups.equations.schemes.fused import recordable
from ups.graphs import record, replay

_MOST = 128
"""So many graphs are kept on a GPU; before another one is recorded, all of them go."""
_WORTH = 3
"""Fewer steps at a time are not recorded."""

State = tuple[Tensor, ...]


def repeat(step: Callable[..., State], state: State, times: int, key: Hashable) -> State:
    """The state after `times` steps, `state = step(*state)`.

    The step reads nothing on the host and depends on `key` and the state alone: another step of the same key, with a
    state of the same shape, is the same step.
    """
    if recordable(*state) and times >= _WORTH:
        return _graphs(state[0].device).run(step, state, times, key)
    for _ in range(times):
        state = step(*state)
    return state


class _Recording(NamedTuple):
    """A step in place. It is kept with the step, whose own tensors the graph reads."""

    graph: torch.cuda.CUDAGraph
    state: State
    step: Callable[..., State]


class _Graphs:
    """Of one GPU. They share one pool of memory, and those of one shape their state, because no two run at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.recordings: dict[Hashable, _Recording] = {}
        self._states: dict[Hashable, State] = {}
        self._lock = threading.Lock()
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, step: Callable[..., State], state: State, times: int, key: Hashable) -> State:
        shape = tuple((tensor.shape, tensor.dtype) for tensor in state)
        with self._lock, torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad():
            if (key, shape) not in self.recordings:
                self._record(key, shape, step, state)
            recording = self.recordings[key, shape]
            for place, tensor in zip(recording.state, state, strict=True):
                place.copy_(tensor)
            for _ in range(times):
                replay(recording.graph, ("solver", *shape))
            return tuple(place.clone() for place in recording.state)

    def _record(self, key: Hashable, shape: Hashable, step: Callable[..., State], state: State) -> None:
        if len(self.recordings) >= _MOST:
            torch.cuda.synchronize()  # replays may be under way
            self.recordings.clear()
            self._states.clear()
            self._pool = torch.cuda.graph_pool_handle()
        if shape not in self._states:
            self._states[shape] = tuple(tensor.clone(memory_format=torch.contiguous_format) for tensor in state)
        places = self._states[shape]
        for place, tensor in zip(places, state, strict=True):
            place.copy_(tensor)
        outside = torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            step(*places)  # compiles and loads kernels, plans transforms: a recording must not
        outside.wait_stream(self._stream)
        with record(self._stream, self._pool) as graph:
            for place, made in zip(places, step(*places), strict=True):
                if made is not place:
                    place.copy_(made)
        self.recordings[key, shape] = _Recording(graph, places, step)


@lru_cache(maxsize=16)
def _graphs(device: torch.device) -> _Graphs:
    return _Graphs(device)
