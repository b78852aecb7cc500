"""PDEBench CFD files: the published HDF5 layout of compressible flow.

    density, pressure, Vx[, Vy[, Vz]]   (N, T, X[, Y[, Z]])
    x-coordinate (X,)[, y-coordinate[, z-coordinate]]   t-coordinate (T+1,)

Coordinates are cell centres in float32, and t-coordinate has one entry too many. Parameters are root attributes (`eta`,
`zeta`, `M`) or only in the file's name, as are the sides: `periodic`, or `trans` for open ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
from jaxtyping import Int

from ups.data.formats.hdf5 import array, open_file, precision, read_rows
from ups.data.formats.pdebench import published
from ups.data.formats.pdebench.file import PDEBenchFile, check_axes, stored_grid, stored_times, write_coordinates
from ups.data.formats.reading import batch_from
from ups.data.formats.writing import HDF5Writer
from ups.errors import UserError
from ups.fields import Batch, Header, TaskSpec

VELOCITY = ("Vx", "Vy", "Vz")


def fields(dimension: int) -> tuple[str, ...]:
    """The fields of a file, in the order of publications."""
    return ("density", "pressure", *VELOCITY[:dimension])


class CFDFile(PDEBenchFile):
    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        """The number of velocity components says the dimension, not the arrays' rank."""
        density = array(file, "density", self.path)
        dimension = sum(name in file for name in VELOCITY)
        if density.ndim != dimension + 2 or 0 in density.shape:
            axes = ", ".join(("samples", "times", "x", "y", "z")[: dimension + 2])
            raise UserError(
                f"{self.path}: 'density' has shape {density.shape}, but {dimension} velocity components say ({axes}); "
                "if the axes are (devices, samples, …), merge the first two"
            )
        for name in fields(dimension):
            if (shape := array(file, name, self.path).shape) != density.shape:
                raise UserError(
                    f"{self.path}: {name!r} has shape {shape} and 'density' {density.shape}; they must agree"
                )
        self.stored = (fields(dimension), ())
        return "density", density.shape

    def understood(self, file: h5py.File, task: str | TaskSpec | None) -> Header:
        path, space = self.path, self.shape[2:]
        known = published.known_task(task or f"compressible_{len(space)}d")
        published.check_fits(known, len(space) + 2, len(space), (), path)
        return Header(
            task=known.name,
            channels=known.channel_names,
            grid=stored_grid(file, "density", space, path),
            times=stored_times(file, self.shape[1], path),
            boundary=published.boundary_of(path, known),
            parameters=published.needed(published.parameters_of(path, dict(file.attrs)), known, path),
            dtype=precision(array(file, "density", path)),
        )

    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        with open_file(self.path) as file:
            values = [read_rows(file[key], rows, frames) for key in self.stored[0]]
        return batch_from(self.header, rows, frames, np.stack(values, -1))


class CFDWriter(HDF5Writer):
    """Writes density, pressure and velocity in one, two or three dimensions."""

    keeps: ClassVar[tuple[str, ...]] = ()

    def refuse(self, path: Path) -> None:
        expected = fields(self.header.grid.dimension)
        if set(self.header.channels) != set(expected) or len(self.header.channels) != len(expected):
            raise UserError(
                f"{path}: a CFD file holds {', '.join(expected)}, not {', '.join(self.header.channels)}; "
                "choose another layout"
            )
        published.refuse_varying(self.header, path)
        check_axes(self.header, path)

    def lay_out(self) -> None:
        for name in self.header.channels:
            self.array(name, (self.count, len(self.header.times), *self.header.grid.shape))
        write_coordinates(self.file, self.header, times=True)
        self.file.attrs.update(published.parameter_attributes(self.header))

    def put(self, start: int, batch: Batch) -> None:
        for channel, name in enumerate(self.header.channels):
            self.fill(name, start, batch.values[..., channel])
