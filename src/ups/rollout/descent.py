"""Least of many functions at once, one of each row, from their gradients: limited-memory BFGS, in which rows share
nothing but the calls, so that a row's path does not depend on what else is in the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MEMORY = 20
"""Steps that curvature is learned from."""
DECREASE = 1e-4
"""Of a function over what its gradient promises: a step that gives less is halved."""
FLAT = 1e-6
"""The largest gradient, over the function's value, at which all rows are done."""
SHORTEST = 1e-3
"""Of a step, before curvature is forgotten and the way is the gradient's again."""

Objective = Callable[[Float[Tensor, "B K"]], Float[Tensor, " B"]]


def least(objective: Objective, x: Float[Tensor, "B K"], iterations: int) -> Float[Tensor, "B K"]:
    """Of each row where its function, which is positive, was least, after so many gradients or where all are flat."""
    values, gradients = _gradients(objective, x)
    past: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=MEMORY)
    kept = torch.ones_like(values, dtype=torch.bool)  # rows that use their past
    length, way = torch.ones_like(values), _way(gradients, past, kept)
    for _ in range(iterations):
        if bool((gradients.abs().amax(1) <= FLAT * values).all()):
            break
        there = x + length[:, None] * way
        found, rising = _gradients(objective, there)
        promised = (gradients * way).sum(1)
        taken = found.isfinite() & (found <= values + DECREASE * length * promised)
        step, turn = there - x, rising - gradients
        curvature = (step * turn).sum(1)
        known = taken & (curvature > 1e-10 * turn.square().sum(1))
        past.append((step, turn, torch.where(known, 1 / torch.where(known, curvature, 1.0), 0.0)))
        x, gradients = torch.where(taken[:, None], there, x), torch.where(taken[:, None], rising, gradients)
        values = torch.where(taken, found, values)
        length = torch.where(taken, 1.0, length / 2)
        kept = torch.where(taken, True, kept & (length > SHORTEST))
        way = torch.where((taken | ~kept)[:, None], _way(gradients, past, kept), way)
    return x


def _gradients(objective: Objective, x: Tensor) -> tuple[Float[Tensor, " B"], Float[Tensor, "B K"]]:
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        values = objective(x)
        (gradients,) = torch.autograd.grad(values.sum(), x)
    return values.detach(), gradients


def _way(
    gradients: Float[Tensor, "B K"], past: deque[tuple[Tensor, Tensor, Tensor]], kept: Bool[Tensor, " B"]
) -> Float[Tensor, "B K"]:
    """−H ∇f by the two loops; of rows without a past down the gradient, no further than one."""
    way, shares = -gradients, []
    scale = 1 / gradients.square().sum(1).sqrt().clamp_min(1)
    for step, turn, inverse in reversed(past):
        shares.append(inverse * (step * way).sum(1))
        way = way - shares[-1][:, None] * turn
    for _, turn, inverse in past:  # the newest curvature that is known
        known = inverse > 0
        scale = torch.where(known, 1 / (inverse * turn.square().sum(1)).clamp_min(1e-30), scale)
    way = scale[:, None] * way
    for (step, turn, inverse), share in zip(past, reversed(shares), strict=True):
        way = way + (share - inverse * (turn * way).sum(1))[:, None] * step
    plain = -gradients / gradients.square().sum(1, keepdim=True).sqrt().clamp_min(1)
    return torch.where((kept & ((way * gradients).sum(1) < 0))[:, None], way, plain)
