"""PDEBench incompressible files: the published HDF5 layout of forced incompressible flow.

    velocity (N, T, X, Y, 2)    particles (N, T, X, Y, 1)    force (N, X, Y, 2)    t (N, T)

Channels are Vx, Vy and particles; the force is two static fields, force_x and force_y. Positions and sides are not
stored: cell centres of the unit square are assumed, with walls where the velocity is zero; the header's notes say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.formats.hdf5 import array, even_times, open_file, precision, read_rows, rounded
from ups.data.formats.pdebench import published
from ups.data.formats.pdebench.file import PDEBenchFile
from ups.data.formats.reading import batch_from
from ups.data.formats.writing import HDF5Writer
from ups.errors import UserError
from ups.fields import Batch, Grid, Header, TaskSpec

CHANNELS = {"Vx": ("velocity", 0), "Vy": ("velocity", 1), "particles": ("particles", 0)}
STATIC = {"force_x": ("force", 0), "force_y": ("force", 1)}


class IncompressibleFile(PDEBenchFile):
    stored = (tuple(CHANNELS), tuple(STATIC))

    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        velocity = array(file, "velocity", self.path).shape
        if len(velocity) != 5 or velocity[-1] != 2 or 0 in velocity:
            raise UserError(f"{self.path}: 'velocity' has shape {velocity}; it must be (samples, times, x, y, 2)")
        samples, times, *space = velocity[:4]
        for key, expected in (
            ("particles", (samples, times, *space, 1)),
            ("force", (samples, *space, 2)),
            ("t", (samples, times)),
        ):
            if (shape := array(file, key, self.path).shape) != expected:
                raise UserError(f"{self.path}: {key!r} has shape {shape}, 'velocity' says {expected}")
        return "velocity", velocity[:4]

    def understood(self, file: h5py.File, task: str | TaskSpec | None) -> Header:
        path, known = self.path, published.known_task(task or "incompressible")
        published.check_fits(known, len(CHANNELS), 2, tuple(STATIC), path)
        return Header(
            task=known.name,
            channels=known.channel_names,
            grid=Grid.cell_centred(self.shape[2:]),
            times=_times(file, path),
            boundary=known.boundary,
            parameters=published.needed(published.parameters_of(path, dict(file.attrs)), known, path),
            static=known.static,
            dtype=precision(array(file, "velocity", path)),
            notes={
                "positions assumed": "cell_centred on the unit square",
                "sides assumed": ", ".join(dict.fromkeys(side.kind for pair in known.boundary.sides for side in pair)),
            },
        )

    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        with open_file(self.path) as file:
            arrays = {key: read_rows(file[key], rows, frames) for key in ("velocity", "particles")}
            force = read_rows(file["force"], rows)
        channels, forces = self.stored
        values = np.stack([arrays[key][..., part] for key, part in (CHANNELS[name] for name in channels)], -1)
        static = {name: force[..., STATIC[stored][1]] for name, stored in zip(self.header.static, forces, strict=True)}
        return batch_from(self.header, rows, frames, values, static)


def _times(file: h5py.File, path: Path) -> Float[Tensor, " T"]:
    stored = array(file, "t", path)[()].astype(np.float64)
    if not np.isfinite(stored).all() or not (np.diff(stored) > 0).all():
        raise UserError(f"{path}: 't' must be finite and increase along each row; fetch or make the file again")
    if (stored != stored[0]).any():
        raise UserError(f"{path}: the rows of 't' differ; put trajectories of other times into files of their own")
    return even_times(stored[0])


class IncompressibleWriter(HDF5Writer):
    """Writes Vx, Vy and particles with their static force, in two dimensions."""

    keeps: ClassVar[tuple[str, ...]] = ("static",)

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
        published.refuse_varying(header, path)

    def lay_out(self) -> None:
        frames, space = len(self.header.times), self.header.grid.shape
        self.array("velocity", (self.count, frames, *space, 2))
        self.array("particles", (self.count, frames, *space, 1))
        self.array("force", (self.count, *space, 2))
        self.file.create_dataset("t", data=np.tile(rounded(self.header.times), (self.count, 1)))
        self.file.attrs.update(published.parameter_attributes(self.header))
        self.file.attrs["latestIndex"] = self.count

    def put(self, start: int, batch: Batch) -> None:
        place = self.header.channels.index
        self.fill("velocity", start, batch.values[..., [place("Vx"), place("Vy")]])
        self.fill("particles", start, batch.values[..., [place("particles")]])
        self.fill("force", start, torch.stack([batch.static[name] for name in STATIC], -1))
