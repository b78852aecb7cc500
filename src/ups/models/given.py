"""What a network is given beside the state, as the channels that `TaskSpec.given` names."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def given_channels(
    static: Float[Tensor, "B *space S"],
    forcings: Iterable[Float[Tensor, "B ..."]],
    mask: Bool[Tensor, "B *space"] | None,
    step: int = 0,
) -> Float[Tensor, "B *space G"]:
    """Static fields, every forcing at the start and at the end of a step, and the mask (1 inside the domain).

    A forcing with an axis of time has the field before step i at its place i; one without it is the same throughout.
    """
    columns: list[Tensor] = []
    for forcing in forcings:
        timed = forcing.dim() == static.dim()
        columns += [forcing[:, step], forcing[:, step + 1]] if timed else [forcing, forcing]
    columns += [] if mask is None else [mask.to(static.dtype)]
    return torch.cat([static, torch.stack(columns, -1)], -1) if columns else static


def inside(given: Float[Tensor, "B *space G"]) -> Bool[Tensor, "B *space one"]:
    """The mask among such channels: the last of them."""
    return given[..., -1:] > 0.5


def cell_mean(
    values: Float[Tensor, "B *space C"], inside: Bool[Tensor, "B *space one"] | None
) -> Float[Tensor, "B *ones C"]:
    """The mean over space, of the cells inside the domain."""
    space = tuple(range(1, values.dim() - 1))
    if inside is None:
        return values.mean(space, keepdim=True)
    return torch.where(inside, values, 0.0).sum(space, keepdim=True) / inside.sum(space, keepdim=True)
