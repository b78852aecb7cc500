"""PDEBench tensor files: the published HDF5 layout of the one-dimensional tasks and of Darcy flow.

    one-dimensional   tensor (N, T, X)       x-coordinate (X,)                     t-coordinate (T+1,)
    Darcy             tensor (N, 1, X, Y)    x-coordinate (X,), y-coordinate (Y,)  nu (N, X, Y), called `a` here

All float32, coordinates are cell centres, and t-coordinate has one entry too many, as published. Ours also say how they
were made, in root attributes: equation, parameters (JSON), solver, seed, version, and the published `beta` or `Nu`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.hdf5 import array, centred_axis, check_finite, checked_rows, coordinate, even_times, open_file, read_rows
from ups.data.tasks import task as registered_task
from ups.durable import sync
from ups.errors import UserError
from ups.fields import AXES, Batch, Boundary, Grid, TaskSpec, Trajectory

_PUBLISHED_TO_OURS = {"beta": "beta", "Nu": "nu", "rho": "rho", "Rho": "rho"}
_OURS_TO_PUBLISHED = {"beta": "beta", "nu": "Nu", "rho": "rho"}
_IN_NAME = re.compile(r"(beta|Nu|Rho)(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_TASK_OF_PARAMETERS = {frozenset({"beta"}): "advection", frozenset({"nu"}): "burgers"}


class TensorFile:
    """A PDEBench tensor file as a Dataset, recognised by its content and read lazily.

    Parameters come from the attributes, else from the file's name. The file is opened for each read, so the dataset can
    be handed to other processes.
    """

    def __init__(self, path: str | Path, task: str | None = None) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            tensor = array(file, "tensor", self.path)
            if tensor.ndim not in (3, 4) or 0 in tensor.shape:
                raise UserError(
                    f"{self.path}: 'tensor' has shape {tensor.shape}; a PDEBench file has (samples, times, x) or, "
                    "for Darcy, (samples, 1, x, y)"
                )
            self.attributes: dict[str, Any] = dict(file.attrs)
            parameters = _parameters(self.path, self.attributes)
            spec = registered_task(task or self._task_name(file, tensor, parameters))
            self.parameters = self._needed(parameters, spec)
            self.task = spec.name
            self.channels = spec.channel_names
            self.boundary: Boundary = spec.boundary
            self._static = dict.fromkeys(spec.static, "nu")
            self._check_layout(file, tensor, spec)
            self._count = int(tensor.shape[0])
            self.grid = _grid(file, tensor.shape[2:], self.path)
            self.times: Float[Tensor, " T"] = (
                torch.zeros(1, dtype=torch.float64) if spec.steady else _times(file, tensor.shape[1], self.path)
            )

    def _task_name(self, file: h5py.File, tensor: h5py.Dataset, parameters: Mapping[str, float]) -> str:
        if isinstance(name := self.attributes.get("equation"), str):
            return name
        if tensor.ndim == 4 and "nu" in file:
            return "darcy"
        name = _TASK_OF_PARAMETERS.get(frozenset(parameters)) if tensor.ndim == 3 else None
        if name is None:
            raise UserError(f"{self.path}: neither attributes nor file name say which task this is; pass task=")
        return name

    def _needed(self, parameters: Mapping[str, float], spec: TaskSpec) -> dict[str, float]:
        for name in spec.parameters:
            if name not in parameters:
                raise UserError(
                    f"{self.path}: parameter {name!r} of task {spec.name!r} is neither an attribute nor in the file "
                    f"name; name the file as published or set the attribute {_OURS_TO_PUBLISHED.get(name, name)!r}"
                )
        return dict(parameters)

    def _check_layout(self, file: h5py.File, tensor: h5py.Dataset, spec: TaskSpec) -> None:
        dimension = tensor.ndim - 2
        if spec.dimension != dimension or len(spec.channels) != 1:
            raise UserError(
                f"{self.path}: holds one field in {dimension} dimensions, but task {spec.name!r} has "
                f"{len(spec.channels)} in {spec.dimension}; pass the task= of these data"
            )
        if spec.steady and tensor.shape[1] != 1:
            raise UserError(f"{self.path}: task {spec.name!r} is steady, but 'tensor' has {tensor.shape[1]} frames")
        if len(spec.static) > 1:
            raise UserError(f"{self.path}: the layout has one static field, task {spec.name!r} needs {spec.static}")
        for key in self._static.values():
            expected, shape = (tensor.shape[0], *tensor.shape[2:]), array(file, key, self.path).shape
            if shape != expected:
                raise UserError(f"{self.path}: {key!r} has shape {shape}, 'tensor' says {expected}")

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        """The given trajectories at the given frames, reading only those bytes; NaN and infinities are refused."""
        rows = checked_rows(indices, len(self), self.path)
        with open_file(self.path) as file:
            values = read_rows(file["tensor"], rows, frames)
            static = {name: read_rows(file[key], rows) for name, key in self._static.items()}
        check_finite(values, rows, f"channel {self.channels[0]!r}", self.path)
        for name, field in static.items():
            check_finite(field, rows, f"static field {name!r}", self.path)
        return Batch(
            task=self.task,
            values=torch.from_numpy(values)[..., None],
            times=self.times[frames].expand(len(rows), -1),
            grid=self.grid,
            boundary=self.boundary,
            parameters={
                name: torch.full((len(rows),), value, dtype=torch.float64) for name, value in self.parameters.items()
            },
            static={name: torch.from_numpy(field) for name, field in static.items()},
            ids=torch.from_numpy(rows),
        )


class TensorWriter:
    """Write a PDEBench tensor file piece by piece, in bounded memory: `with TensorWriter(...) as w: w.write(0, batch)`.

    The bytes go to a temporary name and are synced and renamed when all is written, so a file under its own name is
    always whole. An existing file is refused.
    """

    def __init__(
        self,
        path: str | Path,
        count: int,
        grid: Grid,
        times: Float[Tensor, " T"],
        steady: bool,
        parameters: Mapping[str, float],
        attributes: Mapping[str, Any],
    ) -> None:
        self.path = Path(path)
        if self.path.exists():
            raise UserError(f"{self.path} exists and is not overwritten; remove it or choose another path")
        if steady != (grid.dimension == 2):
            raise UserError(
                f"{self.path}: this layout holds one-dimensional transients or two-dimensional steady fields"
            )
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        self._file = h5py.File(self._temporary, "w")
        self._steady = steady
        shape = (count, 1 if steady else len(times), *grid.shape)
        self._tensor = self._file.create_dataset("tensor", shape, dtype="<f4")
        self._nu = self._file.create_dataset("nu", (count, *grid.shape), dtype="<f4") if steady else None
        for axis, positions in zip(AXES[: grid.dimension], grid.positions, strict=True):
            self._file.create_dataset(f"{axis}-coordinate", data=positions.numpy().astype("<f4"))
        if not steady:
            extra = 2 * times[-1:] - times[-2:-1]
            self._file.create_dataset("t-coordinate", data=torch.cat((times, extra)).numpy().astype("<f4"))
        for name, value in parameters.items():
            self._file.attrs[_OURS_TO_PUBLISHED.get(name, name)] = float(value)
        self._file.attrs["parameters"] = json.dumps(dict(parameters), sort_keys=True)
        for name, value in sorted(attributes.items()):
            self._file.attrs[name] = value

    def write(self, start: int, values: Float[Tensor, "B T *space C"], static: Mapping[str, Tensor]) -> None:
        """Samples start, start + 1, …"""
        self._tensor[start : start + len(values)] = values[..., 0].cpu().numpy()
        if self._nu is not None:
            if len(static) != 1:
                raise UserError(f"{self.path}: a Darcy file holds one static field, not {len(static)}")
            self._nu[start : start + len(values)] = next(iter(static.values())).cpu().numpy()

    def __enter__(self) -> TensorWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is not None:
            self._temporary.unlink(missing_ok=True)
            return
        sync(self._temporary)
        self._temporary.rename(self.path)
        sync(self.path.parent)


def write(path: str | Path, trajectories: Sequence[Trajectory], attributes: Mapping[str, Any] | None = None) -> None:
    """Write trajectories of one grid, one set of times and one set of parameters, as the layout wants them."""
    if not trajectories:
        raise UserError(f"{path}: no trajectories to write; give at least one")
    first = trajectories[0]
    for number, other in enumerate(trajectories):
        same = (
            isinstance(other.space, Grid)
            and isinstance(first.space, Grid)
            and other.space.same_as(first.space)
            and torch.equal(other.times, first.times)
            and dict(other.conditions.parameters) == dict(first.conditions.parameters)
            and len(other.channels) == 1
        )
        if not same:
            raise UserError(
                f"{path}: trajectory {number} differs from the first in grid, times, parameters or number of channels; "
                "this layout has one of each a file"
            )
    assert isinstance(first.space, Grid)
    steady = len(first.times) == 1
    parameters = {name: float(value) for name, value in first.conditions.parameters.items()}
    named = {"equation": first.task, **(attributes or {})}
    with TensorWriter(path, len(trajectories), first.space, first.times, steady, parameters, named) as writer:
        for number, trajectory in enumerate(trajectories):
            static = {name: field[None] for name, field in trajectory.conditions.static.items()}
            writer.write(number, trajectory.values[None], static)


def _parameters(path: Path, attributes: Mapping[str, Any]) -> dict[str, float]:
    if "parameters" in attributes:
        try:
            return {str(name): float(value) for name, value in json.loads(attributes["parameters"]).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: attribute 'parameters' is no JSON mapping of numbers ({error})") from error
    found = {_PUBLISHED_TO_OURS[name]: float(value) for name, value in _IN_NAME.findall(path.name)}
    for name, value in attributes.items():
        if name in _PUBLISHED_TO_OURS:
            try:
                found[_PUBLISHED_TO_OURS[name]] = float(value)
            except (TypeError, ValueError):
                raise UserError(f"{path}: attribute {name!r} is {value!r}; it must be one number") from None
    return found


def _grid(file: h5py.File, shape: tuple[int, ...], path: Path) -> Grid:
    positions, extent = [], []
    for axis, n in zip(AXES[: len(shape)], shape, strict=True):
        stored = coordinate(file, f"{axis}-coordinate", path)
        if len(stored) != n:
            raise UserError(f"{path}: '{axis}-coordinate' has {len(stored)} entries, 'tensor' has {n} along {axis}")
        centres, ends = centred_axis(stored)
        positions.append(centres)
        extent.append(ends)
    return Grid(tuple(positions), tuple(extent))


def _times(file: h5py.File, frames: int, path: Path) -> Float[Tensor, " T"]:
    """The first T entries of one too many."""
    stored = coordinate(file, "t-coordinate", path)
    if len(stored) not in (frames, frames + 1):
        raise UserError(f"{path}: 't-coordinate' has {len(stored)} entries for {frames} frames; give one a frame")
    return even_times(stored[:frames])
