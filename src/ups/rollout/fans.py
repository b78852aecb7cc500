"""Pictures of several members: their mean, their spread, and what they span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from ups.fields import Grid
from ups.rollout.pictures import (
    COLOURS,
    FRAMES,
    Picture,
    film_strip,
    limits,
    name_times,
    panels,
    picked,
    space_time,
    styled,
    tallness,
    when,
)

if TYPE_CHECKING:
    from ups.rollout.result import Rollout

FAN = (0.05, 0.25, 0.75, 0.95)
LINES = 3
"""Members, or points, that have lines of their own."""


@styled
def draw_members(rollout: Rollout, channels: Sequence[int], start: int) -> Picture:
    """In one dimension mean and spread over (x, t), and members at the last time; in more, both as frames; at points,
    members over time.
    """
    members = rollout.samples.unflatten(0, (rollout.count, -1))[:, start].double().numpy()  # (M, T, *points, C)
    mean, spread = members.mean(0), members.std(0, ddof=1)
    if not isinstance(rollout.where, Grid):
        count = min(LINES, members.shape[2])
        figure, rows = panels(len(channels), count, 3.6, 2.7)
        for row, channel in zip(rows, channels, strict=True):
            for point, axes in enumerate(row):
                _fan(axes, rollout.times.numpy(), members[:, :, point, channel])
                axes.set(xlabel=rollout.named("time"), ylabel=rollout.named(rollout.channels[channel]))
                axes.set_title(f"point {point}")
        return Picture(figure)
    if rollout.dimension == 1:
        figure, rows = panels(len(channels), 3, 3.6, 2.7)
        for row, channel in zip(rows, channels, strict=True):
            for axes, field, name in zip(row, (mean, spread), ("mean of members", "their spread"), strict=False):
                space_time(figure, axes, rollout, field[..., channel], channel, limits(field[..., channel]))
                axes.set_title(name)
            _fan(row[-1], rollout.where.positions[0].numpy(), members[:, -1, :, channel])
            row[-1].set(xlabel=rollout.named("x"), ylabel=rollout.named(rollout.channels[channel]))
            row[-1].set_title(f"members at {when(rollout, len(rollout.times) - 1)}")
        return Picture(figure)
    frames = picked(len(rollout.times), FRAMES)
    figure, rows = panels(2 * len(channels), len(frames), 2.1, 2.1 * tallness(rollout))
    for number, channel in enumerate(channels):
        for row, field, name in zip(rows[2 * number :], (mean, spread), ("mean", "spread"), strict=False):
            film_strip(figure, row, rollout, field[frames][..., channel], channel, limits(field[..., channel]))
            row[0].set_ylabel(f"{name}\n{row[0].get_ylabel()}")
    name_times(rows[0], rollout, frames)
    return Picture(figure)


def _fan(axes: Axes, along: Float[np.ndarray, " n"], members: Float[np.ndarray, "M n"]) -> None:
    """What half and nine tenths of them span, their median, and a few."""
    low, quarter, most, high = np.quantile(members, FAN, axis=0)
    for bottom, top, label in ((low, high, "90 %"), (quarter, most, "50 %")):
        axes.fill_between(along, bottom, top, color=COLOURS[1], alpha=0.2, linewidth=0, label=label)
    axes.plot(along, members[:LINES].T, color=COLOURS[2], linewidth=0.6)
    axes.plot(along, np.median(members, 0), color=COLOURS[1], label="median")
    axes.legend(fontsize=7.5, frameon=False)
