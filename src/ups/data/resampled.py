"""Trajectories whose frames lie anywhere in time, brought to equal steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.interpolation import axis_weights
from ups.data.joined import Joined
from ups.errors import UserError
from ups.fields import Batch, Dataset, Header

ORDER = 3
"""Of the polynomials in time: the error is of fourth order in the time between frames."""


class Resampled(Dataset):
    """`frames` frames, `dt` apart from each trajectory's first one on, by cubics through the four frames around.

    Fields and forcings alike; times count from the first frame.
    """

    def __init__(self, dataset: Dataset, dt: float, frames: int) -> None:
        self.dataset = dataset
        self._stored = _counted(dataset.header)
        times = torch.arange(frames, dtype=torch.float64) * dt
        self.header = replace(dataset.header, times=times, own_times=None)

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        """Only the frames that those asked for depend on are read."""
        times = self.header.times[frames]
        stored = self._stored.expand(len(self), -1)[list(indices)]
        pairs = [axis_weights(own, (0.0, 1.0), False, times, ORDER) for own in stored]
        places, weights = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        first, last = int(places.min()), int(places.max())
        batch = self.dataset.read(indices, slice(first, last + 1))
        rows = torch.arange(len(batch))[:, None, None]

        def between(field: Tensor) -> Tensor:
            around = field[rows, places - first].double()
            return torch.einsum("btk...,btk->bt...", around, weights).to(field.dtype)

        timed = self.header.forcings
        return replace(
            batch,
            values=between(batch.values),
            times=times.expand(len(batch), -1),
            forcings={name: between(f) if timed[name] else f for name, f in batch.forcings.items()},
        )


def resampled(dataset: Dataset, dt: float | None = None) -> Dataset:
    """The dataset in equal steps, as long as its shortest trajectory: of `dt`, or of as many frames as there are.

    Joined data are joined parts then too, because they are split part by part.
    """
    header = dataset.header
    if header.steady:
        raise UserError(f"task {header.task!r}: a steady task has no times to resample; leave `times` out")
    longest = float(_counted(header)[:, -1].min())
    dt = longest / (len(header.times) - 1) if dt is None else dt
    frames = int(longest / dt * (1 + 1e-9)) + 1
    if frames < header.given + 1:
        raise UserError(f"task {header.task!r}: a trajectory is too short for steps of {dt:g}; give longer ones")
    parts = dataset.parts if isinstance(dataset, Joined) else [dataset]
    found = [Resampled(part, dt, frames) for part in parts]
    return Joined(found) if isinstance(dataset, Joined) else found[0]


def _counted(header: Header) -> Float[Tensor, "N T"]:
    """Times from each trajectory's first frame on; one row where all are alike."""
    times = header.times[None] if header.own_times is None else header.own_times
    return (times - times[:, :1]).double()
