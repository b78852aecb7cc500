"""March batches through time: at the wanted times, in batches of one size, and from averages over larger cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError


def march(
    name: str,
    state: Float[Tensor, "*state"],
    times: Float[Tensor, " T"],
    advance: Callable[[Tensor, float, float], Tensor],
    began: float = 0.0,
) -> Iterator[Float[Tensor, "*state"]]:
    """The states at `times`, where `state` is that at `began`; `advance(state, now, later)` gives the later state."""
    now = began
    for time in times.tolist():
        if time < now:
            raise UserError(f"{name}: time {time} comes after {now}; give times from {began:g} on, in increasing order")
        if round(time - now, 12) > 0:
            state = advance(state, now, time)
        yield state
        now = time


def growing_steps(now: float, later: float, longest: Callable[[float], float]) -> Iterator[float]:
    """Steps that cover the time from `now` to `later`, each of at most longest(where it begins)."""
    while now < later:
        dt = min(longest(now), later - now)
        yield dt
        now = later if dt == later - now else now + dt


def doublings(points: int, needed: float) -> int:
    """The power of 2 by which a number of points must be multiplied to be as many as are needed."""
    factor = 1
    while points * factor < needed:
        factor *= 2
    return factor


def in_rows(
    solve: Callable[..., Tensor], *inputs: Float[Tensor, "B ..."], rows: int | None = None
) -> Float[Tensor, "B *out"]:
    """`solve(*inputs)` in batches of one fixed size, the last one filled up with copies of its first row.

    A matrix product or Fourier transform may round differently in a batch of another size, and a trajectory must not
    depend on what else is made with it. Small batches stay in a CPU's cache; large ones keep a GPU busy.
    """
    rows = rows or (8 if inputs[0].device.type == "cpu" else 64)
    solved = []
    for start in range(0, len(inputs[0]), rows):
        part = [tensor[start : start + rows] for tensor in inputs]
        size = len(part[0])
        filled = [torch.cat((t, t[:1].expand(rows - size, *t.shape[1:]))) if size < rows else t for t in part]
        solved.append(solve(*filled)[:size])
    return torch.cat(solved)


def block_means(name: str, fields: Float[Tensor, "*any"], points: int, axes: Sequence[int]) -> Float[Tensor, "*fewer"]:
    """Averages over blocks of cells, `points` of them along each of the given neighbouring axes."""
    for axis in reversed(axes):
        n = fields.shape[axis]
        if points < 4 or n % points:
            raise UserError(f"{name}: {points} points do not divide {n}; give a divisor of at least 4")
        fields = fields.unflatten(axis, (points, n // points))
    return fields.mean([axis + place + 1 for place, axis in enumerate(axes)])
