"""What of a rollout is not to be trusted, in words."""

from __future__ import annotations

import math

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


class Departures:
    """Where channels leave the trained range and where they leave the numbers, told from one state after another, of
    which a few numbers are kept where the state is. Only of cells inside the mask, which all members of a start share.
    """

    def __init__(self, learned: TrainedTask, mask: Bool[Tensor, "N *space"] | None = None) -> None:
        self._learned, self._mask, self._ends = learned, mask, learned.normaliser.ranges()
        self._seen: dict[int, Tensor] = {}

    def see(self, state: Float[Tensor, "B *points C"], step: int | None = None) -> None:
        """The next one, or some members of a `step`; the first is the start, or the solution of a steady task."""
        step = len(self._seen) if step is None else step
        values = state.detach().flatten(0, -2)  # (all points of all samples, C)
        inside = torch.ones_like(values[:, :1], dtype=torch.bool)
        if self._mask is not None:
            mask = self._mask.repeat(len(state) // len(self._mask), *(1,) * (self._mask.dim() - 1))
            inside = mask.reshape(-1, 1).to(values.device)
        low, high = self._limits().to(values)
        outside = inside & ((values < low) | (values > high))
        least = torch.where(outside, values, math.inf).amin(0)
        most = torch.where(outside, values, -math.inf).amax(0)
        finite = values.isfinite().all(0).to(values)
        if step in self._seen:
            others = self._seen[step]
            least, most = torch.minimum(least, others[0]), torch.maximum(most, others[1])
            finite = torch.minimum(finite, others[2])
        self._seen[step] = torch.stack([least, most, finite])

    def _limits(self) -> Float[Tensor, "2 C"]:
        if self._ends is None:
            return torch.tensor([[-math.inf], [math.inf]]).expand(2, len(self._learned.spec.channels))
        margin = BEYOND * (self._ends[1] - self._ends[0])
        return self._learned.normaliser.physical(self._ends + torch.stack([-margin, margin]))

    def notes(self) -> list[str]:
        """Each channel's at its first step; a steady task has none."""
        steady = self._learned.spec.steady
        task, names = self._learned.spec.name, self._learned.spec.channel_names
        steps = sorted(self._seen)
        least, most, finite = torch.stack([self._seen[n] for n in steps]).double().cpu().unbind(1)  # (S, C) each
        notes = []
        if self._ends is not None:
            trained = self._learned.normaliser.physical(self._ends).T.tolist()
            for channel, name in enumerate(names):
                outside = least[:, channel] <= most[:, channel]
                if bool(outside.any()):
                    row = int(outside.int().argmax())
                    seen = torch.stack([least[row, channel], most[row, channel]])
                    at, what = ("", "the solution") if steady else (f"step {steps[row]}: ", "what follows")
                    notes.append(
                        f"{at}{name} = {span(seen)} is outside the range that task {task!r} was trained on "
                        f"({trained[channel][0]:.4g} to {trained[channel][1]:.4g}); do not trust {what}"
                    )
        for channel, name in enumerate(names):
            broken = finite[:, channel] == 0
            if bool(broken.any()):
                at, mend = f"step {steps[int(broken.int().argmax())]}: ", "start nearer to trained data"
                if steady:
                    at, mend = "", "give conditions nearer to trained data"
                notes.append(f"{at}{name} of task {task!r} has NaN or infinite values; {mend}")
        return notes


def span(values: Float[Tensor, "..."]) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
