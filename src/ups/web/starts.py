"""Fields to start from: of the family that the data were made of, and simple ones in a channel's own units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.prepare.statistics import Scale
from ups.errors import UserError
from ups.fields import Grid
from ups.models.saved import TrainedTask
from ups.web.reference import Reference

RANDOM = "random"
Fields = tuple[Float[Tensor, "*space C"], dict[str, Float[Tensor, "*space"]]]


def _wave(x: Sequence[Tensor], draws: Tensor) -> Tensor:
    waves = [torch.sin(2 * math.pi * (place + draw)) for place, draw in zip(x, draws, strict=False)]
    return math.prod(waves[1:], start=waves[0])


def _bump(x: Sequence[Tensor], draws: Tensor) -> Tensor:
    squared = [((place - draw + 0.5) % 1 - 0.5).square() for place, draw in zip(x, draws, strict=False)]
    return 2 * torch.exp(-sum(squared, torch.zeros(())) / 0.01)


def _box(x: Sequence[Tensor], draws: Tensor) -> Tensor:
    inside = [(((place - draw + 0.5) % 1 - 0.5).abs() < 0.2).float() for place, draw in zip(x, draws, strict=False)]
    return 2 * math.prod(inside[1:], start=inside[0]) - 1


def _noise(x: Sequence[Tensor], draws: Tensor) -> Tensor:
    """Sixteen waves of random direction, up to four along an axis."""
    total = torch.zeros(())
    for k, phase in zip(draws[3:].reshape(-1, 4)[:, :3], draws[3:].reshape(-1, 4)[:, 3], strict=True):
        angle = sum((torch.round(8 * each - 4) * place for each, place in zip(k, x, strict=False)), phase)
        total = total + torch.sin(2 * math.pi * angle) / 3
    return total


def _flat(x: Sequence[Tensor], draws: Tensor) -> Tensor:
    return torch.zeros_like(sum(x, torch.zeros(())))


SIMPLE: Mapping[str, Callable[[Sequence[Tensor], Tensor], Tensor]] = {
    "wave": _wave,
    "bump": _bump,
    "box": _box,
    "noise": _noise,
    "flat": _flat,
}
"""In standard deviations about the mean, over the unit cube."""


def names(learned: TrainedTask, reference: Reference | None) -> list[str]:
    first = [RANDOM] if reference is not None else []
    return first + list(SIMPLE)


def start(
    learned: TrainedTask,
    reference: Reference | None,
    name: str,
    seed: int,
    parameters: Mapping[str, float],
    grid: Grid,
) -> Fields:
    """A start and static fields of the name, the same for the same seed."""
    if name not in (known := names(learned, reference)):
        raise UserError(f"there is no start {name!r} of task {learned.spec.name!r}; choose {', '.join(known)}")
    given = [*learned.spec.static, *learned.spec.forcings]
    if name == RANDOM and reference is not None:
        equation = reference.equation(grid.shape[0], parameters)
        made = equation.solve(seed, [0], equation.times[:1])
        first = torch.zeros_like(made.values[0, 0]) if equation.steady else made.values[0, 0]
        return first, {each: made.static[each][0] for each in given}
    draws = torch.rand(67, generator=torch.Generator().manual_seed(seed))
    axes = [(p - low) / (high - low) for p, (low, high) in zip(grid.positions, grid.extent, strict=True)]
    places = torch.meshgrid(*(axis.float() for axis in axes), indexing="ij")
    shape, scales = SIMPLE[name](places, draws), learned.statistics
    static = {each: _in_units(shape, scales.static[each]) for each in given}
    if learned.spec.steady:
        return torch.zeros(*grid.shape, len(learned.spec.channels)), static
    channels = [
        _in_units(
            torch.zeros_like(shape) if number else shape, scales.channels[channel.name], channel.transform == "log"
        )
        for number, channel in enumerate(learned.spec.channels)
    ]
    return torch.stack(channels, -1), static


def _in_units(shape: Float[Tensor, "*space"], scale: Scale, logarithmic: bool = False) -> Float[Tensor, "*space"]:
    """Within what the model was trained on."""
    field = scale.mean + scale.std * shape
    field = field if scale.range is None else field.clamp(*scale.range)
    return field.exp() if logarithmic else field
