"""Train, validation and test sets by trajectory, and the proof that they share none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from ups.data.joined import Joined, Subset
from ups.data.prepare.row_ranges import batches
from ups.errors import UserError
from ups.fields import Batch, Dataset
from ups.track.tick import Tick


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


def content_hashes(dataset: Dataset, tick: Tick | None = None) -> list[str]:
    """A hash of what each trajectory is made from: initial frame, static fields, forcings, parameters, mask.

    A steady problem's first frame is its solution. Precision does not count: float64 data hash as their float32 copy.
    `tick` is told how many trajectories are done, and of how many.
    """
    return [content_hash(batch, row) for batch, row in _rows(dataset, tick)]


def content_hash(batch: Batch, row: int) -> str:
    """The same of one trajectory of a batch whose frames begin at the first."""
    digest = hashlib.sha256(_single(batch.values[row, :1]))
    for name in sorted(batch.static):
        digest.update(name.encode() + _single(batch.static[name][row]))
    for name in sorted(batch.forcings):
        digest.update(name.encode() + _single(_first(batch, name, row)))
    for name in sorted(batch.parameters):
        digest.update(name.encode() + _single(batch.parameters[name][row]))
    if batch.mask is not None:
        digest.update(b"mask" + _single(batch.mask[row]))
    return digest.hexdigest()


def _single(values: Tensor) -> bytes:
    """In float32 and without −0, so that a trajectory and its copy in another precision are found to be the same."""
    return (values.float() + 0.0).contiguous().numpy().tobytes()


def check_disjoint(train: Dataset, validation: Dataset, tests: Mapping[str, Dataset], tick: Tick | None = None) -> None:
    """Refuse sets that share a trajectory, whatever files they came from; only test sets may, which are views, by name.

    Two are the same if their first frames are and no static field, forcing or parameter that both name differs: a copy
    may have lost conditions on its way through a layout that has no place for them. `tick` is told how many
    trajectories of a set are done, and of how many.
    """

    def read(data: Dataset) -> list[dict[str, bytes]]:
        return [_starts(batch, row) for batch, row in _rows(data, tick)]

    trained, validated = read(train), read(validation)
    _check_apart(train.task, ("validation", validated), ("train", trained))
    for view, data in tests.items():
        tested = ("test" if len(tests) == 1 else f"test view {view}", read(data))
        _check_apart(train.task, tested, ("train", trained))
        _check_apart(train.task, tested, ("validation", validated))


def _check_apart(task: str, *named: tuple[str, list[dict[str, bytes]]]) -> None:
    (one, first), (other, second) = named
    shared = sorted(set(first[0]) & set(second[0])) if first and second else []
    seen: dict[tuple[bytes, ...], int] = {}
    for index, start in enumerate(second):
        seen.setdefault(tuple(start[name] for name in shared), index)
    if len(seen) == 1 < len(second) and all(tuple(start[name] for name in shared) in seen for start in first):
        raise UserError(
            f"{task}: all trajectories of {one} and {other} data are equal; give trajectories that differ in their "
            "starts or conditions"
        )
    for index, start in enumerate(first):
        same = seen.get(tuple(start[name] for name in shared))
        if same is not None:
            raise UserError(
                f"{task}: {one} trajectory {index} is the same as {other} trajectory {same}; "
                "split so that no trajectory is in two sets"
            )


def _rows(dataset: Dataset, tick: Tick | None) -> Iterator[tuple[Batch, int]]:
    """Every trajectory's first frame, as a row of a batch."""
    for batch in batches(dataset, 1, tick):
        yield from ((batch, row) for row in range(len(batch)))


def _starts(batch: Batch, row: int) -> dict[str, bytes]:
    """A hash of the first frame, under the empty name, and of each condition under its own, parameters apart."""
    fields = {"": batch.values[row, :1], **{name: values[row] for name, values in batch.static.items()}}
    fields |= {name: _first(batch, name, row) for name in batch.forcings}
    fields |= {} if batch.mask is None else {"mask =": batch.mask[row]}
    fields |= {f"{name} =": values[row] for name, values in batch.parameters.items()}
    return {name: hashlib.sha256(_single(field)).digest() for name, field in fields.items()}


def _first(batch: Batch, name: str, row: int) -> Tensor:
    """A forcing, or the first frame of one that depends on time."""
    forcing = batch.forcings[name][row]
    return forcing[:1] if forcing.dim() == batch.values.dim() - 2 else forcing
