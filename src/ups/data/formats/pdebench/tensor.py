"""PDEBench tensor files: the published HDF5 layout of the one-dimensional tasks and of Darcy flow.

    one-dimensional   tensor (N, T, X)       x-coordinate (X,)                     t-coordinate (T+1,)
    Darcy             tensor (N, 1, X, Y)    x-coordinate (X,), y-coordinate (Y,)  nu (N, X, Y), called `a` here

Coordinates are cell centres in float32, and t-coordinate has one entry too many. Parameters are root attributes
(`beta`, `Nu`, `rho`) or only in the file's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import torch
from jaxtyping import Int

from ups.data.formats.hdf5 import array, open_file, precision, read_rows
from ups.data.formats.pdebench import published
from ups.data.formats.pdebench.file import PDEBenchFile, check_axes, stored_grid, stored_times, write_coordinates
from ups.data.formats.reading import batch_from
from ups.data.formats.writing import HDF5Writer
from ups.errors import UserError
from ups.fields import Batch, Header, TaskSpec

_TASK_OF_PARAMETERS = {
    frozenset({"beta"}): "advection",
    frozenset({"nu"}): "burgers",
    frozenset({"nu", "rho"}): "reaction_diffusion",
}
_TRANSIENT = (
    "published Darcy targets are not steady: each is the frame at t = 1.75 of a transient "
    "whose random start is not stored"
)


class TensorFile(PDEBenchFile):
    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        tensor = array(file, "tensor", self.path)
        _check_shape(tensor.shape, "nu" in file, self.path)
        if tensor.ndim == 4:
            expected, shape = (tensor.shape[0], *tensor.shape[2:]), array(file, "nu", self.path).shape
            if shape != expected:
                raise UserError(f"{self.path}: 'nu' has shape {shape}, 'tensor' says {expected}")
        return "tensor", tensor.shape

    def understood(self, file: h5py.File, task: str | TaskSpec | None) -> Header:
        path, space = self.path, self.shape[2:]
        parameters = published.parameters_of(path, dict(file.attrs))
        darcy = len(space) == 2
        known = published.known_task(task or _task_name(parameters, darcy, path))
        published.check_fits(known, 1, len(space), ("nu",) if darcy else (), path)
        return Header(
            task=known.name,
            channels=known.channel_names,
            grid=stored_grid(file, "tensor", space, path),
            times=torch.zeros(1, dtype=torch.float64) if darcy else stored_times(file, self.shape[1], path),
            boundary=known.boundary,
            parameters=published.needed(parameters, known, path),
            static=known.static,
            dtype=precision(array(file, "tensor", path)),
            notes={"target": _TRANSIENT} if known.name == "darcy" else {},
        )

    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        with open_file(self.path) as file:
            values = read_rows(file["tensor"], rows, frames)
            static = {name: read_rows(file["nu"], rows) for name in self.header.static}
        return batch_from(self.header, rows, frames, values[..., None], static)


def _check_shape(shape: tuple[int, ...], coefficient: bool, path: Path) -> None:
    if len(shape) == 4 and not coefficient:
        raise UserError(
            f"{path}: 'tensor' has shape {shape} and there is no 'nu': it is not Darcy flow; if the axes are "
            "(devices, samples, times, x), merge the first two"
        )
    if len(shape) not in (3, 4) or 0 in shape or (len(shape) == 4 and shape[1] != 1):
        raise UserError(
            f"{path}: 'tensor' has shape {shape}; a PDEBench file has (samples, times, x) or, for Darcy, "
            "(samples, 1, x, y)"
        )


def _task_name(parameters: Mapping[str, float], darcy: bool, path: Path) -> str:
    name = "darcy" if darcy else _TASK_OF_PARAMETERS.get(frozenset(parameters))
    if name is None:
        raise UserError(f"{path}: neither attributes nor file name say which task this is; pass task=")
    return name


class TensorWriter(HDF5Writer):
    """Writes one field: transient in one dimension, or steady in two with one static field."""

    keeps: ClassVar[tuple[str, ...]] = ("static",)

    @classmethod
    def kept(cls, header: Header) -> Header:
        return super().kept(header if header.grid.dimension == 2 else replace(header, static=()))

    def refuse(self, path: Path) -> None:
        header = self.header
        dimension = header.grid.dimension
        if len(header.channels) != 1:
            raise UserError(f"{path}: a tensor file holds one channel, not {', '.join(header.channels)}")
        if dimension != 1 and not (dimension == 2 and header.steady and len(header.static) == 1):
            raise UserError(
                f"{path}: a tensor file holds one-dimensional fields, or two-dimensional steady ones that depend on "
                "one static field; choose another layout"
            )
        published.refuse_varying(header, path)
        check_axes(header, path)

    def lay_out(self) -> None:
        header, grid = self.header, self.header.grid
        self.array("tensor", (self.count, len(header.times), *grid.shape))
        if grid.dimension == 2:
            self.array("nu", (self.count, *grid.shape))
        write_coordinates(self.file, header, times=grid.dimension == 1)
        self.file.attrs.update(published.parameter_attributes(header))

    def put(self, start: int, batch: Batch) -> None:
        self.fill("tensor", start, batch.values[..., 0])
        if self.header.grid.dimension == 2:
            self.fill("nu", start, batch.static[self.header.static[0]])
