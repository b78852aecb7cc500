"""Write The Well's HDF5 files, as its own package reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import h5py
import numpy as np
import torch
from torch import Tensor

from ups.data.description import to_json
from ups.data.hdf5 import WholeFile, open_file
from ups.data.header import Header
from ups.data.well import WellFile, grouped
from ups.data.well_boundary import set_names, write_boundary
from ups.errors import UserError
from ups.fields import AXES, Batch

_TAKEN = ("dataset_name", "grid_type", "n_spatial_dims", "n_trajectories", "simulation_parameters", "ups", "licence")


class WellWriter:
    """One file of The Well, written piece by piece.

    Channels that are components of a vector (`velocity_x`, `velocity_y`) are stored as one t1 field. Static fields and
    forcings are t0 fields that vary with the sample, a mask is the t0 field `mask` (1 where the field lives), and every
    parameter is a scalar. Conditions with values (`value`) are stored as walls with values; `flux`, `robin` and
    `reflecting` as plain walls, which is all the format knows. The attribute `ups` keeps the rest for our reader.
    """

    def __init__(self, path: Path, header: Header, count: int) -> None:
        self.path, self.header, self.count = path, header, count
        _check_names(path, header)
        self._fields = grouped(header.channels, header.grid.dimension)
        self._whole = WholeFile(path)
        self._written = 0
        self._times = np.empty((count, len(header.times)))
        try:
            self._begin(self._whole.file)
        except BaseException as error:
            self._whole.__exit__(type(error), error, None)
            raise

    def _begin(self, file: h5py.File) -> None:
        header, shape = self.header, self.header.grid.shape
        constant = {name: value for name, value in header.parameters.items() if value is not None}
        file.attrs["dataset_name"] = header.task
        file.attrs["grid_type"] = "cartesian"
        file.attrs["n_spatial_dims"] = len(shape)
        file.attrs["n_trajectories"] = self.count
        file.attrs["licence"] = header.licence
        file.attrs["ups"] = to_json(header)
        set_names(file, "simulation_parameters", list(constant))
        for name, value in constant.items():
            file.attrs[name] = float(value)

        dimensions = file.create_group("dimensions")
        set_names(dimensions, "spatial_dims", AXES[: len(shape)])
        for axis, positions in zip(AXES[: len(shape)], header.grid.positions, strict=True):
            item = dimensions.create_dataset(axis, data=self._increasing(positions.cpu().numpy()))
            item.attrs["sample_varying"] = False
            item.attrs["time_varying"] = False

        scalars = file.create_group("scalars")
        set_names(scalars, "field_names", list(header.parameters))
        for name, value in header.parameters.items():
            item = scalars.create_dataset(name, (self.count,) if value is None else (), dtype="<f8", data=value)
            item.attrs["sample_varying"] = value is None
            item.attrs["time_varying"] = False

        groups = [file.create_group(f"t{order}_fields") for order in range(3)]
        names: list[list[str]] = [[], [], []]
        for name, order, varies in self._stored():
            tensor = (len(shape),) * order
            frames = (len(header.times),) if varies else ()
            item = groups[order].create_dataset(name, (self.count, *frames, *shape, *tensor), dtype=self._dtype)
            item.attrs["dim_varying"] = [True] * len(shape)
            item.attrs["sample_varying"] = True
            item.attrs["time_varying"] = varies
            names[order].append(name)
        for group, listed in zip(groups, names, strict=True):
            set_names(group, "field_names", listed)
        write_boundary(file.create_group("boundary_conditions"), header.boundary, self._fields, header.channels, shape)

    @property
    def _dtype(self) -> str:
        return "<f8" if self.header.dtype == torch.float64 else "<f4"

    def _increasing(self, values: np.ndarray) -> np.ndarray:
        """In the fields' precision, as published, unless neighbours would become equal."""
        rounded = values.astype(self._dtype)
        return rounded if (np.diff(rounded) > 0).all() else values

    def _stored(self) -> Iterator[tuple[str, int, bool]]:
        """Every field: its name, tensor order, and whether it varies in time."""
        for name, parts in self._fields:
            yield name, 0 if parts == (name,) else 1, True
        for name in self.header.static:
            yield name, 0, False
        for name, varies in self.header.forcings.items():
            yield name, 0, varies
        if self.header.masked:
            yield "mask", 0, False

    def write(self, batch: Batch) -> None:
        """The next trajectories."""
        start, stop = self._written, self._written + len(batch)
        if stop > self.count:
            raise UserError(f"{self.path}: was begun for {self.count} trajectories, but more are written")
        file, channels = self._whole.file, self.header.channels
        for name, parts in self._fields:
            if parts == (name,):
                self._put(f"t0_fields/{name}", start, batch.values[..., channels.index(name)])
            else:
                self._put(f"t1_fields/{name}", start, batch.values[..., [channels.index(part) for part in parts]])
        for name in self.header.static:
            self._put(f"t0_fields/{name}", start, batch.static[name])
        for name in self.header.forcings:
            self._put(f"t0_fields/{name}", start, batch.forcings[name])
        if self.header.masked:
            assert batch.mask is not None
            self._put("t0_fields/mask", start, batch.mask)
        for name, value in self.header.parameters.items():
            if value is None:
                self._put(f"scalars/{name}", start, batch.parameters[name])
        self._times[start:stop] = batch.times.cpu().numpy()
        self._written = stop
        file.flush()

    def _put(self, place: str, start: int, values: Tensor) -> None:
        data: Any = self._whole.file[place]
        data[start : start + len(values)] = values.cpu().numpy()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        if exception[0] is not None:
            self._whole.__exit__(*exception)
            return
        if self._written != self.count:
            error = UserError(f"{self.path}: {self._written} of {self.count} trajectories were written; write them all")
            self._whole.__exit__(type(error), error, None)
            raise error
        common = bool((self._times == self.header.times.cpu().numpy()).all())
        times = self._increasing(self.header.times.cpu().numpy()) if common else self._times
        item = self._whole.file["dimensions"].create_dataset("time", data=times)
        item.attrs["sample_varying"] = not common
        item.attrs["time_varying"] = True
        self._whole.__exit__(*exception)


def _check_names(path: Path, header: Header) -> None:
    fields = [name for name, _ in grouped(header.channels, header.grid.dimension)]
    fields += [*header.static, *header.forcings, *(["mask"] if header.masked else [])]
    for names, taken in ((fields, ()), (list(header.parameters), _TAKEN)):
        for name in names:
            if names.count(name) > 1 or name in taken or not name.strip(".") or "/" in name or "\0" in name:
                raise UserError(
                    f"{path}: The Well's format cannot hold two fields of one name, nor the name {name!r}; rename it"
                )


class Well:
    """The Well's files as a layout."""

    name: ClassVar[str] = "well"
    extension: ClassVar[str] = ".hdf5"
    writer: ClassVar[type[WellWriter]] = WellWriter
    open: ClassVar[type[WellFile]] = WellFile

    @staticmethod
    def recognises(path: Path) -> bool:
        with open_file(path) as file:
            return "dimensions" in file and any(f"t{order}_fields" in file for order in range(3))

    @staticmethod
    def loses(header: Header) -> list[str]:
        return []
