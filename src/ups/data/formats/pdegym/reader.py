"""PDEGym files (netCDF4, which is HDF5), read lazily.

    velocity  (N, T, 2 or 3, X, Y)               incompressible flow: velocity_x, velocity_y, tracer
    data      (N, T, 4 or 5, X, Y)               compressible flow: density, velocity_x, velocity_y, pressure, tracer
    solution  (N, T, 2, X, Y)                    forced flow (FNS-KF)
    solution  (N, T, 5, X, Y)                    Richtmyer-Meshkov (CE-RM), to t = 2
    solution  (N, T, 6, X, Y)                    Rayleigh-Taylor (GCE-RT), to t = 5, with the gravitational potential
    solution  (N, T, X, Y)                       Allen-Cahn (ACE), to t = 2e-4
    solution  (N, T, X, Y), c (N, X, Y)          waves in a medium of speed c
    solution  (N, X, Y), source (N, X, Y)        Poisson's equation
    solution  (N, 2, X, Y)                       the density around an airfoil (SE-AF): its shape, the density
    Sample_i/ a (X, Y), bc (), u (X, Y)          Helmholtz's equation with the value bc on the walls

As far as is known here, files hold neither times nor positions nor what holds on the sides. Assumed are frames
equally spaced from t = 0 to 1 unless said, cell centres of the unit square, and sides that are periodic for flows and
ACE, have a value for Poisson and Helmholtz, and are open for waves (which are absorbed there), GCE-RT and SE-AF. The
header's notes say what was assumed; the options `convention` and `boundary` say it otherwise. The data's licence is
CC-BY-NC-4.0: not for commercial use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
import torch
from jaxtyping import Int

from ups.data.formats.description import check_agrees, described
from ups.data.formats.hdf5 import array, open_file, precision, read_part, read_rows
from ups.data.formats.reading import LazyFile, batch_from, named
from ups.equations.base import frame_times
from ups.errors import UserError
from ups.fields import Batch, Boundary, Grid, Header, Kind, TaskSpec

LICENCE = "CC-BY-NC-4.0"
FLUID = ("density", "velocity_x", "velocity_y", "pressure", "tracer", "potential")
_CHUNK = re.compile(r"(velocity|data|solution|c|source)_(\d+)\.nc")
_SAMPLE = "Sample_"


@dataclass(frozen=True)
class Family:
    """One of the kinds of files: its array of values, the static field beside it, and what is assumed of it.

    `channels` are named by their number where an axis of them is stored.
    """

    variable: str
    channels: tuple[str, ...] = ("u",)
    axis: bool = False
    static: str | None = None
    end: float | None = 1.0
    kind: Kind = "periodic"


FLOW = Family("velocity", ("velocity_x", "velocity_y", "tracer"), axis=True)
EULER = Family("data", FLUID[:5], axis=True)
FORCED = Family("solution", FLUID[1:3], axis=True)
MESHKOV = Family("solution", FLUID[:5], axis=True, end=2.0)
TAYLOR = Family("solution", FLUID, axis=True, end=5.0, kind="open")
ALLEN_CAHN = Family("solution", end=2e-4)
WAVE = Family("solution", static="c", kind="open")
POISSON = Family("solution", static="source", end=None, kind="value")
AIRFOIL = Family("solution", ("density",), static="airfoil", end=None, kind="open")
HELMHOLTZ = Family("u", static="a", end=None, kind="value")


@dataclass(frozen=True)
class ChunkedFiles:
    """An array in one file or, end to end, in several; `shape` is one sample's."""

    name: str
    paths: tuple[Path, ...]
    counts: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, paths: Sequence[Path]) -> ChunkedFiles:
        counts, shapes, dtypes = [], [], []
        for path in paths:
            with open_file(path) as file:
                item = array(file, name, path)
                counts.append(item.shape[0] if item.ndim else 0)
                shapes.append(item.shape[1:])
                dtypes.append(precision(item))
                if 0 in item.shape or len(item.shape) < 3 or (shapes[-1], dtypes[-1]) != (shapes[0], dtypes[0]):
                    raise UserError(f"{path}: {name!r} has shape {item.shape}; samples must be of one shape and type")
        return cls(name, tuple(paths), tuple(counts), shapes[0], dtypes[0])

    def __len__(self) -> int:
        return sum(self.counts)

    def read(self, rows: Int[np.ndarray, " B"], frames: slice | None = None) -> np.ndarray:
        """Each file that has some of the rows is opened once."""
        ends = np.cumsum(self.counts)
        owner = np.searchsorted(ends, rows, side="right")
        found: np.ndarray | None = None
        for number in np.unique(owner) if len(rows) else [0]:
            mine = owner == number
            with open_file(self.paths[number]) as file:
                piece = read_rows(file[self.name], rows[mine] - (ends[number] - self.counts[number]), frames)
            if found is None:
                found = np.empty((len(rows), *piece.shape[1:]), dtype=piece.dtype)
            found[mine] = piece
        assert found is not None
        return found


@dataclass(frozen=True)
class Samples:
    """An array of which each sample lies in a group of its own, `Sample_0`, `Sample_1`, …"""

    name: str
    path: Path
    count: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, name: str, path: Path) -> Samples:
        with open_file(path) as file:
            item = array(file, f"{_SAMPLE}0/{name}", path)
            for number in (0, len(file) - 1):
                if f"{_SAMPLE}{number}" not in file:
                    raise UserError(f"{path}: the group {_SAMPLE}{number} is missing; number them from 0 without gaps")
            return cls(name, path, len(file), item.shape, precision(item))

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Int[np.ndarray, " B"], frames: slice | None = None) -> np.ndarray:
        with open_file(self.path) as file:
            found = [read_part(array(file, f"{_SAMPLE}{row}/{self.name}", self.path), ()) for row in rows]
        for row, sample in zip(rows, found, strict=True):
            if sample.shape != self.shape:
                raise UserError(f"{self.path}: {_SAMPLE}{row}/{self.name} has shape {sample.shape}, not {self.shape}")
        return np.stack(found) if found else np.empty((0, *self.shape), dtype=np.float32)


class GymFile(LazyFile):
    """A PDEGym file, or a folder of its chunks (`velocity_0.nc`, `velocity_1.nc`, …; `c_0.nc`), as a Dataset.

    Arrays are turned to channels last. The task is named after the file unless `task` says. Files do not say what holds
    on the sides: `boundary` does, or a task that is given itself, or it is assumed as published.
    """

    def __init__(
        self,
        path: str | Path,
        task: str | TaskSpec | None = None,
        convention: Literal["cell_centred", "nodal"] = "cell_centred",
        boundary: Kind | None = None,
    ) -> None:
        self.path = Path(path)
        if convention not in ("cell_centred", "nodal"):
            raise UserError(f"{self.path}: convention is {convention!r}; use cell_centred or nodal")
        self._arrays, first = _arrays(self.path)
        with open_file(first) as file:
            known = described(file, first)
        self.family = _recognised(self._arrays, self.path) if known is None else fitting(known, self.path)
        self._values = self._arrays[self.family.variable]
        for name, item in self._arrays.items():
            if len(item) != len(self._values):
                raise UserError(
                    f"{self.path}: {name!r} has {len(item)} samples, {self.family.variable!r} {len(self._values)}; "
                    "they must be as many: fetch the missing chunks"
                )
        if known is None:
            header = _understood(self.family, self._values, self.path)
            make = Grid.cell_centred if convention == "cell_centred" else Grid.nodal
            sides = Boundary.all(boundary, 2) if boundary else header.boundary
            notes = dict(header.notes) | {"positions assumed": f"{convention} on the unit square"}
            if boundary is None and isinstance(task, TaskSpec) and task.dimension == 2:
                sides = task.boundary
            elif boundary is None:
                notes["sides assumed"] = self.family.kind
            known = replace(header, grid=make(header.grid.shape), boundary=sides, notes=notes)
        else:
            check_agrees(self.family.variable, self._values.shape, sample_shape(self.family, known), self.path)
        self.header, self.count = named(known, task), len(self._values)

    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        family, static, parameters, mask = self.family, {}, {}, None
        if family == AIRFOIL:
            both = self._values.read(rows)
            static[self.header.static[0]], values = both[:, 0], both[:, 1, None, ..., None][:, frames]
            mask = torch.from_numpy(both[:, 0] < 0.5)
        elif family.end is None:
            values = self._values.read(rows)[:, None, ..., None][:, frames]
        else:
            values = self._values.read(rows, frames)
            values = np.ascontiguousarray(np.moveaxis(values, 2, -1)) if family.axis else values[..., None]
        if family.static in self._arrays:
            static[self.header.static[0]] = self._arrays[family.static].read(rows)
        if "bc" in self._arrays:
            parameters["bc"] = torch.from_numpy(self._arrays["bc"].read(rows).reshape(-1).astype(np.float64))
        return replace(batch_from(self.header, rows, frames, values, static, parameters), mask=mask)


def holds_chunks(folder: Path) -> bool:
    return any(_CHUNK.fullmatch(path.name) for path in folder.iterdir())


def is_gym(file: h5py.File) -> bool:
    """Whether a file holds one of the families; `velocity` of PDEBench has channels last and particles beside it."""
    if f"{_SAMPLE}0" in file:
        return True
    shapes = {name: item.shape for name, item in file.items() if isinstance(item, h5py.Dataset)}
    if "tensor" in shapes or "particles" in shapes:
        return False
    return "solution" in shapes or any(len(shapes.get(name, ())) == 5 for name in ("velocity", "data"))


def fitting(header: Header, path: Path) -> Family:
    """The family whose files hold such data, by what they consist of; names are kept by our description."""
    channels, static = header.channels, len(header.static)
    if header.grid.dimension != 2 or static > 1 or (static and len(channels) > 1):
        raise UserError(
            f"{path}: PDEGym's files hold fields in two dimensions, and a static field only beside a single channel; "
            "choose another layout"
        )
    if header.masked:
        if not (header.steady and static):
            raise UserError(f"{path}: PDEGym's only files with a mask are steady with a static shape; drop the mask")
        return AIRFOIL
    if static and header.steady:
        return HELMHOLTZ if "bc" in header.parameters else POISSON
    if len(channels) == 1:
        return WAVE if static else ALLEN_CAHN
    if channels in (FLOW.channels, FLOW.channels[:2]):
        return FLOW
    return EULER if channels in (EULER.channels, EULER.channels[:4]) else FORCED


def sample_shape(family: Family, header: Header) -> tuple[int, ...]:
    if family == AIRFOIL:
        return (2, *header.grid.shape)
    frames = () if family.end is None else (len(header.times),)
    return (*frames, *((len(header.channels),) if family.axis else ()), *header.grid.shape)


def _arrays(path: Path) -> tuple[dict[str, ChunkedFiles | Samples], Path]:
    """Every array by its name, and the file that may describe them."""
    if path.is_dir():
        chunks = [found for entry in path.iterdir() if (found := _CHUNK.fullmatch(entry.name))]
        chunks.sort(key=lambda found: int(found[2]))
        if not chunks:
            raise UserError(f"{path} holds no chunks such as velocity_0.nc; check the path")
        names = sorted({found[1] for found in chunks})
        places = {name: [path / found[0] for found in chunks if found[1] == name] for name in names}
        for name in names:
            numbers = [int(found[2]) for found in chunks if found[1] == name]
            if numbers != list(range(len(numbers))):
                missing = min(set(range(len(numbers))) - set(numbers), default=len(numbers))
                raise UserError(
                    f"{path}: its chunks of {name!r} are numbered {', '.join(map(str, numbers))}, not from 0 without "
                    f"gaps; fetch {name}_{missing}.nc"
                )
        return {name: ChunkedFiles.of(name, files) for name, files in places.items()}, path / chunks[0][0]
    with open_file(path) as file:
        names = [name for name in ("velocity", "data", "solution", "c", "source") if name in file]
        samples = f"{_SAMPLE}0" in file
    if samples:
        return {name: Samples.of(name, path) for name in ("u", "a", "bc")}, path
    return {name: ChunkedFiles.of(name, [path]) for name in names}, path


def _recognised(arrays: dict[str, ChunkedFiles | Samples], path: Path) -> Family:
    shapes = {name: item.shape for name, item in arrays.items()}
    names, solution = set(shapes), shapes.get("solution", ())
    if names == {"u", "a", "bc"}:
        return HELMHOLTZ
    if names == {"velocity"} and len(shapes["velocity"]) == 4 and shapes["velocity"][1] in (2, 3):
        return FLOW
    if names == {"data"} and len(shapes["data"]) == 4 and shapes["data"][1] in (4, 5):
        return EULER
    if names == {"solution"} and len(solution) == 4 and solution[1] in (2, 5, 6):
        return {2: FORCED, 5: MESHKOV, 6: TAYLOR}[solution[1]]
    if names == {"solution"} and len(solution) == 3:
        return AIRFOIL if solution[0] == 2 else ALLEN_CAHN
    if names == {"solution", "c"} and len(solution) == 3 and shapes["c"] == solution[1:]:
        return WAVE
    if names == {"solution", "source"} and len(solution) == 2 and shapes["source"] == solution:
        return POISSON
    held = ", ".join(f"{name} {('N', *shape)}".replace("'", "") for name, shape in shapes.items()) or "none of them"
    raise UserError(f"{path} holds {held}; no family of PDEGym has such arrays: check their axes (samples, times, …)")


def _understood(family: Family, values: ChunkedFiles | Samples, path: Path) -> Header:
    """The header of a file that others wrote: what its arrays tell, and what is assumed of their family."""
    frames = 1 if family.end is None else values.shape[0]
    times = torch.zeros(1, dtype=torch.float64)
    notes = {"forcing": "0.1 sin(2π(x + y)), not stored"} if family == FORCED else {}
    if family.end is not None:
        notes["times assumed"] = f"equally spaced from 0 to {family.end:g}"
    return Header(
        task=path.stem,
        channels=family.channels[: values.shape[1]] if family.axis else family.channels,
        grid=Grid.cell_centred(values.shape[-2:]),
        times=times if family.end is None or frames == 1 else frame_times(frames, family.end),
        boundary=Boundary.all(family.kind, 2),
        parameters={"bc": None} if family == HELMHOLTZ else {},
        static=(family.static,) if family.static else (),
        masked=family == AIRFOIL,
        dtype=values.dtype,
        licence=LICENCE,
        notes=notes,
        test_at="last",
    )
