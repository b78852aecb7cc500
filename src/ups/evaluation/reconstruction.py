"""What a codec loses of the test set's fields, beside what as many principal components of the training fields lose."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.sources import Source
from ups.fields import Dataset
from ups.metrics import BANDS, nrmse, spectral_error
from ups.metrics.layout import Fields
from ups.models.codec import Codec
from ups.models.saved import TrainedTask
from ups.track.jsonl import plain

TRAINED, TESTED, FRAMES = 256, 64, 4096
"""So many trajectories, or as many as have so many frames, and at most these, are looked at of each set."""
BYTES = 1 << 29
"""Of the frames of a set in double precision."""


@torch.no_grad()
def reconstruction(codec: Codec, learned: TrainedTask, source: Source, view: str) -> dict[str, Any]:
    """Of a view on the grid that the codec was trained on: {"numbers", "of", "nrmse": {"codec", "pca"}, "spectral_low":
    …}, the numbers of a latent and of a field, and errors in physical units, means over frames.
    """
    task, normaliser = learned.spec.name, learned.normaliser
    truth = _frames(source.tests[view], TESTED)
    fields = normaliser.normalise(truth).flatten(0, 1)
    like = next(codec.parameters())
    decoded = torch.cat([codec.decode(task, codec.encode(task, part.to(like))).cpu() for part in fields.split(1024)])
    numbers = codec.numbers[task] * torch.Size(codec.frames[task].latent_shape).numel()
    known = normaliser.normalise(_frames(source.train, TRAINED)).flatten(0, 1)
    found = {"codec": decoded, "pca": principal(known.to(like.device), fields.to(like.device), numbers).cpu()}
    physical = {
        who: normaliser.physical(values.to(truth)).unflatten(0, truth.shape[:2]) for who, values in found.items()
    }
    return {"numbers": numbers, "of": fields[0].numel()} | _errors(physical, truth)


def _frames(dataset: Dataset, trajectories: int) -> Fields:
    """Frames of some trajectories, of more where these have few, both evenly over all there are; no others are read."""
    one = 8 * len(dataset.channels) * math.prod(dataset.grid.shape)
    most = max(1, min(FRAMES, BYTES // one))
    count = min(len(dataset), max(trajectories, most // len(dataset.times)), most)
    stride = -(-len(dataset.times) // (most // count))
    places = torch.linspace(0, len(dataset) - 1, count).round().long().tolist()
    return dataset.read(places, slice(0, None, stride)).values


def principal(
    known: Float[Tensor, "K *space C"], fields: Float[Tensor, "N *space C"], numbers: int
) -> Float[Tensor, "N *space C"]:
    """The fields in the span of the mean and of so many principal components of the known ones, or all there are."""
    mean = known.double().mean(0)
    own = (known - mean).flatten(1)
    wide = own.shape[1] > own.shape[0]
    vectors = torch.linalg.eigh(own @ own.T if wide else own.T @ own).eigenvectors[:, -numbers:]
    basis = torch.linalg.qr(own.T @ vectors).Q if wide else vectors
    inside = (fields - mean).flatten(1) @ basis @ basis.T
    return (inside.view_as(fields) + mean).to(fields)


def _errors(found: dict[str, Fields], truth: Fields) -> dict[str, Any]:
    bands = {f"spectral_{band}": i for i, (band, _, _) in enumerate(BANDS)}
    entries = {"nrmse": {who: plain(nrmse(values, truth).mean()) for who, values in found.items()}}
    for name, i in bands.items():
        entries[name] = {who: plain(spectral_error(values, truth)[..., i].mean()) for who, values in found.items()}
    return entries
