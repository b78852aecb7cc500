"""What of a new system's data a trained model has not seen the like of: said, not refused, since every system is scaled
by its own statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ups.fields import Dataset, TaskSpec
from ups.metrics.layout import mean
from ups.models.saved import TrainedTask

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
    for name in spec.parameters:
        seen = [end for task in known for end in task.ranges.get(name, ())]
        value = header.parameters.get(name)
        if value is not None and seen and (range_ := _beyond([value], seen)) is not None:
            yield f"{name} is {value:g}, where the model was trained on {range_}; are these other units?"
    yield from _magnitudes(known, spec, data)


def _magnitudes(known: Sequence[TrainedTask], spec: TaskSpec, data: Dataset) -> Iterator[str]:
    batch = data.read(range(min(LOOKED_AT, len(data))), slice(0, None, max(1, len(data.times) // LOOKED_AT)))
    values = batch.values.double().square()
    sizes = mean(values, tuple(range(values.dim() - 1)), batch.mask).sqrt().tolist()
    for place, channel in enumerate(spec.channels):
        alike = [
            task.statistics.channels[channel.name].rms
            for task in known
            if channel in task.spec.channels and channel.transform == "identity"
        ]
        rms = sizes[place]
        if alike and rms > 0 and (range_ := _beyond([rms], alike, OTHER_UNITS)) is not None:
            yield (
                f"{channel.name} has an rms of {rms:.3g}, where the model was trained on {range_}: it is scaled by its "
                "own, so other units do no harm as long as all files have the same"
            )


def _beyond(values: Iterable[float], known: Iterable[float], factor: float = FAR) -> str | None:
    """The range of what is known, in words, if a value is far outside of it."""
    sizes = [abs(value) for value in known if value]
    if not sizes:
        return None
    low, high = min(sizes), max(sizes)
    if all(low / factor <= abs(value) <= high * factor for value in values if value):
        return None
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
