"""From a task's configuration to its datasets: made by our solvers or opened from files, split, and proved disjoint."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ups.data.agreement import check_fields, settled, task_of, untold
from ups.data.generate.make import generate
from ups.data.generate.workers import all_cores
from ups.data.joined import Joined, Subset
from ups.data.open import open_dataset
from ups.data.partial import Partial
from ups.data.prepare.row_ranges import batches
from ups.data.prepare.splits import Splits, check_disjoint, split
from ups.data.resampled import resampled
from ups.data.sampler import mix
from ups.data.settings import DataConfig, MakeConfig, TaskConfig
from ups.data.views import pdebench_view
from ups.data.without import Without
from ups.equations import Equation
from ups.equations.named import named_equation
from ups.errors import UserError
from ups.fields import Dataset, TaskSpec
from ups.track.tick import Report, Tick

_EXTENT = ("points", "frames", "duration")
"""Settings that say how much of a problem is stored, not which problem it is."""


@dataclass(frozen=True)
class Source:
    """A task's data. `tests` are named views of it (`darcy`, or `darcy@16` and `darcy@32`); `solvers` are the equations
    that made each part of the test set, where they are ours.
    """

    spec: TaskSpec
    train: Dataset
    validation: Dataset
    tests: Mapping[str, Dataset]
    solvers: tuple[tuple[Equation, Dataset], ...] = ()


def open_source(
    name: str, config: TaskConfig, data: DataConfig, folder: Path, seed: int, report: Report, device: str = "cpu"
) -> Source:
    """Make or open the data of one task. `folder` is where made data lie if the configuration names no root.

    `seed` is the run's: each file's own follows from it and from what is solved (`family_seed`). What is not there yet
    is made on `device` ("cpu", "cuda", "cuda:1"); what is there serves, whichever device made it.
    """
    root, spec = data_root(data, folder), task_of(name, config)
    made = config.make is not None
    source = _made(spec, config, data, root, seed, report, device) if made else open_files(spec, config, root)
    return replace(source, spec=settled(source.spec, source.train.header, bool(config.define), config.times))


def data_root(data: DataConfig, folder: Path) -> Path:
    return Path(data.root).expanduser() if data.root else folder


def equations_of(name: str, make: MakeConfig) -> list[tuple[str, Equation]]:
    """The equation at every combination of values, with what the combination is called."""
    found = []
    for values in itertools.product(*make.values.values()):
        given = dict(zip(make.values, values, strict=True))
        label = ", ".join([name, *(f"{key}={value:g}" for key, value in given.items())])
        found.append((label, named_equation(make.equation, {**make.settings, **given})))
    return found


def with_equation(spec: TaskSpec, make: MakeConfig) -> TaskSpec:
    """The task with the settings of the equation that makes its data, the first's, and those that are `varied`."""
    equation = equations_of(spec.name, make)[0][1]
    source: dict[str, Any] = {"equation": equation.name, "settings": asdict(equation)}  # pyright: ignore[reportArgumentType]
    if varied := [setting for setting, values in make.values.items() if len(values) > 1]:
        source["varied"] = varied
    return replace(spec, source=source)


def family_seed(seed: int, equation: Equation) -> int:
    """The seed of an equation's file: the same in every run of that seed, whatever else the run makes.

    Each file has its own family of starts, since the same start under two parameter values teaches less. Points, frames
    and duration do not count: on another grid, or for another time, the same starts are solved.
    """
    told = {k: v if isinstance(v, str) else float(v) for k, v in vars(equation).items() if k not in _EXTENT}
    settings = json.dumps(told, sort_keys=True)
    return mix(seed, zlib.crc32(equation.name.encode()), zlib.crc32(settings.encode())) % 2**31


def check_source(source: Source, report: Report) -> None:
    """Read everything once, to find damage and leakage before they cost anything; one rank doing so is enough.

    Readers refuse NaN and damage when they read. Training fields are not read here: statistics will.
    """
    spec = source.spec
    tick = partial(report, spec.name)
    check_disjoint(source.train, source.validation, source.tests, tick)
    for view, test in source.tests.items():
        _check_conditions(view, spec, test, partial(report, view))
        _read_through(test, partial(report, view))
    _read_through(source.validation, tick)
    _check_conditions(spec.name, spec, source.train, tick)


def _made(
    spec: TaskSpec, config: TaskConfig, data: DataConfig, root: Path, seed: int, report: Report, device: str
) -> Source:
    name, make = spec.name, config.make
    assert make is not None
    workers = data.workers or all_cores()
    equations, parts = [], []
    for label, equation in equations_of(name, make):
        path = root / equation.published_name
        path.parent.mkdir(parents=True, exist_ok=True)
        generate(
            equation,
            make.trajectories,
            family_seed(seed, equation),
            path,
            workers=workers,
            progress=lambda done, total, label=label: report(label, done, total),
            device=device,
        )
        equations.append(equation)
        parts.append(_as_wanted(open_dataset(path, name), config))
    splits = [split(part) for part in parts]
    joined = Splits(*(Joined(column) for column in zip(*splits, strict=True)))
    solvers = tuple((equation, part.test) for equation, part in zip(equations, splits, strict=True))
    return Source(with_equation(spec, make), joined.train, joined.validation, {name: joined.test}, solvers)


def open_files(spec: TaskSpec, config: TaskConfig, root: Path) -> Source:
    """The files of a task, split; nothing of their fields is read."""
    name, files = spec.name, config.files
    assert files is not None
    options = {"convention": files.convention} if files.convention else {}
    wanted = spec if config.define else name  # nothing registers what a configuration defines: readers are given it

    def opened(file: str) -> Dataset:
        path = Path(file).expanduser()
        dataset = open_dataset(path if path.is_absolute() else root / path, wanted, **options)
        return _as_wanted(pdebench_view(dataset) if files.view else dataset, config)

    train: Dataset = Joined([opened(file) for file in files.train])
    if config.times == "resample":
        train = resampled(train)

    def apart(file: str) -> Dataset:
        """Validation or test data, in steps as long as those of the training data."""
        return resampled(opened(file), train.header.dt) if config.times == "resample" else opened(file)

    tests = {view: apart(file) for view, file in files.test.items()}
    if files.validation is None:
        splits = split(train)
        return _few(Source(spec, splits.train, splits.validation, {name: splits.test}), files.trajectories)
    if isinstance(files.validation, str):
        return _few(Source(spec, train, apart(files.validation), tests), files.trajectories)
    count = len(train)
    if files.validation >= count:
        raise UserError(f"task {name!r}: {files.validation} validation trajectories of {count} leave none to train on")
    # The held-out trajectories are spread evenly, so that no stretch of the file is missing from training.
    held = set(_spread(count, files.validation))
    source = Source(
        spec,
        Subset(train, [i for i in range(count) if i not in held]),
        Subset(train, sorted(held)),
        tests,
    )
    return _few(source, files.trajectories)


def _as_wanted(dataset: Dataset, config: TaskConfig) -> Dataset:
    dataset = Without(dataset, config.drop) if config.drop else dataset
    return dataset if config.known is None else Partial(dataset, config.known)


def _few(source: Source, trajectories: int | None) -> Source:
    """The source with so many to train on, and in proportion to choose by."""
    if trajectories is None:
        return source
    there, held = len(source.train), len(source.validation)
    if trajectories > there:
        raise UserError(
            f"task {source.spec.name!r}: {trajectories} trajectories are asked for, but its files hold {there} to "
            "train on; ask for fewer, or give more files"
        )
    chosen = max(1, round(held * trajectories / there))
    return replace(
        source,
        train=Subset(source.train, _spread(there, trajectories)),
        validation=Subset(source.validation, _spread(held, chosen)),
    )


def _spread(count: int, chosen: int) -> list[int]:
    return torch.linspace(0, count - 1, chosen).round().long().tolist()


def _read_through(dataset: Dataset, tick: Tick | None = None) -> None:
    for _ in batches(dataset, len(dataset.times), tick):
        pass


def _check_conditions(name: str, spec: TaskSpec, dataset: Dataset, tick: Tick | None = None) -> None:
    """A parameter the model is not told of must not vary: it could not know which equation it solves."""
    check_fields(name, spec, dataset.header)
    known = dataset.header.parameters
    unsure = [parameter for parameter, value in known.items() if value is None and parameter not in spec.parameters]
    first: dict[str, float] = {}
    for batch in batches(dataset, 1, tick) if unsure else ():
        for parameter in unsure:
            values = batch.parameters[parameter]
            if not bool((values == first.setdefault(parameter, float(values[0]))).all()):
                raise untold(name, spec, parameter)
