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
    """A dataset's scales, per channel and per static field or forcing, under the channel's transform; of the cells
    inside the domain alone.

    `differences[i]` of a channel belongs to `strides[i]` frames of `dt` (1, 2, 4, … up to half the frames; none if
    steady), or to the lead time `leads[i]` where frames are not equally spaced: that is the mean of those within about
    a factor √2. Components of one vector share std, rms, differences and a symmetric range: these turn with the axes.
    """

    task: str
    trajectories: int
    dt: float | None
    strides: tuple[int, ...]
    channels: Mapping[str, Scale]
    static: Mapping[str, Scale] = field(default_factory=dict)
    leads: tuple[float, ...] = ()

    @property
    def lead_times(self) -> tuple[float, ...]:
        """Those that the differences belong to."""
        return self.leads or tuple(stride * self.dt for stride in self.strides if self.dt is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; Python writes floats so that they read back equal."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Statistics:
        def scales(entries: Mapping[str, Any]) -> dict[str, Scale]:
            return {name: Scale(**{key: _plain(value) for key, value in e.items()}) for name, e in entries.items()}

        scales_of = {kind: scales(data[kind]) for kind in ("channels", "static")}
        times = {"strides": tuple(data["strides"]), "leads": tuple(data.get("leads", ()))}
        return cls(**{**data, **scales_of, **times})


def _plain(value: Any) -> Any:
    """JSON has lists for tuples."""
    return tuple(value) if isinstance(value, list) else value


LEAST_CHANGE = 1e-6
"""Of a field's own size, from one frame to the next: below it single precision has too few digits of the change."""


def check_changes(found: Statistics) -> None:
    """Refuse a transient task in which nothing moves: there is nothing to learn, and errors would be over nothing."""
    if not found.lead_times:
        return
    if not any(scale.differences[0] > LEAST_CHANGE * scale.rms for scale in found.channels.values()):
        largest = max(scale.differences[0] / (scale.rms or 1.0) for scale in found.channels.values())
        size = f"changes by more than {largest:.2g} of its size" if largest else "changes"
        raise UserError(
            f"task {found.task!r}: no channel {size} from one frame to the next in the training data; give data that "
            "move, with frames further apart or without what is constant in them"
        )


_Measures = tuple[float, ...]
"""Of one trajectory's field: smallest and largest value, mean, mean squared deviation, mean square, and that of the
difference at each stride.

Each trajectory is measured alone and the measures are added exactly (fsum), so neither chunking nor order can change a
digit; deviations are taken from the trajectory's own mean, so a large mean does not swallow a small variance.
"""


_Change = tuple[float, ...]
"""A lead time between two frames of a trajectory, and the mean square of every channel's change over it."""


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
    even = frames == 1 or dataset.header.dt is not None
    channels: dict[str, list[_Measures]] = {}
    static: dict[str, list[_Measures]] = {}
    changes: list[_Change] = []
    done = 0
    work = partial(_measured, dataset, spec, strides, even)
    for rows, (*found, changed) in in_workers(work, [*row_ranges(dataset, frames)], workers):
        for all_rows, these in zip((channels, static), found, strict=True):
            for name, measures in these.items():
                all_rows.setdefault(name, []).extend(measures)
        changes += changed
        done += len(rows)
        tick(done, len(dataset))
    times = dataset.times
    leads, squares = _by_lead(changes)
    pooled = {
        name: (*_pooled(measures), *of)
        for (name, measures), of in zip(channels.items(), squares or [()] * len(channels), strict=True)
    }
    vectors = {channel.name: channel.vector for channel in spec.channels}
    return Statistics(
        task=spec.name,
        trajectories=len(dataset),
        dt=float((times[-1] - times[0]) / (frames - 1)) if frames > 1 and even else None,
        strides=strides if even else (),
        channels={
            name: _scale(own, [pooled[n] for n in vectors if n == name or (vectors[n] and vectors[n] == vectors[name])])
            for name, own in pooled.items()
        },
        static={name: _scale(own := _pooled(static[name]), [own]) for name in sorted(static)},
        leads=leads,
    )


def _measured(
    dataset: Dataset, spec: TaskSpec, strides: tuple[int, ...], even: bool, rows: range
) -> tuple[dict[str, list[_Measures]], dict[str, list[_Measures]], list[_Change]]:
    """Those of some trajectories: of each channel, of each static field and forcing, and, where frames are not equally
    spaced, of the changes between frames.
    """
    batch = dataset.read(rows, slice(None))
    values = batch.values.cpu().numpy()
    channels: dict[str, list[_Measures]] = {channel.name: [] for channel in spec.channels}
    changes: list[_Change] = []
    masks = [...] * len(batch) if batch.mask is None else list(batch.mask.numpy())
    for row, inside in enumerate(masks):
        squares = []
        for number, channel in enumerate(spec.channels):
            one = np.ascontiguousarray(values[row][:, inside][..., number], dtype=np.float64)
            if channel.transform == "log":
                if not one.min() > 0:
                    raise UserError(
                        f"{spec.name}: channel {channel.name!r} of trajectory {rows[row]} has the value "
                        f"{one.min()}, but its transform is log; use identity or mend the data"
                    )
                one = np.log(one)
            channels[channel.name].append(_measures(one, strides if even else ()))
            if not even:
                squares.append([float(np.square(d).mean()) for stride in strides for d in one[stride:] - one[:-stride]])
        if not even:
            own = batch.times[row]
            leads = [lead for stride in strides for lead in (own[stride:] - own[:-stride]).tolist()]
            changes += [(lead, *of) for lead, of in zip(leads, zip(*squares, strict=True), strict=True)]
    space = dataset.grid.dimension
    static = {
        name: [
            _measures(field.cpu().numpy().astype(np.float64)[(slice(None),) * (field.dim() - space) + (inside,)])
            for field, inside in zip(fields, masks, strict=True)
        ]
        for name, fields in {**batch.static, **batch.forcings}.items()
    }
    return channels, static, changes


def _by_lead(changes: list[_Change]) -> tuple[tuple[float, ...], list[tuple[float, ...]]]:
    """Lead times, each the mean in logarithms of those within a factor of two, and each channel's mean square change
    over them.
    """
    if not changes:
        return (), []
    shortest = min(lead for lead, *_ in changes)
    alike: dict[int, list[_Change]] = {}
    for change in changes:
        alike.setdefault(round(math.log2(change[0] / shortest)), []).append(change)
    columns = []
    for place in sorted(alike):
        leads, *squares = zip(*alike[place], strict=True)
        lead = math.exp(math.fsum(map(math.log, leads)) / len(leads))
        columns.append((lead, *(math.fsum(own) / len(own) for own in squares)))
    leads, *squares = zip(*columns, strict=True)
    return leads, squares


def _measures(values: np.ndarray, strides: tuple[int, ...] = ()) -> _Measures:
    mean = float(values.mean())
    differences = (values[stride:] - values[:-stride] for stride in strides)
    squares = (float(np.square(part).mean()) for part in (values - mean, values, *differences))
    return float(values.min()), float(values.max()), mean, *squares


def _pooled(measures: list[_Measures]) -> _Measures:
    """Extremes, mean, variance, mean square and those of the differences, of all trajectories."""
    lows, highs, means, spreads, *squares = zip(*measures, strict=True)
    count = len(means)
    mean = math.fsum(means) / count
    between = math.fsum((m - mean) ** 2 for m in means)
    variance = (math.fsum(spreads) + between) / count
    return min(lows), max(highs), mean, variance, *(math.fsum(column) / count for column in squares)


def _scale(own: _Measures, group: list[_Measures]) -> Scale:
    """Its own mean, and the rest shared with the group."""
    lows, highs, _, *columns = zip(*group, strict=True)
    std, rms, *differences = (math.sqrt(math.fsum(squares) / len(squares)) for squares in columns)
    largest = max(*highs, *(-low for low in lows))
    span = (own[0], own[1]) if len(group) == 1 else (-largest, largest)
    return Scale(own[2], std, rms, tuple(differences), span)
