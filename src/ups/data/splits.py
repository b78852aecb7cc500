"""Train, validation and test sets by trajectory, and the proof that they share none."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from torch import Tensor

from ups.data.joined import Joined, Subset
from ups.errors import UserError
from ups.fields import Batch, Dataset

_CHUNK = 64


class Splits(NamedTuple):
    train: Dataset
    validation: Dataset
    test: Dataset


def split(dataset: Dataset, test: float = 0.1, validation: float = 0.1) -> Splits:
    """The end of the file that publications test on (`Header.test_at`) is the test set; ours for validation is beside.

    PDEBench tests on the first tenth of tensor and CFD files and on the last of grouped ones. A joined dataset is split
    part by part, so every parameter value is in every split.
    """
    if isinstance(dataset, Joined):
        parts = [split(part, test, validation) for part in dataset.parts]
        return Splits(*(Joined(column) for column in zip(*parts, strict=True)))
    count = len(dataset)
    if not (test > 0 and validation > 0 and test + validation < 1):
        raise UserError(f"splits: test {test} and validation {validation} must be positive and leave some to train on")
    first, second = max(1, round(count * test)), max(1, round(count * validation))
    if first + second >= count:
        raise UserError(f"{dataset.task}: {count} trajectories are too few to split; make at least 3")
    order = range(count) if dataset.header.test_at == "first" else range(count - 1, -1, -1)
    return Splits(
        train=Subset(dataset, sorted(order[first + second :])),
        validation=Subset(dataset, sorted(order[first : first + second])),
        test=Subset(dataset, sorted(order[:first])),
    )


def content_hashes(dataset: Dataset) -> list[str]:
    """A hash of what each trajectory is made from: initial frame, static fields, forcings, parameters.

    A steady problem's first frame is its solution. Precision does not count: float64 data hash as their float32 copy.
    """
    hashes: list[str] = []
    for start in range(0, len(dataset), _CHUNK):
        batch = dataset.read(range(start, min(start + _CHUNK, len(dataset))), slice(0, 1))
        hashes.extend(content_hash(batch, row) for row in range(len(batch)))
    return hashes


def content_hash(batch: Batch, row: int) -> str:
    """The same of one trajectory of a batch whose frames begin at the first."""
    digest = hashlib.sha256(_single(batch.values[row, :1]))
    for name in sorted(batch.static):
        digest.update(name.encode() + _single(batch.static[name][row]))
    for name in sorted(batch.forcings):
        forcing = batch.forcings[name][row]
        first = forcing[:1] if forcing.dim() == batch.values.dim() - 2 else forcing  # of one that depends on time
        digest.update(name.encode() + _single(first))
    for name in sorted(batch.parameters):
        digest.update(name.encode() + _single(batch.parameters[name][row]))
    return digest.hexdigest()


def _single(values: Tensor) -> bytes:
    """In float32 and without −0, so that a trajectory and its copy in another precision are found to be the same."""
    return (values.float() + 0.0).contiguous().numpy().tobytes()


def check_disjoint(splits: Splits) -> None:
    """Refuse splits that share a trajectory, whatever files they came from."""
    seen: dict[str, tuple[str, int]] = {}
    for name, dataset in splits._asdict().items():
        own: dict[str, tuple[str, int]] = {}
        for index, content in enumerate(content_hashes(dataset)):
            own.setdefault(content, (name, index))
            if content in seen:
                other, other_index = seen[content]
                raise UserError(
                    f"{dataset.task}: {name} trajectory {index} is the same as {other} trajectory {other_index}; "
                    "split so that no trajectory is in two sets"
                )
        seen.update(own)
