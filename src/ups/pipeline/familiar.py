"""What of a new system's data a trained model has not seen the like of: said, not refused, since every system is scaled
by its own statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ups.fields import Dataset, TaskSpec
from ups.metrics.layout import mean
from ups.models.saved import TrainedTask
from ups.training.data import parameter_ranges

FAR = 10.0
"""A number so many times beyond those of training, or below them, is worth a sentence."""
OTHER_UNITS = 100.0
"""A field so many times as large as its namesakes is probably in other units."""
LOOKED_AT = 4
"""Trajectories that are read to see how large fields are."""


def unfamiliar(known: Sequence[TrainedTask], spec: TaskSpec, data: Dataset) -> Iterator[str]:
    """A sentence for each time step, length or parameter far from all known, and for fields of other magnitudes."""
    header = data.header
    leads = [lead for task in known for lead in task.leads]
    if not header.steady and leads:
        step = float(header.times[1] - header.times[0])
        if (range_ := _beyond([step], leads)) is not None:
            yield (
                f"frames are {step:g} apart, where the model was trained on steps of {range_}: changes are scaled by "
                "their own size, but give it more data or steps than usual"
            )
    lengths = [length for task in known for length in task.grid.lengths]
    if (range_ := _beyond(header.grid.lengths, lengths)) is not None:
        longest = max(header.grid.lengths)
        yield f"the domain is {longest:g} long, where the model was trained on {range_}; are these other units?"
    for name, ends in parameter_ranges(data, spec.parameters).items():
        seen = [end for task in known for end in task.ranges.get(name, ())]
        if (range_ := _beyond(ends, seen)) is not None:
            yield f"{name} is {_span(*ends)}, where the model was trained on {range_}; are these other units?"
    yield from _magnitudes(known, spec, data)


def _magnitudes(known: Sequence[TrainedTask], spec: TaskSpec, data: Dataset) -> Iterator[str]:
    batch = data.read(range(min(LOOKED_AT, len(data))), slice(None, None, max(1, len(data.times) // LOOKED_AT)))
    for place, channel in enumerate(spec.channels):
        alike = [task for task in known if channel.name in task.spec.channel_names]
        values, log = batch.values[..., place : place + 1].double(), channel.transform == "log"
        measured = mean(values.log() if log else values.square(), tuple(range(values.dim() - 1)), batch.mask)
        size = float(measured.exp() if log else measured.sqrt())
        if size > 0 and (range_ := _beyond([size], [_size(task, channel.name) for task in alike], OTHER_UNITS)):
            yield (
                f"{channel.name} has {'a geometric mean' if log else 'an rms'} of {size:.3g}, where the model was "
                f"trained on {range_}: it is scaled by its own, so other units do no harm as long as all files have "
                "the same"
            )


def _size(task: TrainedTask, channel: str) -> float:
    """Of a channel learned in logarithms the geometric mean."""
    scale, transform = task.statistics.channels[channel], task.spec.channels[task.spec.channel_names.index(channel)]
    return math.exp(scale.mean) if transform.transform == "log" else scale.rms


def _beyond(values: Iterable[float], known: Iterable[float], factor: float = FAR) -> str | None:
    """The range of what is known, in words, if a value is far outside of it."""
    sizes = [abs(value) for value in known if value]
    if not sizes:
        return None
    low, high = min(sizes), max(sizes)
    if all(low / factor <= abs(value) <= high * factor for value in values if value):
        return None
    return _span(low, high)


def _span(low: float, high: float) -> str:
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
