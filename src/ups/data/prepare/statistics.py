"""Scales of a dataset, from one pass over it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ups.data.generate.workers import in_workers
from ups.data.prepare.row_ranges import row_ranges
from ups.errors import UserError
from ups.fields import Dataset, TaskSpec
from ups.track.tick import Tick


@dataclass(frozen=True)
class Scale:
    """Mean, standard deviation and root mean square of a field; rms of u(t + s dt) − u(t) for each stride s; its
    smallest and largest value, None where older files do not say them.
    """

    mean: float
    std: float
    rms: float
    differences: tuple[float, ...] = ()
    range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Statistics:
    """A dataset's scales, per channel and static field, under the channel's transform.

    `differences[i]` of a channel belongs to `strides[i]` frames of `dt` (1, 2, 4, … up to half the frames; none if
    steady). Components of one vector share std, rms, differences and a symmetric range: these turn with the axes.
    """

    task: str
    trajectories: int
    dt: float | None
    strides: tuple[int, ...]
    channels: Mapping[str, Scale]
    static: Mapping[str, Scale] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; Python writes floats so that they read back equal."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Statistics:
        def scales(entries: Mapping[str, Any]) -> dict[str, Scale]:
            return {
                name: Scale(e["mean"], e["std"], e["rms"], tuple(e.get("differences", ())), _pair(e.get("range")))
                for name, e in entries.items()
            }

        return cls(
            task=data["task"],
            trajectories=data["trajectories"],
            dt=data["dt"],
            strides=tuple(data["strides"]),
            channels=scales(data["channels"]),
            static=scales(data["static"]),
        )


class _Sums:
    """Per-trajectory moments of one field. Each trajectory is summed alone and the sums are added exactly (fsum), so
    neither chunking nor order can change a digit; deviations are taken from the trajectory's own mean, so a large mean
    does not swallow a small variance.
    """

    def __init__(self, strides: tuple[int, ...] = ()) -> None:
        self.strides = strides
        self.means: list[float] = []
        self.spreads: list[float] = []
        self.squares: list[float] = []
        self.range = (math.inf, -math.inf)
        self.differences: list[list[float]] = [[] for _ in strides]

    def extend(self, other: _Sums) -> None:
        self.means += other.means
        self.spreads += other.spreads
        self.squares += other.squares
        self.range = _around([self, other])
        for mine, theirs in zip(self.differences, other.differences, strict=True):
            mine += theirs

    def add(self, values: np.ndarray) -> None:
        mean = float(values.mean())
        self.means.append(mean)
        self.spreads.append(float(np.square(values - mean).mean()))
        self.squares.append(float(np.square(values).mean()))
        self.range = min(self.range[0], float(values.min())), max(self.range[1], float(values.max()))
        for stride, sums in zip(self.strides, self.differences, strict=True):
            sums.append(float(np.square(values[stride:] - values[:-stride]).mean()))

    def mean(self) -> float:
        return math.fsum(self.means) / len(self.means)

    def variance(self) -> float:
        mean = self.mean()
        between = math.fsum((m - mean) ** 2 for m in self.means)
        return (math.fsum(self.spreads) + between) / len(self.means)

    def mean_square(self) -> float:
        return math.fsum(self.squares) / len(self.squares)

    def difference_squares(self) -> list[float]:
        return [math.fsum(sums) / len(sums) for sums in self.differences]


def statistics(dataset: Dataset, spec: TaskSpec, tick: Tick = lambda done, total: None, workers: int = 1) -> Statistics:
    """One streaming pass in float64, by `workers` processes; `tick` is told how many trajectories are done, and of how
    many. Give it the training split only.
    """
    if len(dataset) == 0:
        raise UserError(f"{spec.name}: no trajectories to take statistics of; the training split is empty")
    if dataset.channels != spec.channel_names:
        raise UserError(f"{spec.name}: data have channels {dataset.channels}, the task says {spec.channel_names}")
    frames = len(dataset.times)
    strides = tuple(2**i for i in range(frames.bit_length()) if 2 * 2**i <= frames)
    channels = [_Sums(strides) for _ in spec.channels]
    static: dict[str, _Sums] = {}
    done = 0
    for rows, found in in_workers(partial(_sums, dataset, spec, strides), list(row_ranges(dataset, frames)), workers):
        for mine, theirs in zip(channels, found[0], strict=True):
            mine.extend(theirs)
        for name, theirs in found[1].items():
            static.setdefault(name, _Sums()).extend(theirs)
        done += len(rows)
        tick(done, len(dataset))
    times = dataset.times
    return Statistics(
        task=spec.name,
        trajectories=len(dataset),
        dt=float((times[-1] - times[0]) / (frames - 1)) if frames > 1 else None,
        strides=strides,
        channels=_shared_scales(spec, channels),
        static={name: _scale([sums], sums) for name, sums in sorted(static.items())},
    )


def _sums(
    dataset: Dataset, spec: TaskSpec, strides: tuple[int, ...], rows: range
) -> tuple[list[_Sums], dict[str, _Sums]]:
    """Those of some trajectories: of each channel, and of each static field."""
    channels = [_Sums(strides) for _ in spec.channels]
    static: dict[str, _Sums] = {}
    batch = dataset.read(rows, slice(None))
    values = batch.values.cpu().numpy()
    for row in range(len(batch)):
        for number, channel in enumerate(spec.channels):
            one = np.ascontiguousarray(values[row, ..., number], dtype=np.float64)
            if channel.transform == "log":
                if not one.min() > 0:
                    raise UserError(
                        f"{spec.name}: channel {channel.name!r} of trajectory {rows[row]} has the value "
                        f"{one.min()}, but its transform is log; use identity or mend the data"
                    )
                one = np.log(one)
            channels[number].add(one)
        for name, fields in batch.static.items():
            static.setdefault(name, _Sums()).add(fields[row].cpu().numpy().astype(np.float64))
    return channels, static


def _shared_scales(spec: TaskSpec, sums: list[_Sums]) -> dict[str, Scale]:
    scales = {}
    for channel, own in zip(spec.channels, sums, strict=True):
        group = [
            other
            for candidate, other in zip(spec.channels, sums, strict=True)
            if candidate == channel or (channel.vector is not None and candidate.vector == channel.vector)
        ]
        scales[channel.name] = _scale(group, own)
    return scales


def _scale(group: list[_Sums], own: _Sums) -> Scale:
    def root(squares: list[float]) -> float:
        return math.sqrt(math.fsum(squares) / len(squares))

    differences = zip(*(member.difference_squares() for member in group), strict=True)
    low, high = _around(group)
    largest = max(-low, high)
    return Scale(
        mean=own.mean(),
        std=root([member.variance() for member in group]),
        rms=root([member.mean_square() for member in group]),
        differences=tuple(root(list(squares)) for squares in differences),
        range=(low, high) if len(group) == 1 else (-largest, largest),
    )


def _around(all_sums: list[_Sums]) -> tuple[float, float]:
    """The range that holds those of all."""
    return min(sums.range[0] for sums in all_sums), max(sums.range[1] for sums in all_sums)


def _pair(numbers: list[float] | None) -> tuple[float, float] | None:
    return None if numbers is None else (numbers[0], numbers[1])
