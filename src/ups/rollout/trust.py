"""What of a rollout is not to be trusted, in words."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.models.saved import TrainedTask

BEYOND = 0.05
"""A value further outside the trained range than this share of its length is warned of: before guards cut it off."""


def untrained(learned: TrainedTask, dt: float) -> list[str]:
    """What is to be said of a step that is shorter or longer than all in training."""
    shortest, longest = min(learned.leads), max(learned.leads)
    if shortest * 0.99 <= dt <= longest * 1.01:
        return []
    trained = f"{shortest:g}" if shortest == longest else f"{shortest:g} to {longest:g}"
    return [f"dt = {dt:g} is outside the lead times that task {learned.spec.name!r} was trained on ({trained})"]


def departures(
    learned: TrainedTask, states: Float[Tensor, "B T *points C"], mask: Bool[Tensor, "N *space"] | None = None
) -> list[str]:
    """Where channels leave the trained range and where they leave the numbers, each at its first step; 0 is the start,
    or the solution of a steady task. Only of the cells inside the mask, which all members of a start share.
    """
    task, normaliser, notes = learned.spec.name, learned.normaliser, []
    by_step = states.detach().movedim(-1, 0).transpose(1, 2).flatten(2)  # (C, T, all points of all samples)
    inside = None if mask is None else mask.repeat(len(states) // len(mask), *(1,) * (mask.dim() - 1)).flatten()
    ends = normaliser.ranges()
    if ends is not None:
        trained, margin = normaliser.physical(ends).T, BEYOND * (ends[1] - ends[0])
        limits = normaliser.physical(ends + torch.stack([-margin, margin])).T
        for name, values, (low, high), (least, most) in zip(
            learned.spec.channel_names, by_step, limits.tolist(), trained.tolist(), strict=True
        ):
            outside = (values < low) | (values > high)
            outside = outside if inside is None else outside & inside
            if bool(outside.any()):
                step = int(outside.any(1).int().argmax())
                notes.append(
                    f"step {step}: {name} = {span(values[step][outside[step]])} is outside the range that task "
                    f"{task!r} was trained on ({least:.4g} to {most:.4g}); do not trust what follows"
                )
    for name, values in zip(learned.spec.channel_names, by_step, strict=True):
        broken = ~torch.isfinite(values).all(1)
        if bool(broken.any()):
            notes.append(
                f"step {int(broken.int().argmax())}: {name} of task {task!r} has NaN or infinite values; start nearer "
                "to trained data"
            )
    return notes


def span(values: Float[Tensor, "..."]) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
