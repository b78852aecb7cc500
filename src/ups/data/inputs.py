"""The inputs of all tasks, looked at before work on any: a mistake in the last must not cost the hours of the first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ups.data.agreement import check_frames, check_parameters, check_test, settled, task_of
from ups.data.generate.make import data_keys, equation_header, is_made
from ups.data.joined import Joined, Subset
from ups.data.settings import DataConfig, MakeConfig, TaskConfig
from ups.data.sources import Source, data_root, equations_of, family_seed, open_files
from ups.data.without import header_without
from ups.equations import Equation
from ups.errors import UserError
from ups.fields import Dataset, Header, TaskSpec


@dataclass(frozen=True, eq=False)
class Outline:
    """What is known of a task before any field is read or made. `source` is None where data are still to be made: then
    each file is to hold `trajectories` of `header`, and `missing` of the `files` are not there yet.
    """

    spec: TaskSpec
    header: Header
    trajectories: int
    files: tuple[Path, ...] = ()
    missing: int = 0
    source: Source | None = None

    @property
    def trained(self) -> int:
        """Trajectories to train on, to a few."""
        if self.source is not None:
            return len(self.source.train)
        return len(self.files) * (self.trajectories - 2 * max(1, round(self.trajectories / 10)))


def check_inputs(
    tasks: Mapping[str, TaskConfig],
    data: DataConfig,
    folder: Path,
    *,
    seed: int = 0,
    unroll: int = 1,
    stride: int = 1,
) -> dict[str, Outline]:
    """Refuse what could not be trained on: names, settings, files, and what files say of themselves, which is returned.

    Reads headers alone and writes nothing. `folder` is where made data lie if the configuration names no root, `seed`
    the run's. `unroll` and `stride` are the most steps and the shortest stride that a trajectory must hold. Damage and
    leakage, which only reading finds, are `check_source`'s.
    """
    root = data_root(data, folder)
    files: dict[Path, tuple[str, str]] = {}
    views: dict[str, str] = {}
    found: dict[str, Outline] = {}
    for name, config in tasks.items():
        spec = task_of(name, config)
        if config.make:
            made = _check_made(spec, config.make, root, seed, files)
            headers, tests = [header_without(header, config.drop) for header in made.values()], {name: None}
            headers = headers if config.known is None else [replace(header, static=spec.static) for header in headers]
            first = headers[0]
            missing = sum(not path.exists() for path in made)
            outline = Outline(spec, first, config.make.trajectories, tuple(made), missing)
        else:
            source = open_files(spec, config, root)
            headers, tests = list(_headers(source.train)), source.tests
            first = source.train.header
            outline = Outline(spec, first, len(source.train), source=source)
        check_parameters(name, spec, headers)
        spec = settled(spec, first, bool(config.define), config.times)
        check_frames(spec, first, unroll, stride)
        for view, test in tests.items():
            if views.setdefault(view, name) != name:
                raise UserError(f"tasks {views[view]!r} and {name!r} both have a test set {view!r}; rename one")
            if test is not None:
                check_test(view, spec, test.header)
        found[name] = replace(outline, spec=spec)
    return found


def _check_made(
    spec: TaskSpec, make: MakeConfig, root: Path, seed: int, files: dict[Path, tuple[str, str]]
) -> dict[Path, Header]:
    """The files to be made and their headers; `files` says which data each file is to hold, of all tasks."""
    made: dict[Path, Header] = {}
    for label, equation in equations_of(spec.name, make):
        keys = data_keys(equation, make.trajectories, family_seed(seed, equation))
        path = root / equation.published_name
        other, key = files.setdefault(path, (label, keys["cpu"]))
        if key != keys["cpu"]:
            raise UserError(
                f"{other} and {label} would be made as the same file, {path.name}; make one of them in another run "
                "with its own data.root"
            )
        is_made(path, keys.values())
        made[path] = _header(equation, spec)
    first = next(iter(made.values()))
    if any(not h.grid.same_as(first.grid) or h.times.tolist() != first.times.tolist() for h in made.values()):
        raise UserError(f"task {spec.name!r}: `values` change the grid or the times; put those into settings")
    return made


def _header(equation: Equation, spec: TaskSpec) -> Header:
    """What the equation's file will say. A task of another name than the equation's calls its fields its own way."""
    header = equation_header(equation)
    if equation.name != spec.name and len(equation.channels) == len(spec.channels):
        return replace(header, task=spec.name, channels=spec.channel_names, static=spec.static)
    return header


def _headers(dataset: Dataset) -> Iterator[Header]:
    """Of every part that a dataset is joined of."""
    if isinstance(dataset, Joined):
        for part in dataset.parts:
            yield from _headers(part)
    elif isinstance(dataset, Subset):
        yield from _headers(dataset.dataset)
    else:
        yield dataset.header
