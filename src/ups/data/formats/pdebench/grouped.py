"""PDEBench grouped files: the published HDF5 layout of diffusion-sorption, diffusion-reaction and shallow water.

    0000/data (T, X[, Y[, Z]], C)    0000/grid/x (X,)[, 0000/grid/y[, 0000/grid/z]]    0000/grid/t (T,)

and so on, a group a trajectory, named by its number; the attribute `config` of a group is the YAML of the run that made
it. Publications test on the last tenth.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import torch
import yaml
from jaxtyping import Int

from ups.data.formats.hdf5 import (
    array,
    centred_axis,
    coordinate,
    even_times,
    open_file,
    read_part,
    rounded,
    stored_type,
)
from ups.data.formats.pdebench import published
from ups.data.formats.pdebench.file import PDEBenchFile, check_axes
from ups.data.formats.reading import batch_from
from ups.data.formats.writing import HDF5Writer
from ups.errors import UserError
from ups.fields import AXES, Batch, Grid, Header, TaskSpec

_TASK_OF_NAME = {"diff-sorp": "diffusion_sorption", "diff-react": "diffusion_reaction", "rdb": "shallow_water"}
_TASK_OF_CONTENT = {  # channels, domain and last time
    (1, ((0.0, 1.0),), 500.0): "diffusion_sorption",
    (2, ((-1.0, 1.0), (-1.0, 1.0)), 5.0): "diffusion_reaction",
    (1, ((-2.5, 2.5), (-2.5, 2.5)), 1.0): "shallow_water",
}
_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML was built with it


class GroupedFile(PDEBenchFile):
    """A PDEBench grouped file as a Dataset, read lazily.

    Opening lists the groups and looks into the first and the last: ten thousand would take seconds. The others are
    compared with the first when they are read. `shape` has the channels last.
    """

    def __init__(self, path: str | Path, task: str | TaskSpec | None = None) -> None:
        self._parameters: dict[int, dict[str, float]] = {}
        super().__init__(path, task)
        with open_file(self.path) as file:
            self._look_into(file, self.count - 1)

    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        self._keys = _keys(file, self.path)
        key = f"{self._keys[0]}/data"
        shape = array(file, key, self.path).shape
        self._axes = _axes(file, self._keys[0], shape, self.path)
        self.stored = (("",) * shape[-1], ())
        return key, (len(self._keys), *shape)

    def expected(self, header: Header) -> tuple[int, ...]:
        return (*super().expected(header), len(header.channels))

    @property
    def dimension(self) -> int:
        return len(self.shape) - 3

    def task_name(self, file: h5py.File) -> str:
        for word in published.words_of(self.path):
            if word in _TASK_OF_NAME:
                return _TASK_OF_NAME[word]
        name = _TASK_OF_CONTENT.get((self.shape[-1], self._grid.extent, float(even_times(self._axes["t"])[-1])))
        if name is None:
            raise UserError(
                f"{self.path}: neither content nor file name say which task this is; say it (--task, or task=)"
            )
        return name

    @property
    def _grid(self) -> Grid:
        space = [centred_axis(positions) for name, positions in self._axes.items() if name != "t"]
        return Grid(tuple(positions for positions, _ in space), tuple(extent for _, extent in space))

    def understood(self, file: h5py.File, known: TaskSpec) -> dict[str, Any]:
        config, last = (_config(file, self._keys[end], self.path) for end in (0, -1))
        parameters, other = published.needed(_of_task(config, known), known, self.path), _of_task(last, known)
        return {
            "grid": self._grid,
            "times": even_times(self._axes["t"]),
            "parameters": {k: value if other.get(k, value) == value else None for k, value in parameters.items()},
            "notes": {"config": config} if config else {},
            "test_at": "last",
        }

    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        kept = range(self.shape[1])[frames]
        values = np.empty((len(rows), len(kept), *self.shape[2:]), stored_type(self.header.dtype))
        with open_file(self.path) as file:
            for place, row in enumerate(rows.tolist()):
                self._look_into(file, row)
                values[place] = read_part(file[f"{self._keys[row]}/data"], (frames,))
        varying = {
            name: torch.tensor([self._parameters[row][name] for row in rows.tolist()], dtype=torch.float64)
            for name, value in self.header.parameters.items()
            if value is None
        }
        return batch_from(self.header, rows, frames, values, parameters=varying)

    def _look_into(self, file: h5py.File, row: int) -> None:
        """Refuse a group that is not like the first, and learn its parameters."""
        if row in self._parameters:
            return
        key, first = self._keys[row], self._keys[0]
        shape = array(file, f"{key}/data", self.path).shape
        if shape != self.shape[1:]:
            raise UserError(
                f"{self.path}: '{key}/data' has shape {shape} and '{first}/data' {self.shape[1:]}; "
                "put trajectories of other shapes into files of their own"
            )
        for name, positions in _axes(file, key, shape, self.path).items():
            if not np.array_equal(positions, self._axes[name]):
                raise UserError(
                    f"{self.path}: '{key}/grid/{name}' differs from '{first}/grid/{name}'; "
                    "put trajectories of other grids or times into files of their own"
                )
        said = _numbers(_config(file, key, self.path))
        for name, value in self.header.parameters.items():
            if value is None and name not in said:
                raise UserError(f"{self.path}: the attribute 'config' of {key!r} does not say {name!r}; add it there")
            if value is not None and said.get(name, value) != value:
                raise UserError(
                    f"{self.path}: {name} is {said[name]} in group {key!r} and {value} in {first!r}; "
                    "put trajectories of other parameters into files of their own"
                )
        self._parameters[row] = said


def _keys(file: h5py.File, path: Path) -> tuple[str, ...]:
    """The groups in the order of their numbers, of which none may be missing."""
    names = [str(name) for name in file]
    for key in names:
        if not (key.isascii() and key.isdigit()):
            raise UserError(f"{path}: the group {key!r} is not a trajectory's number; remove it or rename it")
    keys = sorted(names, key=int)
    for key, following in pairwise(keys):
        if int(following) != int(key) + 1:
            missing = f"{int(key) + 1:0{len(key)}d}"
            raise UserError(
                f"{path}: the group {missing!r} is missing between {key!r} and {following!r}; fetch it again"
            )
    return tuple(keys)


def _axes(file: h5py.File, key: str, shape: tuple[int, ...], path: Path) -> dict[str, np.ndarray]:
    """The group's positions, t first: named as stored, so that time is never taken for space."""
    names = ("t", *AXES[: len(shape) - 2])
    if len(shape) not in (3, 4, 5) or 0 in shape:
        raise UserError(f"{path}: '{key}/data' has shape {shape}; it must be (times, x[, y[, z]], channels)")
    grid = file.get(f"{key}/grid")
    held = sorted(grid) if isinstance(grid, h5py.Group) else []
    if held != sorted(names):
        raise UserError(
            f"{path}: '{key}/grid' holds {', '.join(held) or 'nothing'}; data of shape {shape} need {', '.join(names)}"
        )
    axes = {name: coordinate(file, f"{key}/grid/{name}", path, least=1 if name == "t" else 2) for name in names}
    for (name, positions), n in zip(axes.items(), shape[:-1], strict=True):
        if len(positions) != n:
            raise UserError(
                f"{path}: '{key}/grid/{name}' has {len(positions)} entries, '{key}/data' has {n} along {name}"
            )
    return axes


def _config(file: h5py.File, key: str, path: Path) -> dict[str, Any]:
    """What the run that made a group was told; nothing if the file does not say."""
    text = file[key].attrs.get("config", "")
    try:
        config = yaml.load(text, _YAML)
    except yaml.YAMLError as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"{path}: the attribute 'config' of {key!r} is not YAML ({reason}); remove or mend it"
        ) from error
    return config if isinstance(config, dict) else {}


def _numbers(config: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a run's configuration, those of its section `sim` first."""
    section = config.get("sim")
    both = {**config, **(section if isinstance(section, dict) else {})}
    found: dict[str, float] = {}
    for name, value in both.items():
        try:
            found[str(name)] = float(value)  # YAML 1.1 takes 1e-3 for a word
        except (TypeError, ValueError):
            continue
    return found


def _of_task(config: Mapping[str, Any], known: TaskSpec) -> dict[str, float]:
    """A run is told more than the equation's parameters: only those that the task knows."""
    names = {*known.parameters, *published.fixed_parameters(known)}
    return {name: value for name, value in _numbers(config).items() if name in names}


class GroupedWriter(HDF5Writer):
    """Writes a group a trajectory, with parameters of its own; any channels, one to three dimensions."""

    keeps: ClassVar[tuple[str, ...]] = ()

    def refuse(self, path: Path) -> None:
        check_axes(self.header, path)

    def lay_out(self) -> None:
        self._digits = max(4, len(str(self.count - 1)))
        names = ("t", *AXES[: self.header.grid.dimension])
        axes = (self.header.times, *self.header.grid.positions)
        self._grid = {name: rounded(positions) for name, positions in zip(names, axes, strict=True)}

    def put(self, start: int, batch: Batch) -> None:
        for row in range(len(batch)):
            group = self.file.create_group(f"{start + row:0{self._digits}d}")
            group.create_dataset("data", data=batch.values[row].to(self.header.dtype).numpy())
            for name, positions in self._grid.items():
                group.create_dataset(f"grid/{name}", data=positions)
            parameters = {name: float(values[row]) for name, values in batch.parameters.items()}
            group.attrs["config"] = yaml.safe_dump({"sim": parameters})


def begins_with_a_trajectory(file: h5py.File) -> bool:
    first = str(next(iter(file), ""))
    return first.isdigit() and isinstance(file[first], h5py.Group)
