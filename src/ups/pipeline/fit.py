"""From an array to a simulator: a run like any other, whose configuration is written from what the array is taken for.

sim = ups.fit(u, dt=0.05, lengths=[1.0], boundary="periodic", parameters={"nu": nu})
sim.rollout(u[0, 0], steps=40, conditions={"nu": 0.01}).plot()
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ups.config.load import config_hash, made_config
from ups.data.agreement import definition_of
from ups.data.convert import convert
from ups.data.formats.arrays.contents import contents_of, is_zarr
from ups.data.formats.arrays.meaning import Told, shown
from ups.data.formats.arrays.reader import Arrays
from ups.data.formats.arrays.understood import understood
from ups.data.formats.description import to_json
from ups.data.formats.layouts import ARRAYS, NETCDF, ZARR, layout_of
from ups.data.open import open_dataset
from ups.data.prepare.row_ranges import batches, total_bytes
from ups.distributed.launch.local import refuse_launchers
from ups.errors import UserError
from ups.fields import Dataset, Grid
from ups.pipeline.config import RunConfig, completed, run_config
from ups.pipeline.run import finish
from ups.report.verdict import metrics_table
from ups.simulator import Simulator, load
from ups.track.progress import Progress

SHARE = 0.6
"""Of the budget that trains: data, measuring the speed, evaluation and the report have the rest."""
POINTS = 2**14
"""Of all samples of a step on a CPU, at most: in minutes, many steps of few samples get further than few of many."""
SAMPLES = 2, 16
"""Of a step there, at least and at most."""
LATENTS = 2048
"""Of a sample, at most, where a grid has more points: they are taken together in cells."""
LARGEST_CELL = 8
READ = 10**7
"""Bytes of trajectories for a second of the budget, at most: copying more would leave too little to learn from them."""
FEWEST = 10
"""Trajectories that are taken, however large."""
_PARTS = ("train", "validation", "test")


def fit(
    data: Any,
    *,
    dt: float | None = None,
    times: Any = None,
    lengths: Any = None,
    boundary: Any = None,
    parameters: Mapping[str, Any] | Sequence[str] | None = None,
    static: Mapping[str, Any] | Sequence[str] | None = None,
    forcings: Mapping[str, Any] | Sequence[str] | None = None,
    mask: Any = None,
    uneven: Literal["resample", "own"] | None = None,
    channels: Sequence[str] | None = None,
    axes: str | None = None,
    units: Mapping[str, str] | None = None,
    budget: str | float = "2 min",
    compare: str | Sequence[str] = (),
    name: str | None = None,
    seed: int = 0,
    runs: str | Path = "runs",
    overrides: Sequence[str] = (),
    command: str | None = None,
) -> Simulator:
    """Learn to simulate what some arrays show, in a given time; a simulator, whose run is in `sim.run`.

    - data: trajectories (trajectory, time, x, …, channel), also without a channel axis or with axes in another order,
      as a NumPy or torch array; a list of trajectories of different lengths; a mapping of arrays by name; an xarray
      Dataset or DataArray; or a file (.npy, .npz, .pt, .nc, .zarr, .h5, .mat, .csv, or any that ups reads).
    - dt, or times: of the frames, (time) or (trajectory, time).
    - lengths: of the domain, [1.0, 0.5], or [(-1, 1), (0, 2)].
    - boundary: "periodic", or "value", "flux", "robin", "reflecting", "open" on all sides; or one an axis, such as
      ["periodic", "value"]; or {"x": "periodic", "y": ["value", "open"]}.
    - parameters: {"nu": [0.1, …]}, a number for each trajectory. static: {"a": array}, fields that do not change, of
      each trajectory or of all. forcings: {"f": array}, known fields that act on the solution, with the axes of the
      data, or fewer: constant in time (trajectory, x), the same for all (time, x), the same everywhere (time).
    - mask: not zero where a point is part of the domain, (x, y) or (trajectory, x, y); data may be NaN elsewhere.
      What lies among the arrays of `data` is told by its name: forcings=["f"], mask="land".
    - uneven: what to do with times that are: "resample" brings them to equal steps, "own" tells the model of each.
    - channels: their names. axes: a letter an axis (B trajectories, T time, X Y Z space, C channels), such as "BTXC".
    - budget: of time for all of it, "90 s", "2 min", "1 h". compare: "fno" trains an FNO as long as the model.
    - name: the run's; the same call goes on where an interrupted one stopped.

    What is not given is found in the data or assumed; a table says which. Tenths of the trajectories, drawn at random,
    are kept from training: one to choose the best weights by, one for the errors that are printed at the end.
    """
    refuse_launchers()
    seconds = _seconds(budget)
    told = Told(
        axes, dt, times, lengths, boundary, channels, parameters or {}, static or {}, forcings or {}, mask, units or {}
    )
    dataset, stem = _opened(data, told, name)
    if dataset.header.dt is None and uneven is None:
        raise UserError(
            "frames are not equally spaced in time; bring all trajectories to equal steps with uneven='resample' "
            "(--uneven resample), or let the model be told each step's own lead time with uneven='own'"
        )
    compared = [compare] if isinstance(compare, str) else list(compare)
    training = {
        "seconds": SHARE * seconds / (1 + len(compared)),
        "rollout": [[0.0, 1], [0.8, 2]],
        "validate_every": 200,
    }
    if not torch.cuda.is_available():
        training["batch_size"] = _samples(dataset.grid)
    values: dict[str, Any] = {
        "name": name or stem,
        "seed": seed,
        "tasks": {dataset.task: _task(dataset, data) | ({} if uneven is None else {"times": uneven})},
        "training": training,
        "compare": {other: {} for other in compared},
    }
    parts = _parts(dataset, seed, _most(dataset, seconds)) if isinstance(dataset, Arrays) else {}
    key = _key(parts)
    config = _named(values, list(overrides), Path(runs), key, given=name is not None)
    directory = Path(runs) / config.name
    if parts:
        _written(parts, directory / "data", key)
    metrics = finish(config, Path(runs), command or f"ups.fit(..., name={config.name!r})")
    print(metrics_table(metrics))
    print(f"\nreport: {directory / 'report.html'}")
    return load(directory)


def _opened(data: Any, told: Told, name: str | None) -> tuple[Dataset, str]:
    """The data, and what to call them. A file that describes itself is read where it lies."""
    path = Path(data).expanduser() if isinstance(data, str | Path) else None
    stem = _plain_name(path.stem) if path is not None else "fit"
    if path is not None and path.exists() and not _of_arrays(path):
        said = [key for key, value in vars(told).items() if value is not None and value != {}]
        if said:
            raise UserError(f"{path} says itself what is in it; leave out {said[0]}")
        return open_dataset(path), stem
    contents = contents_of(data)
    if contents.header is not None and path is not None:
        return open_dataset(path), stem
    found = understood(contents, told, _plain_name(name or stem))
    count = len(found.lengths)
    if count < 3:
        raise UserError(
            f"{contents.source} has {count} trajector{'y' if count == 1 else 'ies'}; give three at least (to train, to "
            "choose by, to test on), for example pieces of a long one"
        )
    print("\n".join([f"{contents.source} is taken for:", *shown(found)]), flush=True)
    if len(set(found.lengths)) > 1:
        print(f"note: trajectories are cut into pieces of {min(found.lengths)} frames, the shortest one's")
    return Arrays(found, contents.source), stem


def _of_arrays(path: Path) -> bool:
    return (is_zarr(path) or path.is_file()) and layout_of(path) in (ARRAYS, NETCDF, ZARR)


def _task(dataset: Dataset, data: Any) -> dict[str, Any]:
    """As a configuration has it. What is the same in all trajectories is no condition."""
    header = dataset.header
    define = definition_of(header)
    if isinstance(dataset, Arrays):
        offset = dataset.found.offset
        channels = [{"name": n, "transform": "standardised"} if n in offset else n for n in header.channels]
        define["channels"] = channels
    varying = [name for name, value in header.parameters.items() if value is None]
    define = {**define, "parameters": varying} if varying else {k: v for k, v in define.items() if k != "parameters"}
    files: dict[str, Any] = (
        {"train": [str(Path(data).expanduser().resolve())]}
        if not isinstance(dataset, Arrays)
        else {"train": ["train.hdf5"], "validation": "validation.hdf5", "test": {dataset.task: "test.hdf5"}}
    )
    spacing = _latent_spacing(dataset.grid)
    return {"define": define, "files": files} | ({} if spacing is None else {"latent_spacing": spacing})


def _samples(grid: Grid) -> int:
    fewest, most = SAMPLES
    return min(most, max(fewest, POINTS // math.prod(grid.shape)))


def _latent_spacing(grid: Grid) -> float | None:
    """The smallest distance of latent points that leaves few enough of them and divides the grid; None for a latent a
    point.
    """

    def cells(spacing: float) -> list[int]:
        return [min(LARGEST_CELL, max(1, round(spacing / own))) for own in grid.spacing]

    if np.prod(grid.shape) <= LATENTS:
        return None
    fitting = []
    for spacing in sorted({n * own for own in grid.spacing for n in range(2, LARGEST_CELL + 1)}):
        if all(n % cell == 0 for n, cell in zip(grid.shape, cells(spacing), strict=True)):
            fitting.append((spacing, np.prod([n // cell for n, cell in zip(grid.shape, cells(spacing), strict=True)])))
    few = [spacing for spacing, latents in fitting if latents <= LATENTS]
    return few[0] if few else fitting[-1][0] if fitting else None


def _named(values: dict[str, Any], words: list[str], runs: Path, key: str, given: bool) -> RunConfig:
    """The configuration, under the name given, or under the first that is free or is this very run's."""
    first, number = values["name"], 1
    while True:
        config = completed(made_config(values, words, "ups fit"), runs)[0]
        directory = runs / config.name
        same = (directory / "config.yaml").is_file() and config_hash(run_config(directory)) == config_hash(config)
        kept = directory / "data" / "train.hdf5"
        if same and kept.is_file():
            same = open_dataset(kept).header.notes.get("key") == key
        if given or same or not directory.exists() or any(word.startswith("name=") for word in words):
            return config
        number += 1
        values["name"] = f"{first}-{number}"


def _most(dataset: Arrays, seconds: float) -> int:
    """How many trajectories are taken of data that are large for the budget."""
    count = len(dataset.found.lengths)
    most = min(count, max(FEWEST, int(READ * seconds * count / max(1, total_bytes(dataset)))))
    if most < count:
        print(f"note: {most} of the {count} trajectories are taken, drawn at random: a larger budget takes more")
    return most


def _parts(dataset: Arrays, seed: int, most: int) -> dict[str, Arrays]:
    """Split by trajectory at random: what arrays are ordered by must not decide what is tested."""
    order = np.random.default_rng(seed).permutation(len(dataset.found.lengths))[:most].tolist()
    held = max(1, round(len(order) / 10))
    split = sorted(order[2 * held :]), sorted(order[held : 2 * held]), sorted(order[:held])
    return {
        part: Arrays(dataset.found, dataset.source, only=chosen) for part, chosen in zip(_PARTS, split, strict=True)
    }


def _written(parts: Mapping[str, Arrays], folder: Path, key: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, own in parts.items():
        path = folder / f"{part}.hdf5"
        if path.is_file():
            if open_dataset(path).header.notes.get("key") != key:
                raise UserError(f"{path} holds other data; give another name=")
            continue
        own.header = own.found.noted({"key": key}).header_of(own.pieces, own.frames)
        with Progress(f"writing {part}", total=len(own), unit="trajectories") as progress:
            convert(own, path, "well", progress.tick)


def _key(parts: Mapping[str, Arrays]) -> str:
    """Of what the data are taken for, and of all that is taken of them."""
    digest = hashlib.sha256()
    for own in parts.values():
        digest.update(to_json(own.header).encode() + json.dumps([own.pieces, own.frames]).encode())
        for batch in batches(own, own.frames):
            fields = batch.values, batch.times, *batch.static.values(), *batch.forcings.values()
            numbers = *batch.parameters.values(), *(() if batch.mask is None else (batch.mask,))
            for tensor in (*fields, *numbers):
                digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _seconds(budget: str | float) -> float:
    """`"90 s"`, `"2 min"`, `"1 h"`, or seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|seconds?|min|minutes?|h|hours?)?\s*", str(budget))
    if found is None or float(found[1]) <= 0:
        raise UserError(f"budget is {budget!r}; give a time such as '90 s', '2 min' or '1 h'")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[(found[2] or "s")[0]]


def _plain_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "fit"
