"""What a check finds in the data of a task: all that reading a sample of them can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from ups.data.inputs import Outline
from ups.data.joined import Subset
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.row_ranges import total_bytes
from ups.data.prepare.statistics import check_changes, statistics
from ups.data.sources import Source, check_source
from ups.errors import UserError
from ups.fields import Dataset
from ups.ops.findings import Finding
from ups.store.fields import store_key
from ups.store.layout import read_index
from ups.store.read import ArrayStore

SAMPLE = 2**27
"""Bytes of each of a task's sets that are read; smaller sets are read whole."""


def check_files(name: str, outline: Outline, source: Source, store: Path, dtype: str) -> Iterator[Finding]:
    """Of data that are there: finite, disjoint, moving, of one kind; their licence; the store of an earlier run."""
    sampled = Source(
        source.spec,
        _sample(source.train),
        _sample(source.validation),
        {view: _sample(test) for view, test in source.tests.items()},
    )
    check_source(sampled, lambda label, done, total: None)
    found = statistics(sampled.train, source.spec)
    check_changes(found)
    sets = {"to train on": (sampled.train, source.train), "to validate on": (sampled.validation, source.validation)}
    sets |= {f"of {view} to test on": (sampled.tests[view], test) for view, test in source.tests.items()}
    counted = ", ".join(f"{len(whole)} {what}" for what, (_, whole) in sets.items())
    yield Finding("green", name, f"{counted}; {_shape(outline)}; finite and without what is in two sets")
    if partly := [f"{len(part)} of {len(whole)} {what}" for what, (part, whole) in sets.items() if part is not whole]:
        yield Finding("amber", name, f"only {', '.join(partly)} were read; the run reads all before it trains")
    if outline.source is not None:  # not made by us
        licence = source.train.header.licence
        says = f"the licence is {licence}" if licence else "the data do not say their licence; ask who published them"
        yield Finding("green" if licence else "amber", name, says)
    yield from _check_store(name, source.train, Normaliser(source.spec, found), sampled, store, dtype)


def check_to_be_made(name: str, outline: Outline) -> Iterator[Finding]:
    """Of data that our solvers are still to make."""
    count = outline.trajectories * len(outline.files)
    yield Finding("green", name, f"{count} trajectories are to be made; {_shape(outline)}")


def _check_store(
    name: str, train: Dataset, normaliser: Normaliser, sampled: Source, store: Path, dtype: str
) -> Iterator[Finding]:
    index = read_index(store)
    if index is None:
        return
    if sampled.train is not train:
        yield Finding("amber", name, f"whether {store} is of these very data is found when the run opens it")
    elif index.key != store_key(train, normaliser, dtype):
        remedy = f"remove {store} and {store}.learned.json, or give another name=..."
        raise UserError(f"{store} was built from other data, statistics or settings; {remedy}")
    try:
        ArrayStore.open(store)
    except UserError as damage:
        yield Finding("amber", name, f"{damage} (the run writes it again)")
    else:
        yield Finding("green", name, f"{store} is whole; statistics are those of the data")


def _sample(dataset: Dataset) -> Dataset:
    """Trajectories spread evenly, all where they are few bytes."""
    each = max(1, total_bytes(dataset) // len(dataset))
    count = max(2, SAMPLE // each)
    if count >= len(dataset):
        return dataset
    return Subset(dataset, torch.linspace(0, len(dataset) - 1, count).round().long().tolist())


def _shape(outline: Outline) -> str:
    header = outline.header
    space = " × ".join(map(str, header.grid.shape))
    return f"{len(header.times)} frame{'' if header.steady else 's'} of {space} points, {', '.join(header.channels)}"
