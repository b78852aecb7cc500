"""A dataset of The Well as a folder: files by split, statistics and a description beside them.

<base>/<name>/data/train/<name>.hdf5        <base>/<name>/stats.yaml
<base>/<name>/data/valid/<name>.hdf5        <base>/<name>/<name>.yaml
<base>/<name>/data/test/<name>.hdf5
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ups.data.formats.well.reader import grouped
from ups.data.formats.well.writer import WellWriter
from ups.data.joined import Joined, Subset
from ups.data.open import open_dataset
from ups.data.prepare.row_ranges import in_steps
from ups.data.prepare.splits import Splits
from ups.errors import UserError
from ups.fields import Dataset, Header, TaskSpec

STATISTICS = ("mean", "std", "rms", "mean_delta", "std_delta", "rms_delta")
_FOLDERS = {"train": "train", "validation": "valid", "test": "test"}
_CHUNK = 16


def open_splits(folder: str | Path, task: str | TaskSpec | None = None) -> Splits:
    """The published splits of a dataset's folder."""
    return Splits(**{split: open_dataset(Path(folder) / "data" / name, task) for split, name in _FOLDERS.items()})


def divided(dataset: Dataset) -> Splits:
    """The Well's division: the first 0.8 of the trajectories to train on, 0.1 to validate, 0.1 to test.

    Joined datasets are divided part by part, so that every parameter value is in every split.
    """
    if isinstance(dataset, Joined):
        parts = [divided(part) for part in dataset.parts]
        return Splits(*(Joined(column) for column in zip(*parts, strict=True)))
    count = len(dataset)
    tenth = max(1, round(count * 0.1))
    if count < 3:
        raise UserError(f"{dataset.task}: {count} trajectories are too few to divide; give at least 3")
    return Splits(
        train=Subset(dataset, range(count - 2 * tenth)),
        validation=Subset(dataset, range(count - 2 * tenth, count - tenth)),
        test=Subset(dataset, range(count - tenth, count)),
    )


def well_stats(header: Header, numbers: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """`stats.yaml` as plain data: {"mean": {field: number, or a list with one a component}, "std": …}.

    `numbers` has the same six keys (mean, std, rms and those of the difference between frames) with one number a
    channel, static field and forcing; what does not vary in time has only the first three.
    """
    fields = grouped(header.channels, header.grid.dimension)
    content: dict[str, dict[str, Any]] = {}
    for key in STATISTICS:
        given = numbers[key]
        content[key] = {
            name: float(given[name]) if parts == (name,) else [float(given[part]) for part in parts]
            for name, parts in fields
            if all(part in given for part in parts)
        }
        others = (*header.static, *header.forcings, "mask")
        content[key] |= {name: float(given[name]) for name in others if name in given}
    return content


def write_tree(
    base: str | Path, name: str, dataset: Dataset, numbers: Mapping[str, Mapping[str, float]] | None = None
) -> Path:
    """Write a dataset as a folder of The Well's, divided 0.8/0.1/0.1; `numbers` are statistics of its training part.

    The folder appears whole or not at all. Gives the folder.
    """
    folder = Path(base) / name
    if folder.exists():
        raise UserError(f"{folder} exists and is not overwritten; remove it or choose another name")
    temporary = folder.with_name(f".{name}.{os.getpid()}.tmp")
    try:
        splits = divided(dataset)
        for split, place in _FOLDERS.items():
            target = temporary / "data" / place
            target.mkdir(parents=True)
            _copy(getattr(splits, split), target / f"{name}.hdf5")
        _write_yaml(temporary / f"{name}.yaml", _summary(dataset.header, len(splits.train)))
        if numbers is not None:
            _write_yaml(temporary / "stats.yaml", well_stats(dataset.header, numbers))
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def _copy(dataset: Dataset, path: Path) -> None:
    with WellWriter(path, dataset.header, len(dataset)) as writer:
        for rows in in_steps(len(dataset), _CHUNK):
            writer.write(dataset.read(rows, slice(None)))


def _write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def _summary(header: Header, count: int) -> dict[str, Any]:
    """What The Well's package says of a split of its own, under the same keys."""
    dimension = header.grid.dimension
    fields: Sequence[tuple[str, tuple[str, ...]]] = grouped(header.channels, dimension)
    kinds = {_kind(side.kind) for pair in header.boundary.sides for side in pair}
    moving = [forcing for forcing, varies in header.forcings.items() if varies]
    fixed = [*header.static, *(forcing for forcing, varies in header.forcings.items() if not varies)]
    fixed += ["mask"] if header.masked else []
    return {
        "dataset_name": header.task,
        "n_spatial_dims": dimension,
        "spatial_resolution": list(header.grid.shape),
        "scalar_names": [],
        "constant_scalar_names": list(header.parameters),
        "field_names": {
            0: [field for field, parts in fields if parts == (field,)] + moving,
            1: [f"{field}_{axis}" for field, parts in fields if parts != (field,) for axis in "xyz"[:dimension]],
            2: [],
        },
        "constant_field_names": {0: fixed, 1: [], 2: []},
        "boundary_condition_types": sorted(kinds),
        "n_files": 1,
        "n_trajectories_per_file": [count],
        "n_steps_per_trajectory": [len(header.times)],
        "grid_type": "cartesian",
    }


def _kind(kind: str) -> str:
    return kind.upper() if kind in ("periodic", "open") else "WALL"
