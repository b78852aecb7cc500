"""PDEBench CFD files: the published HDF5 layout of compressible flow.

    density, pressure, Vx[, Vy[, Vz]]   (N, T, X[, Y[, Z]])
    x-coordinate (X,)[, y-coordinate[, z-coordinate]]   t-coordinate (T+1,)

Coordinates are cell centres in float32, and t-coordinate has one entry too many. Parameters are root attributes (`eta`,
`zeta`, `M`) or only in the file's name, as are the sides: `periodic`, or `trans` for open ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from ups.data.formats.append import HDF5Writer
from ups.data.formats.description import check_agrees, described
from ups.data.formats.hdf5 import array, check_finite, checked_rows, holds, open_file, precision, read_rows
from ups.data.formats.header import Described, batch_from, keeping
from ups.data.formats.layout import Layout
from ups.data.formats.pdebench.coordinates import check_axes, stored_grid, stored_times, write_coordinates
from ups.data.formats.pdebench.published import (
    as_task,
    check_fits,
    known_task,
    needed,
    parameter_attributes,
    published_boundary,
    published_parameters,
    refuse_varying,
)
from ups.errors import UserError
from ups.fields import Batch, Header, TaskSpec

VELOCITY = ("Vx", "Vy", "Vz")


def fields(dimension: int) -> tuple[str, ...]:
    """The fields of a file, in the order of publications."""
    return ("density", "pressure", *VELOCITY[:dimension])


class CFDFile(Described):
    """A PDEBench CFD file as a Dataset, read lazily.

    The file is opened for each read, so the dataset can be handed to other processes.
    """

    def __init__(self, path: str | Path, task: str | TaskSpec | None = None) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            shape = _shape(file, self.path)
            header = described(file, self.path)
            if header is None:
                self._stored = fields(len(shape) - 2)
                self.header = _understood(file, shape, task, self.path)
            else:
                check_agrees("density", shape[1:], (len(header.times), *header.grid.shape), self.path)
                self._stored = header.channels
                self.header = as_task(header, task, self.path)
            self._count = shape[0]

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        """The given trajectories at the given frames, reading only those bytes; NaN and infinities are refused."""
        rows = checked_rows(indices, len(self), self.path)
        values = []
        with open_file(self.path) as file:
            for key in self._stored:
                values.append(read_rows(file[key], rows, frames))
                check_finite(values[-1], rows, f"channel {key!r}", self.path)
        return batch_from(self.header, rows, frames, np.stack(values, -1))


def _shape(file: h5py.File, path: Path) -> tuple[int, ...]:
    """The shape that all fields have. The number of velocity components says the dimension, not the arrays' rank."""
    density = array(file, "density", path)
    dimension = sum(name in file for name in VELOCITY)
    if density.ndim != dimension + 2 or 0 in density.shape:
        axes = ", ".join(("samples", "times", "x", "y", "z")[: dimension + 2])
        raise UserError(
            f"{path}: 'density' has shape {density.shape}, but {dimension} velocity components say ({axes}); "
            "if the axes are (devices, samples, …), merge the first two"
        )
    for name in fields(dimension):
        if (shape := array(file, name, path).shape) != density.shape:
            raise UserError(f"{path}: {name!r} has shape {shape} and 'density' {density.shape}; they must agree")
    return density.shape


def _understood(file: h5py.File, shape: tuple[int, ...], task: str | TaskSpec | None, path: Path) -> Header:
    """The header of a file that others wrote."""
    dimension = len(shape) - 2
    known = known_task(task or f"compressible_{dimension}d")
    check_fits(known, dimension + 2, dimension, path)
    return Header(
        task=known.task,
        channels=known.channels,
        grid=stored_grid(file, "density", shape[2:], path),
        times=stored_times(file, shape[1], path),
        boundary=published_boundary(path, known),
        parameters=needed(published_parameters(path, dict(file.attrs)), known, path),
        dtype=precision(array(file, "density", path)),
    )


class CFDWriter(HDF5Writer):
    """Writes density, pressure and velocity in one, two or three dimensions."""

    @staticmethod
    def kept(header: Header) -> Header:
        return keeping(header)

    def refuse(self, path: Path) -> None:
        expected = fields(self.header.grid.dimension)
        if set(self.header.channels) != set(expected) or len(self.header.channels) != len(expected):
            raise UserError(
                f"{path}: a CFD file holds {', '.join(expected)}, not {', '.join(self.header.channels)}; "
                "choose another layout"
            )
        refuse_varying(self.header, path)
        check_axes(self.header, path)

    def lay_out(self) -> None:
        for name in self.header.channels:
            self.array(name, (self.count, len(self.header.times), *self.header.grid.shape))
        write_coordinates(self.file, self.header, times=True)
        self.file.attrs.update(parameter_attributes(self.header))

    def put(self, start: int, batch: Batch) -> None:
        for channel, name in enumerate(self.header.channels):
            self.fill(name, start, batch.values[..., channel])


class CFD(Layout):
    """The layout of compressible flow."""

    name = "pdebench-cfd"
    extension = ".hdf5"
    options = ()
    writer = CFDWriter
    open = CFDFile

    @staticmethod
    def recognises(path: Path) -> bool:
        return holds(path, lambda file: all(isinstance(file.get(name), h5py.Dataset) for name in fields(1)))
