"""Whether a step of training can fit into memory at all, before data are made or anything is trained.

Of every point, or latent, a network keeps some numbers for the backward pass: at least `KEPT` for each channel of its
width, and of each block where it has blocks. A batch that does not fit is divided (`training/probe.py`); one sample
cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from ups.data.prepare.row_ranges import trajectory_bytes
from ups.distributed.runtime.host import host_memory, memory_of
from ups.errors import UserError
from ups.fields import Grid, Header, TaskSpec
from ups.models.architectures import ARCHITECTURES
from ups.pipeline.config import RunConfig

KEPT = {"spectral": 13, "pdet_stack": 13, "pdet_unet": 60, "fno": 9}
"""Measured on blocks of each, in two and three dimensions, and rounded down; an architecture that is not here is not
checked."""
WHOLE = 3
"""Of a trajectory's bytes: itself, a prediction of it and a copy, at least."""


def check_memory(config: RunConfig, spec: TaskSpec, grid: Grid, device: torch.device) -> None:
    """Refuse a grid of which a single sample needs more than the device has, and say what would fit."""
    room = memory_of(device)
    for name, trained in {**config.each_stage(), **config.each_compared()}.items():
        architecture = getattr(trained, "architecture", None)
        if architecture not in KEPT:
            continue
        unrolled = max(steps for _, steps in config.training_of(trained.training).rollout)
        each = 4 * KEPT[architecture] * unrolled * getattr(trained, "width", 1) * getattr(trained, "depth", 1)
        patch = spec.patch(grid) if ARCHITECTURES[architecture].joint else (1,) * grid.dimension
        needed = each * math.prod(n // points for n, points in zip(grid.shape, patch, strict=True))
        if needed <= room:
            continue
        remedy = f"lower {name}.width or depth, or use data of fewer points"
        if ARCHITECTURES[architecture].joint:
            whole = [cell for cell in range(2, 9) if all(n % cell == 0 for n in grid.shape)]
            fitting = [cell for cell in whole if each * math.prod(grid.shape) / cell**grid.dimension <= room]
            if fitting:
                spacing = fitting[0] * max(grid.spacing)
                remedy = (
                    f"give tasks.{spec.name}.latent_spacing={spacing:.3g}, a latent for {fitting[0]} points an axis"
                )
        raise UserError(
            f"task {spec.name!r}: one sample of {' x '.join(map(str, grid.shape))} points needs at least "
            f"{needed / 1e9:,.0f} GB to train {name}, the {device.type} has {room / 1e9:,.0f} GB; {remedy}"
        )


def check_trajectories(name: str, headers: Iterable[Header], device: torch.device) -> None:
    """Refuse trajectories of which not even one can be measured or judged: they are read and rolled out whole."""
    room = min(memory_of(device), host_memory())
    for header in headers:
        if (needed := WHOLE * trajectory_bytes(header)) > room:
            points = " x ".join(map(str, header.grid.shape))
            raise UserError(
                f"task {name!r}: one trajectory, {len(header.times)} frames of {points} points, needs at least "
                f"{needed / 1e9:,.0f} GB to be measured and judged, and there are {room / 1e9:,.0f} GB; give data of "
                "fewer frames or points"
            )
