"""The Well's HDF5 files, read lazily.

    root attributes      dataset_name, grid_type, n_spatial_dims, n_trajectories B, simulation_parameters and one a name
    dimensions           time (T) or (B, T); x (X), y (Y), … named by the attribute spatial_dims
    scalars              (), (B), (T) or (B, T) each
    t0, t1, t2_fields    (B, T, X, Y, …) and, for vectors and tensors, one or two axes of components last
    boundary_conditions  a group each: bc_type WALL, OPEN or PERIODIC, associated_dims, mask, values

A field says by attributes along which of B, T, X, Y, … it varies. What varies in time is a channel (`velocity_x`,
`velocity_y` for a vector `velocity`; scalars of time are forcings), what does not is a static field. Files that ups
wrote also carry its own description, which keeps what the layout has no place for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.formats.description import described
from ups.data.formats.hdf5 import (
    array,
    axis_positions,
    coordinate,
    even_times,
    open_file,
    read_part,
    read_rows,
    stored_type,
)
from ups.data.formats.reading import LazyFile, named
from ups.data.formats.well.boundary import InnerWall, inner_walls, names_of, read_boundary
from ups.errors import UserError
from ups.fields import AXES, Batch, Boundary, Grid, Header, TaskSpec

GROUPS = ("dimensions", "scalars", "t0_fields", "t1_fields", "t2_fields", "boundary_conditions")
_EXTRA = ("additional_information",)


@dataclass(frozen=True)
class Stored:
    """One stored array: where it lies, what its components are called, and along which axes it varies."""

    place: str
    names: tuple[str, ...]
    samples: bool
    times: bool
    dims: tuple[bool, ...]
    order: int = 0

    @property
    def key(self) -> str:
        return self.place.rpartition("/")[2]

    def shapes(self, count: int, frames: int, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The two shapes in use: an axis along which the field is constant is left out, or kept with one entry."""
        lead = (count,) * self.samples + (frames,) * self.times
        tensor = (len(shape),) * self.order
        left_out = tuple(n for n, varies in zip(shape, self.dims, strict=True) if varies)
        kept = tuple(n if varies else 1 for n, varies in zip(shape, self.dims, strict=True))
        return (*lead, *left_out, *tensor), (*lead, *kept, *tensor)

    def read(self, file: h5py.File, rows: Int[np.ndarray, " B"], frames: slice, shape: Sequence[int]) -> np.ndarray:
        """(B, *space, K), or (B, T, *space, K) of what varies in time, reading only what is asked for."""
        data: Any = file[self.place]
        if self.samples:
            values = read_rows(data, rows, frames if self.times else None)
        else:
            values = read_part(data, (frames,) if self.times else ())[None]
        lead = 2 if self.times else 1
        kept = data.ndim == self.samples + self.times + len(shape) + self.order
        for axis, varies in enumerate(self.dims):
            if not varies and not kept:
                values = np.expand_dims(values, lead + axis)
        leading = (len(rows), values.shape[1]) if self.times else (len(rows),)
        values = np.broadcast_to(values, (*leading, *shape, *values.shape[lead + len(shape) :]))
        return values.reshape(*leading, *shape, len(self.names))


def grouped(channels: Sequence[str], dimension: int) -> list[tuple[str, tuple[str, ...]]]:
    """Channels as the layout's fields: (name, its channels), scalars first, then vectors.

    `velocity_x`, `velocity_y` make the vector `velocity`, `Vx`, `Vy` the vector `V`, where every axis has its component
    and no other channel has the vector's name.
    """
    scalars: list[tuple[str, tuple[str, ...]]] = []
    vectors: dict[str, tuple[str, ...]] = {}
    for channel in channels:
        for end in (f"_{AXES[0]}", AXES[0]):
            stem = channel.removesuffix(end)
            parts = tuple(stem + end.replace(AXES[0], axis) for axis in AXES[:dimension])
            known = end.startswith("_") or stem == "V"
            if stem and stem != channel and known and set(parts) <= set(channels) and stem not in channels:
                vectors.setdefault(stem, parts)
    inside = {part for parts in vectors.values() for part in parts}
    scalars = [(channel, (channel,)) for channel in channels if channel not in inside]
    return scalars + list(vectors.items())


class WellFile(LazyFile):
    """A file of The Well as a Dataset.

    Walls become `value` where the file stores a value for every channel, else `reflecting`; a side the file does not
    speak of is open. Walls inside the domain become the mask, true where the field lives. Grids are cartesian and the
    same for all trajectories; times may differ, and `own_times` are then those of each.
    """

    def __init__(self, path: str | Path, task: str | TaskSpec | None = None) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            _check_groups(file, self.path)
            known = described(file, self.path)
            dims = names_of(file["dimensions"].attrs, "spatial_dims", f"{self.path}: dimensions")
            self.count = _count(file, dims, self.path)
            shape = tuple(len(coordinate(_group(file, "dimensions"), dim, self.path)) for dim in dims)
            times = _times(file, self.count, self.path)
            self._parameters = {} if known else _attributes(file, self.path)
            self._scalars = list(_scalars(file, self.count, times.shape[-1], self.path))
            self._walls: list[InnerWall] = []
            fields = [
                stored
                for order in range(3)
                for stored in _fields(file, order, dims, self.count, times, shape, self.path)
            ]
            boundary = read_boundary(_group(file, "boundary_conditions"), dims, _moving(fields), self.path)
            if known is None:
                known = self._read_header(file, dims, fields, times, boundary)
            else:
                vectors = dict(grouped(known.channels, len(dims)))
                fields = [replace(f, names=vectors[f.key]) if f.order and f.key in vectors else f for f in fields]
            self.header = replace(named(known, task), own_times=times if times.dim() == 2 else None)
            self._check_described(shape, fields, times)
        place = {name: number for number, name in enumerate(self.channels)}
        self._channels = [(f, [place[name] for name in f.names]) for f in fields if all(n in place for n in f.names)]
        self._fields = {name: stored for stored in fields for name in stored.names}

    def _read_header(
        self, file: h5py.File, dims: Sequence[str], fields: list[Stored], times: Tensor, boundary: Boundary
    ) -> Header:
        channels = _moving(fields)
        static = tuple(name for stored in fields if not stored.times for name in stored.names)
        if not channels:
            raise UserError(f"{self.path}: no field varies in time, so there is nothing to learn; use another file")
        axes = [
            axis_positions(coordinate(_group(file, "dimensions"), dim, self.path), periodic)
            for dim, periodic in zip(dims, boundary.periodic, strict=True)
        ]
        shape = tuple(len(positions) for positions, _ in axes)
        self._walls = inner_walls(_group(file, "boundary_conditions"), dims, shape, self.count, self.path)
        parameters: dict[str, float | None] = dict(self._parameters)
        for stored in self._scalars:
            if not stored.times:
                value = np.asarray(array(file, stored.place, self.path)[()], dtype=np.float64)
                parameters[stored.names[0]] = (
                    None if stored.samples and len(set(value.flat)) > 1 else float(value.flat[0])
                )
        dtypes = {array(file, stored.place, self.path).dtype for stored in fields}
        return Header(
            task=str(file.attrs.get("dataset_name", "")) or self.path.stem,
            channels=channels,
            grid=Grid(tuple(positions for positions, _ in axes), tuple(extent for _, extent in axes)),
            times=times if times.dim() == 1 else times[0],
            boundary=boundary,
            parameters=parameters,
            static=static,
            forcings={stored.names[0]: True for stored in self._scalars if stored.times},
            masked=bool(self._walls),
            dtype=torch.float64 if np.result_type(*dtypes) == np.float64 else torch.float32,
            licence=str(file.attrs.get("licence", "")),
        )

    def _check_described(self, shape: tuple[int, ...], fields: list[Stored], times: Tensor) -> None:
        header, held = self.header, {name for stored in fields for name in stored.names}
        held |= {stored.names[0] for stored in self._scalars}
        wanted = {*header.channels, *header.static, *header.forcings}
        for what, here, said in (
            ("points", shape, header.grid.shape),
            ("frames", times.shape[-1], len(header.times)),
            ("fields", sorted(wanted & held), sorted(wanted)),
        ):
            if here != said:
                raise UserError(
                    f"{self.path}: holds {what} {here}, but its attribute 'ups' says {said}; "
                    "remove the attribute or make the file anew"
                )

    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        shape = self.grid.shape
        own = self.header.own_times
        times = self.times[frames].expand(len(rows), -1) if own is None else own[rows][:, frames]
        with open_file(self.path) as file:
            values = np.empty(
                (len(rows), times.shape[1], *shape, len(self.channels)), dtype=stored_type(self.header.dtype)
            )
            for stored, places in self._channels:
                parts = stored.read(file, rows, frames, shape)
                for part, place in enumerate(places):
                    values[..., place] = parts[..., part]
            fixed = {
                name: self._field(file, name, rows, frames)
                for name in (*self.header.static, *self.header.forcings)
                if name in self._fields
            }
            parameters = {name: np.full(len(rows), value) for name, value in self._parameters.items()}
            for stored in self._scalars:
                if stored.times:
                    series = stored.read(file, rows, frames, ())[..., 0]
                    fixed[stored.names[0]] = np.broadcast_to(
                        series.reshape(*series.shape, *(1,) * len(shape)), (*series.shape, *shape)
                    )
                else:
                    parameters[stored.names[0]] = stored.read(file, rows, frames, ())[..., 0].astype(np.float64)
            mask = self._mask(file, rows, frames)
        tensors = {name: torch.from_numpy(np.array(field)) for name, field in fixed.items()}
        return Batch(
            task=self.task,
            values=torch.from_numpy(values),
            times=times,
            grid=self.grid,
            boundary=self.boundary,
            parameters={name: torch.from_numpy(value) for name, value in parameters.items()},
            static={name: tensors[name] for name in self.header.static},
            ids=torch.from_numpy(rows),
            forcings={name: tensors[name] for name in self.header.forcings},
            mask=mask,
        )

    def _field(self, file: h5py.File, name: str, rows: np.ndarray, frames: slice) -> np.ndarray:
        stored = self._fields[name]
        return stored.read(file, rows, frames, self.grid.shape)[..., stored.names.index(name)]

    def _mask(self, file: h5py.File, rows: np.ndarray, frames: slice) -> Tensor | None:
        if not self.header.masked:
            return None
        if not self._walls:
            return torch.from_numpy(self._field(file, "mask", rows, frames) > 0.5)
        free = np.ones((len(rows), *self.grid.shape), dtype=bool)
        for wall in self._walls:
            free &= ~wall.read(file, rows, self.grid.dimension)
        return torch.from_numpy(free)


def _group(file: h5py.File | h5py.Group, name: str) -> h5py.Group:
    group = file[name]
    assert isinstance(group, h5py.Group)
    return group


def is_well(file: h5py.File) -> bool:
    return "dimensions" in file and any(f"t{order}_fields" in file for order in range(3))


def _check_groups(file: h5py.File, path: Path) -> None:
    for name in GROUPS:
        if not isinstance(file.get(name), h5py.Group):
            raise UserError(
                f"{path}: a file of The Well has a group {name!r}, this one does not (it holds "
                f"{', '.join(sorted(file)[:8]) or 'nothing'}); add the group as The Well's format describes it, "
                "or fetch the file again"
            )
    for name in file:
        if name not in (*GROUPS, *_EXTRA):
            raise UserError(f"{path}: the group {name!r} is not part of The Well's format; remove it or rename it")
    kind = str(file.attrs.get("grid_type", "cartesian"))
    if kind != "cartesian":
        raise UserError(
            f"{path}: grid_type is {kind!r}; only cartesian grids are held, so interpolate the fields onto one"
        )


def _count(file: h5py.File, dims: Sequence[str], path: Path) -> int:
    try:
        numbers = [np.asarray(file.attrs[key]).item() for key in ("n_trajectories", "n_spatial_dims")]
        count, dimension = (int(number) for number in numbers)
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{path}: the attributes n_trajectories and n_spatial_dims must be whole numbers; fetch the file again"
        ) from None
    if dimension != len(dims) or not 1 <= dimension <= 3 or count < 1:
        raise UserError(
            f"{path}: says {count} trajectories in {dimension} dimensions with axes {', '.join(dims) or 'none'}; "
            "give at least one trajectory and an axis a dimension, at most three"
        )
    return count


def _flag(item: h5py.Dataset | h5py.Group, key: str) -> bool:
    return bool(item.attrs.get(key, False))


def _times(file: h5py.File, count: int, path: Path) -> Float[Tensor, "*B T"]:
    stored = array(_group(file, "dimensions"), "time", path)[()].astype(np.float64)
    rows = stored.reshape(-1, stored.shape[-1]) if stored.ndim in (1, 2) and stored.size else np.full((1, 2), np.nan)
    if not np.isfinite(rows).all() or len(rows) not in (1, count):
        raise UserError(
            f"{path}: 'time' has shape {stored.shape}; it must be finite, increasing times, (T) or (B, T) of {count} "
            "trajectories; mend it, or make the file anew"
        )
    for row, frame in np.argwhere(np.diff(rows, axis=1) <= 0)[:1]:
        whose = f" of trajectory {row}" if len(rows) > 1 else ""
        raise UserError(
            f"{path}: 'time'{whose} goes from {rows[row, frame]:g} to {rows[row, frame + 1]:g} at frame {frame + 1}, "
            "and must be increasing; put the frames in order, or remove those that go back"
        )
    even = torch.stack([even_times(row) for row in rows])
    return even[0] if bool((even == even[0]).all()) else even


def _attributes(file: h5py.File, path: Path) -> dict[str, float]:
    """The simulation's parameters that are one number; others (names of setups) say nothing to a model."""
    found = {}
    for name in (
        names_of(file.attrs, "simulation_parameters", "the file") if "simulation_parameters" in file.attrs else ()
    ):
        value = np.asarray(file.attrs.get(name, ""))
        if value.size == 1 and value.dtype.kind in "fiu":
            found[name] = float(value.reshape(-1)[0])
    return found


def _scalars(file: h5py.File, count: int, frames: int, path: Path) -> Iterator[Stored]:
    for name in names_of(_group(file, "scalars").attrs, "field_names", f"{path}: scalars"):
        item = array(file, f"scalars/{name}", path)
        stored = Stored(item.name or "", (name,), _flag(item, "sample_varying"), _flag(item, "time_varying"), ())
        expected = (count,) * stored.samples + (frames,) * stored.times
        if item.shape != expected and not (expected == () and item.size == 1):
            raise UserError(
                f"{path}: scalar {name!r} has shape {item.shape}, but the trajectories and times of this file say "
                f"{expected}; give it as many values as there are frames, or mend its attributes"
            )
        yield stored


def _fields(
    file: h5py.File, order: int, dims: Sequence[str], count: int, times: Tensor, shape: tuple[int, ...], path: Path
) -> Iterator[Stored]:
    group = _group(file, f"t{order}_fields")
    for name in names_of(group.attrs, "field_names", f"{path}: t{order}_fields"):
        item = array(group, name, path)
        varying = item.attrs.get("dim_varying")
        dim_varying = (
            (True,) * len(dims) if varying is None else tuple(bool(v) for v in np.asarray(varying).reshape(-1))
        )
        if len(dim_varying) != len(dims):
            raise UserError(f"{path}: 'dim_varying' of {name!r} has {len(dim_varying)} entries for {len(dims)} axes")
        ends = ("".join(axes) for axes in itertools.product(dims, repeat=order))
        stored = Stored(
            place=f"t{order}_fields/{name}",
            names=tuple(f"{name}_{end}" if end else name for end in ends),
            samples=_flag(item, "sample_varying"),
            times=_flag(item, "time_varying"),
            dims=dim_varying,
            order=order,
        )
        expected = stored.shapes(count, times.shape[-1], shape)
        if item.shape not in expected:
            raise UserError(
                f"{path}: {stored.place} has shape {item.shape}, but the trajectories, times and axes of this file say "
                f"{expected[0]}; the file is damaged or its attributes are wrong"
            )
        yield stored


def _moving(fields: Sequence[Stored]) -> tuple[str, ...]:
    return tuple(name for stored in fields if stored.times for name in stored.names)
