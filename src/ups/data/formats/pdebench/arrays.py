"""PDEBench files of whole arrays, in three published HDF5 layouts. N are samples, T times.

    tensor           the one-dimensional tasks, and Darcy flow
        tensor (N, T, X)              x-coordinate (X,)                       t-coordinate (T+1,)
        tensor (N, 1, X, Y)           x-coordinate (X,), y-coordinate (Y,)    nu (N, X, Y), called `a` here
    cfd              compressible flow
        density, pressure, Vx[, Vy[, Vz]] (N, T, X[, Y[, Z]])    x-coordinate …    t-coordinate (T+1,)
    incompressible   forced incompressible flow
        velocity (N, T, X, Y, 2)      particles (N, T, X, Y, 1)      force (N, X, Y, 2)      t (N, T)

Coordinates are cell centres in float32, and t-coordinate has one entry too many. Parameters are root attributes
(`beta`, `Nu`, `eta`, `M`) or only in the file's name, as are the sides of compressible flow: `periodic`, or `trans` for
open ones. Incompressible files store neither positions nor sides: cell centres of the unit square are assumed, with
walls where the velocity is zero; the header's notes say so.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.formats.hdf5 import array, centred_axis, coordinate, even_times, open_file, read_rows, rounded
from ups.data.formats.pdebench import published
from ups.data.formats.pdebench.file import PDEBenchFile, check_axes
from ups.data.formats.reading import batch_from
from ups.data.formats.writing import HDF5Writer
from ups.errors import UserError
from ups.fields import AXES, Batch, Grid, Header, TaskSpec

Place = tuple[str, int | None]
"""Where a field is stored: its array, and which of the components along the last axis it is, if that has any."""

VELOCITY = ("Vx", "Vy", "Vz")
INCOMPRESSIBLE: dict[str, Place] = {"Vx": ("velocity", 0), "Vy": ("velocity", 1), "particles": ("particles", 0)}
FORCE: dict[str, Place] = {"force_x": ("force", 0), "force_y": ("force", 1)}
_TASK_OF_PARAMETERS = {
    frozenset({"beta"}): "advection",
    frozenset({"nu"}): "burgers",
    frozenset({"nu", "rho"}): "reaction_diffusion",
}
_TRANSIENT = (
    "published Darcy targets are not steady: each is the frame at t = 1.75 of a transient "
    "whose random start is not stored"
)


def cfd_fields(dimension: int) -> tuple[str, ...]:
    """The fields of a CFD file, in the order of publications."""
    return ("density", "pressure", *VELOCITY[:dimension])


def tensor_places(channels: Iterable[str], static: Iterable[str]) -> tuple[list[Place], list[Place]]:
    return [("tensor", None) for _ in channels], [("nu", None) for _ in static]


def cfd_places(channels: Iterable[str], static: Iterable[str]) -> tuple[list[Place], list[Place]]:
    return [(name, None) for name in channels], []


def incompressible_places(channels: Iterable[str], static: Iterable[str]) -> tuple[list[Place], list[Place]]:
    return [INCOMPRESSIBLE[name] for name in channels], [FORCE[name] for name in static]


class ArraysFile(PDEBenchFile):
    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        channels, static = self.places(*self.stored)
        with open_file(self.path) as file:
            values = _fields(file, channels, rows, frames)
            fixed = dict(zip(self.header.static, _fields(file, static, rows), strict=True))
        return batch_from(self.header, rows, frames, np.stack(values, -1), fixed)

    @staticmethod
    @abstractmethod
    def places(channels: Iterable[str], static: Iterable[str]) -> tuple[list[Place], list[Place]]:
        """Where channels and static fields of these names are stored."""

    def understood(self, file: h5py.File, known: TaskSpec) -> dict[str, Any]:
        path, space = self.path, self.shape[2:]
        axes = []
        for axis, n in zip(AXES[: len(space)], space, strict=True):
            stored = coordinate(file, f"{axis}-coordinate", path)
            if len(stored) != n:
                raise UserError(f"{path}: '{axis}-coordinate' has {len(stored)} entries, its fields {n} along {axis}")
            axes.append(centred_axis(stored))
        grid = Grid(tuple(positions for positions, _ in axes), tuple(extent for _, extent in axes))
        return {"grid": grid, "times": self.times_of(file), "parameters": self.parameters_of(file, known)}

    def times_of(self, file: h5py.File) -> Float[Tensor, " T"]:
        """The first T entries of one too many."""
        stored, frames = coordinate(file, "t-coordinate", self.path), self.shape[1]
        if len(stored) not in (frames, frames + 1):
            raise UserError(
                f"{self.path}: 't-coordinate' has {len(stored)} entries for {frames} frames; give one a frame"
            )
        return even_times(stored[:frames])

    def parameters_of(self, file: h5py.File, known: TaskSpec) -> dict[str, float]:
        return published.needed(published.parameters_of(self.path, dict(file.attrs)), known, self.path)

    def check_shapes(self, file: h5py.File, first: str, expected: Mapping[str, tuple[int, ...]]) -> None:
        for key, wanted in expected.items():
            if (shape := array(file, key, self.path).shape) != wanted:
                raise UserError(f"{self.path}: {key!r} has shape {shape}, {first!r} says {wanted}; they must agree")


def _fields(
    file: h5py.File, places: list[Place], rows: Int[np.ndarray, " B"], frames: slice | None = None
) -> list[np.ndarray]:
    """The fields at these places; an array of several is read once."""
    arrays = {key: read_rows(file[key], rows, frames) for key in dict(places)}
    return [arrays[key] if part is None else arrays[key][..., part] for key, part in places]


class PDEBenchWriter(HDF5Writer):
    """Makes the arrays that its channels and static fields belong to, and fills them."""

    places: ClassVar[Any]  # of the reader of the same layout

    def arrays(self) -> dict[str, tuple[list[tuple[int | None, str]], tuple[int, ...]]]:
        """Every array: the components it holds, in their order, and the frames of its rows."""
        header = self.header
        found: dict[str, tuple[list[tuple[int | None, str]], tuple[int, ...]]] = {}
        channels, static = self.places(header.channels, header.static)
        frames = (len(header.times),)
        for names, places, lead in ((header.channels, channels, frames), (header.static, static, ())):
            for name, (key, part) in zip(names, places, strict=True):
                found.setdefault(key, ([], lead))[0].append((part, name))
        return {key: (sorted(parts), lead) for key, (parts, lead) in found.items()}

    def refuse(self, path: Path) -> None:
        """Root attributes have one value a file."""
        for name, value in self.header.parameters.items():
            if value is None:
                raise UserError(
                    f"{path}: {name} differs between trajectories, and this layout has one value a file; "
                    "write one file a value, or choose another layout"
                )

    def lay_out(self) -> None:
        for key, (parts, lead) in self.arrays().items():
            components = () if parts[0][0] is None else (len(parts),)
            self.array(key, (self.count, *lead, *self.header.grid.shape, *components))
        self.file.attrs.update(published.parameter_attributes(self.header))
        self.write_coordinates()

    def write_coordinates(self) -> None:
        """As published; the exact values are in the attribute `ups`."""
        header = self.header
        for axis, positions in zip(AXES[: header.grid.dimension], header.grid.positions, strict=True):
            self.file.create_dataset(f"{axis}-coordinate", data=rounded(positions))
        if not header.static:
            extra = 2 * header.times[-1:] - header.times[-2:-1] if len(header.times) > 1 else header.times + 1
            self.file.create_dataset("t-coordinate", data=rounded(torch.cat((header.times, extra))))

    def put(self, start: int, batch: Batch) -> None:
        fields = dict(zip(self.header.channels, batch.values.unbind(-1), strict=True)) | dict(batch.static)
        for key, (parts, _) in self.arrays().items():
            held = [fields[name] for _, name in parts]
            self.fill(key, start, held[0] if parts[0][0] is None else torch.stack(held, -1))


class TensorFile(ArraysFile):
    places = staticmethod(tensor_places)

    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        shape = array(file, "tensor", self.path).shape
        if len(shape) == 4 and "nu" not in file:
            raise UserError(
                f"{self.path}: 'tensor' has shape {shape} and there is no 'nu': it is not Darcy flow; if the axes are "
                "(devices, samples, times, x), merge the first two"
            )
        if len(shape) not in (3, 4) or 0 in shape or (len(shape) == 4 and shape[1] != 1):
            raise UserError(
                f"{self.path}: 'tensor' has shape {shape}; a PDEBench file has (samples, times, x) or, for Darcy, "
                "(samples, 1, x, y)"
            )
        darcy = len(shape) == 4
        self.check_shapes(file, "tensor", {"nu": (shape[0], *shape[2:])} if darcy else {})
        self.stored = (("u",), ("nu",) if darcy else ())
        return "tensor", shape

    def task_name(self, file: h5py.File) -> str:
        said = frozenset(published.parameters_of(self.path, dict(file.attrs)))
        name = "darcy" if self.stored[1] else _TASK_OF_PARAMETERS.get(said)
        if name is None:
            raise UserError(
                f"{self.path}: neither attributes nor file name say which task this is; say it (--task, or task=)"
            )
        return name

    def times_of(self, file: h5py.File) -> Float[Tensor, " T"]:
        return torch.zeros(1, dtype=torch.float64) if self.stored[1] else super().times_of(file)

    def understood(self, file: h5py.File, known: TaskSpec) -> dict[str, Any]:
        return super().understood(file, known) | {"notes": {"target": _TRANSIENT} if known.name == "darcy" else {}}


class TensorWriter(PDEBenchWriter):
    """Writes one field: transient in one dimension, or steady in two with one static field."""

    keeps: ClassVar[tuple[str, ...]] = ("static",)
    places = staticmethod(tensor_places)

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
        super().refuse(path)
        check_axes(header, path)


class CFDFile(ArraysFile):
    places = staticmethod(cfd_places)

    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        """The number of velocity components says the dimension, not the arrays' rank."""
        shape = array(file, "density", self.path).shape
        dimension = sum(name in file for name in VELOCITY)
        if len(shape) != dimension + 2 or 0 in shape:
            axes = ", ".join(("samples", "times", "x", "y", "z")[: dimension + 2])
            raise UserError(
                f"{self.path}: 'density' has shape {shape}, but {dimension} velocity components say ({axes}); "
                "if the axes are (devices, samples, …), merge the first two"
            )
        self.stored = (cfd_fields(dimension), ())
        self.check_shapes(file, "density", {name: shape for name in self.stored[0]})
        return "density", shape

    def task_name(self, file: h5py.File) -> str:
        return f"compressible_{self.dimension}d"

    def understood(self, file: h5py.File, known: TaskSpec) -> dict[str, Any]:
        return super().understood(file, known) | {"boundary": published.boundary_of(self.path, known)}


class CFDWriter(PDEBenchWriter):
    """Writes density, pressure and velocity in one, two or three dimensions."""

    keeps: ClassVar[tuple[str, ...]] = ()
    places = staticmethod(cfd_places)

    def refuse(self, path: Path) -> None:
        expected = cfd_fields(self.header.grid.dimension)
        if set(self.header.channels) != set(expected) or len(self.header.channels) != len(expected):
            raise UserError(
                f"{path}: a CFD file holds {', '.join(expected)}, not {', '.join(self.header.channels)}; "
                "choose another layout"
            )
        super().refuse(path)
        check_axes(self.header, path)


class IncompressibleFile(ArraysFile):
    places = staticmethod(incompressible_places)

    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        velocity = array(file, "velocity", self.path).shape
        if len(velocity) != 5 or velocity[-1] != 2 or 0 in velocity:
            raise UserError(f"{self.path}: 'velocity' has shape {velocity}; it must be (samples, times, x, y, 2)")
        samples, times, *space = velocity[:4]
        particles, force = (samples, times, *space, 1), (samples, *space, 2)
        self.check_shapes(file, "velocity", {"particles": particles, "force": force, "t": (samples, times)})
        self.stored = (tuple(INCOMPRESSIBLE), tuple(FORCE))
        return "velocity", velocity[:4]

    def task_name(self, file: h5py.File) -> str:
        return "incompressible"

    def times_of(self, file: h5py.File) -> Float[Tensor, " T"]:
        stored = array(file, "t", self.path)[()].astype(np.float64)
        if not np.isfinite(stored).all() or not (np.diff(stored) > 0).all():
            raise UserError(
                f"{self.path}: 't' must be finite and increase along each row; fetch or make the file again"
            )
        if (stored != stored[0]).any():
            raise UserError(
                f"{self.path}: the rows of 't' differ; put trajectories of other times into files of their own"
            )
        return even_times(stored[0])

    def understood(self, file: h5py.File, known: TaskSpec) -> dict[str, Any]:
        sides = ", ".join(dict.fromkeys(side.kind for pair in known.boundary.sides for side in pair))
        return {
            "grid": Grid.cell_centred(self.shape[2:]),
            "times": self.times_of(file),
            "parameters": self.parameters_of(file, known),
            "notes": {"positions assumed": "cell_centred on the unit square", "sides assumed": sides},
        }


class IncompressibleWriter(PDEBenchWriter):
    """Writes Vx, Vy and particles with their static force, in two dimensions."""

    keeps: ClassVar[tuple[str, ...]] = ("static",)
    places = staticmethod(incompressible_places)

    def refuse(self, path: Path) -> None:
        header = self.header
        if header.grid.dimension != 2 or sorted(header.channels) != sorted(INCOMPRESSIBLE):
            raise UserError(
                f"{path}: an incompressible file holds {', '.join(INCOMPRESSIBLE)} in two dimensions, not "
                f"{', '.join(header.channels)} in {header.grid.dimension}; choose another layout"
            )
        if sorted(header.static) != sorted(FORCE):
            raise UserError(
                f"{path}: an incompressible file holds the static fields {', '.join(FORCE)}, not "
                f"{', '.join(header.static) or 'none'}; choose another layout"
            )
        super().refuse(path)

    def write_coordinates(self) -> None:
        self.file.create_dataset("t", data=np.tile(rounded(self.header.times), (self.count, 1)))
        self.file.attrs["latestIndex"] = self.count
