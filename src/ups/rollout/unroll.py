"""Stepping a propagator: each step re-encodes the field, so the state is always the field on its own points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from ups.fields import Grid
from ups.models.propagator import Propagator
from ups.rollout.captured import stepper


def unroll(
    model: Propagator,
    task: str,
    history: Float[Tensor, "B H *space C"],
    parameters: Mapping[str, Float[Tensor, " B"]],
    grid: Grid,
    steps: Iterable[tuple[Float[Tensor, "B *space G"], Float[Tensor, " B"]]],
    capture: bool = True,
) -> Iterator[Float[Tensor, "B *space C"]]:
    """Yield the states that follow the history, in normalised units: one for each of `steps`, which say what it is
    given beside the history (`models.given`) and its lead time.

    On a GPU steps are replayed as CUDA graphs where that is possible and `capture` does not forbid it (`captured`).
    """
    step = None
    for given, lead in steps:
        step = step or stepper(model, task, history, given, parameters, lead, grid, capture)
        state = step(history, given, lead)
        yield state
        history = torch.cat([history[:, 1:], state[:, None]], 1)


def start_history(frames: Float[Tensor, "B T *space C"], length: int) -> Float[Tensor, "B H *space C"]:
    """The last `length` of the frames given; a single frame is repeated."""
    if frames.shape[1] >= length:
        return frames[:, frames.shape[1] - length :]
    first = frames[:, :1].expand(-1, length - frames.shape[1], *frames.shape[2:])
    return torch.cat([first, frames], 1)
