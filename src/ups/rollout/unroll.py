"""Stepping a propagator: each step re-encodes the field, so the state is always the field on its own points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    static: Float[Tensor, "B *space S"],
    parameters: Mapping[str, Float[Tensor, " B"]],
    lead: Float[Tensor, " B"],
    grid: Grid,
    steps: int,
    capture: bool = True,
) -> Iterator[Float[Tensor, "B *space C"]]:
    """Yield the `steps` states that follow the history, in normalised units, each one lead time after the last.

    On a GPU steps are replayed as CUDA graphs where that is possible and `capture` does not forbid it (`captured`).
    """
    step = stepper(model, task, history, static, parameters, lead, grid, capture)
    for _ in range(steps):
        state = step(history)
        yield state
        history = torch.cat([history[:, 1:], state[:, None]], 1)


def start_history(frames: Float[Tensor, "B T *space C"], length: int) -> Float[Tensor, "B H *space C"]:
    """The last `length` of the frames given; a single frame is repeated."""
    if frames.shape[1] >= length:
        return frames[:, frames.shape[1] - length :]
    first = frames[:, :1].expand(-1, length - frames.shape[1], *frames.shape[2:])
    return torch.cat([first, frames], 1)
