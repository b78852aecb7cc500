"""PDEBench incompressible files: the published HDF5 layout of forced incompressible flow.

    velocity (N, T, X, Y, 2)    particles (N, T, X, Y, 1)    force (N, X, Y, 2)    t (N, T)

Channels are Vx, Vy and particles; the force is two static fields, force_x and force_y. Positions and sides are not
stored: cell centres of the unit square are assumed, with walls where the velocity is zero; the header's notes say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.formats.append import HDF5Writer
from ups.data.formats.description import check_agrees, described
from ups.data.formats.hdf5 import array, check_finite, checked_rows, even_times, holds, open_file, precision, read_rows
from ups.data.formats.header import Described, batch_from, keeping
from ups.data.formats.layout import Layout
from ups.data.formats.pdebench.coordinates import rounded
from ups.data.formats.pdebench.published import (
    as_task,
    check_fits,
    known_task,
    needed,
    parameter_attributes,
    published_parameters,
    refuse_varying,
)
from ups.errors import UserError
from ups.fields import Batch, Grid, Header, TaskSpec

CHANNELS = {"Vx": ("velocity", 0), "Vy": ("velocity", 1), "particles": ("particles", 0)}
STATIC = {"force_x": ("force", 0), "force_y": ("force", 1)}


class IncompressibleFile(Described):
    """A PDEBench incompressible file as a Dataset, read lazily.

    The file is opened for each read, so the dataset can be handed to other processes.
    """

    def __init__(self, path: str | Path, task: str | TaskSpec | None = None) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            shape = _shape(file, self.path)
            header = described(file, self.path)
            if header is None:
                self._stored, self._forces = tuple(CHANNELS), tuple(STATIC)
                self.header = _understood(file, shape, task, self.path)
            else:
                check_agrees("velocity", shape[1:], (len(header.times), *header.grid.shape), self.path)
                self._stored, self._forces = header.channels, header.static
                self.header = as_task(header, task, self.path)
            self._count = shape[0]

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        """The given trajectories at the given frames, reading only those bytes; NaN and infinities are refused."""
        rows = checked_rows(indices, len(self), self.path)
        with open_file(self.path) as file:
            arrays = {key: read_rows(file[key], rows, frames) for key in ("velocity", "particles")}
            force = read_rows(file["force"], rows)
        for key, values in {**arrays, "force": force}.items():
            check_finite(values, rows, repr(key), self.path)
        values = np.stack([arrays[key][..., part] for key, part in (CHANNELS[name] for name in self._stored)], -1)
        static = {
            name: np.ascontiguousarray(force[..., STATIC[stored][1]])
            for name, stored in zip(self.header.static, self._forces, strict=True)
        }
        return batch_from(self.header, rows, frames, values, static)


def _shape(file: h5py.File, path: Path) -> tuple[int, ...]:
    """Samples, times, x, y, as all arrays agree."""
    velocity = array(file, "velocity", path).shape
    if len(velocity) != 5 or velocity[-1] != 2 or 0 in velocity:
        raise UserError(f"{path}: 'velocity' has shape {velocity}; it must be (samples, times, x, y, 2)")
    samples, times, *space = velocity[:4]
    for key, expected in (
        ("particles", (samples, times, *space, 1)),
        ("force", (samples, *space, 2)),
        ("t", (samples, times)),
    ):
        if (shape := array(file, key, path).shape) != expected:
            raise UserError(f"{path}: {key!r} has shape {shape}, 'velocity' says {expected}")
    return velocity[:4]


def _understood(file: h5py.File, shape: tuple[int, ...], task: str | TaskSpec | None, path: Path) -> Header:
    """The header of a file that others wrote."""
    known = known_task(task or "incompressible")
    check_fits(known, len(CHANNELS), 2, path)
    if len(known.static) != len(STATIC):
        raise UserError(f"{path}: has static fields {', '.join(STATIC)}, task {known.task!r} has {known.static}")
    return Header(
        task=known.task,
        channels=known.channels,
        grid=Grid.cell_centred(shape[2:]),
        times=_times(file, path),
        boundary=known.boundary,
        parameters=needed(published_parameters(path, dict(file.attrs)), known, path),
        static=known.static,
        dtype=precision(array(file, "velocity", path)),
        notes={
            "positions assumed": "cell_centred on the unit square",
            "sides assumed": ", ".join(dict.fromkeys(side.kind for pair in known.boundary.sides for side in pair)),
        },
    )


def _times(file: h5py.File, path: Path) -> Float[Tensor, " T"]:
    stored = array(file, "t", path)[()].astype(np.float64)
    if not np.isfinite(stored).all() or not (np.diff(stored) > 0).all():
        raise UserError(f"{path}: 't' must be finite and increase along each row; fetch or make the file again")
    if (stored != stored[0]).any():
        raise UserError(f"{path}: the rows of 't' differ; put trajectories of other times into files of their own")
    return even_times(stored[0])


class IncompressibleWriter(HDF5Writer):
    """Writes Vx, Vy and particles with their static force, in two dimensions."""

    @staticmethod
    def kept(header: Header) -> Header:
        return keeping(header, static=True)

    def refuse(self, path: Path) -> None:
        header = self.header
        if header.grid.dimension != 2 or sorted(header.channels) != sorted(CHANNELS):
            raise UserError(
                f"{path}: an incompressible file holds {', '.join(CHANNELS)} in two dimensions, not "
                f"{', '.join(header.channels)} in {header.grid.dimension}; choose another layout"
            )
        if sorted(header.static) != sorted(STATIC):
            raise UserError(
                f"{path}: an incompressible file holds the static fields {', '.join(STATIC)}, not "
                f"{', '.join(header.static) or 'none'}; choose another layout"
            )
        refuse_varying(header, path)

    def lay_out(self) -> None:
        frames, space = len(self.header.times), self.header.grid.shape
        self.array("velocity", (self.count, frames, *space, 2))
        self.array("particles", (self.count, frames, *space, 1))
        self.array("force", (self.count, *space, 2))
        self.file.create_dataset("t", data=np.tile(rounded(self.header.times), (self.count, 1)))
        self.file.attrs.update(parameter_attributes(self.header))
        self.file.attrs["latestIndex"] = self.count

    def put(self, start: int, batch: Batch) -> None:
        place = self.header.channels.index
        self.fill("velocity", start, batch.values[..., [place("Vx"), place("Vy")]])
        self.fill("particles", start, batch.values[..., [place("particles")]])
        self.fill("force", start, torch.stack([batch.static[name] for name in STATIC], -1))


class Incompressible(Layout):
    """The layout of forced incompressible flow."""

    name = "pdebench-incompressible"
    extension = ".h5"
    options = ()
    writer = IncompressibleWriter
    open = IncompressibleFile

    @staticmethod
    def recognises(path: Path) -> bool:
        return holds(path, lambda file: all(isinstance(file.get(k), h5py.Dataset) for k in ("velocity", "particles")))
