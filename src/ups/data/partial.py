"""Data whose static fields are known at some of the points only: what is left is a distribution of solutions."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations.uniforms import uniforms
from ups.errors import UserError
from ups.fields import Batch, Dataset, TaskSpec

KNOWN = "known"
"""The field that is 1 where the static fields are known, 0 elsewhere."""


def known_name(field: str) -> str:
    """Of a static field where it is known, zero elsewhere."""
    return f"{field}_{KNOWN}"


class Partial(Dataset):
    """A dataset whose static fields are told at a share of the points, drawn for every trajectory from these fields
    themselves: copies of one have the same, so that they are still found in train and test. Batches keep the whole
    fields too, of which the header does not speak: no model is given them, but metrics and solvers need the truth.
    """

    def __init__(self, dataset: Dataset, share: float) -> None:
        self.dataset, self.share = dataset, share
        self.header = replace(dataset.header, static=_told(dataset.task, dataset.header.static))

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        batch = self.dataset.read(indices, frames)
        fields = {name: batch.static[name] for name in self.dataset.header.static}
        known = points_known(torch.stack(list(fields.values()), -1), self.share)
        told = {known_name(name): torch.where(known, field, 0.0) for name, field in fields.items()}
        return replace(batch, static={**batch.static, **told, KNOWN: known.to(batch.values.dtype)})


def points_known(fields: Float[Tensor, "B *space S"], share: float) -> Bool[Tensor, "B *space"]:
    """So many points of each sample, at least one; a function of the fields alone."""
    own = [zlib.crc32(sample.float().contiguous().numpy().tobytes()) for sample in fields]
    points = math.prod(fields.shape[1:-1])
    first = uniforms(0, own, points).argsort(1).argsort(1) < max(1, round(share * points))
    return first.unflatten(1, fields.shape[1:-1])


def partial_spec(spec: TaskSpec) -> TaskSpec:
    """The task that is told its static fields in part."""
    return replace(spec, static=_told(spec.name, spec.static))


def _told(task: str, static: tuple[str, ...]) -> tuple[str, ...]:
    if not static:
        raise UserError(f"task {task!r} has no static field that could be known in part; leave `known` out")
    return (*map(known_name, static), KNOWN)
