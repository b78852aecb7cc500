"""Write plain arrays: netCDF and Zarr for xarray and its like, and the files of NumPy and MATLAB for everybody else."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from ups.data.formats.arrays.conditions import MASK
from ups.data.formats.arrays.contents import EXTRA
from ups.data.formats.description import ATTRIBUTE, to_json
from ups.data.formats.hdf5 import stored_type
from ups.data.formats.writing import HDF5Writer, Writer
from ups.durable import sync, write
from ups.errors import UserError
from ups.fields import AXES, Batch, Header

CONVENTIONS = "CF-1.10"
DIMS = ("sample", "time", *AXES)


def _refuse_names(header: Header, path: Path) -> None:
    names = [*header.channels, *header.static, *header.forcings, *header.parameters, *[MASK] * header.masked]
    for name in names:
        if names.count(name) > 1 or name in (*DIMS, ATTRIBUTE) or not name.strip(".") or "/" in name or "\0" in name:
            raise UserError(f"{path}: an array cannot be called {name!r} here, or two are; rename it")


def _arrays(header: Header, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Everything with an axis of samples, by name."""
    for number, name in enumerate(header.channels):
        yield name, batch.values[..., number].to(header.dtype)
    for name in header.static:
        yield name, batch.static[name].to(header.dtype)
    for name in header.forcings:
        yield name, batch.forcings[name].to(header.dtype)
    if header.masked and batch.mask is not None:
        yield MASK, batch.mask.to(torch.uint8)
    for name, value in header.parameters.items():
        if value is None:
            yield name, batch.parameters[name]


def _scales(header: Header, samples: np.ndarray) -> dict[str, np.ndarray]:
    """Where each axis has its points."""
    space = dict(zip(AXES, (p.numpy() for p in header.grid.positions), strict=False))
    return {"sample": samples, "time": header.times.numpy(), **space}


def _dims(header: Header) -> dict[str, tuple[str, ...]]:
    """The axes of everything in `_arrays`."""
    space = AXES[: header.grid.dimension]
    dims = {name: ("sample", "time", *space) for name in header.channels}
    dims |= {name: ("sample", *space) for name in (*header.static, *[MASK] * header.masked)}
    dims |= {name: ("sample", *["time"] * varies, *space) for name, varies in header.forcings.items()}
    return dims | {name: ("sample",) for name, value in header.parameters.items() if value is None}


class NetCDFWriter(HDF5Writer):
    """A netCDF4 file: a variable a channel (sample, time, x, …), coordinates with units, conditions."""

    def refuse(self, path: Path) -> None:
        _refuse_names(self.header, path)

    def lay_out(self) -> None:
        header, file, units = self.header, self.file, self.header.units
        file.attrs["Conventions"] = CONVENTIONS
        scales = _scales(header, np.arange(self.count))
        for name, values in scales.items():
            file.create_dataset(name, data=values).make_scale(name)
        for name, own in _dims(header).items():
            dtype = "<f8" if name in header.parameters else "u1" if name == MASK else stored_type(header.dtype)
            item = file.create_dataset(name, [len(scales[dim]) for dim in own], dtype=dtype)
            for place, dim in enumerate(own):
                item.dims[place].attach_scale(file[dim])
        for name, value in header.parameters.items():
            if value is not None:
                file.create_dataset(name, data=value)
        for name, unit in dict(units).items():
            if name in file:
                file[name].attrs["units"] = unit

    def put(self, start: int, batch: Batch) -> None:
        for name, values in _arrays(self.header, batch):
            self.fill(name, start, values)


class ZarrWriter(Writer):
    """A folder of Zarr with the same variables, coordinates and units, written by xarray."""

    def refuse(self, path: Path) -> None:
        _refuse_names(self.header, path)
        try:
            import xarray  # noqa: F401  # pyright: ignore[reportMissingImports]
            import zarr  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError(f"{path} is written by xarray and zarr, which are not installed; {EXTRA}") from None
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def put(self, start: int, batch: Batch) -> None:
        import xarray  # pyright: ignore[reportMissingImports]

        header, dims = self.header, _dims(self.header)
        found: dict[str, Any] = {name: (dims[name], values.numpy()) for name, values in _arrays(header, batch)}
        found |= {name: ((), value) for name, value in header.parameters.items() if value is not None}
        data = xarray.Dataset(
            found, _scales(header, np.arange(start, start + len(batch))), {ATTRIBUTE: to_json(header)}
        )
        for name, unit in header.units.items():
            if name in data:
                data[name].attrs["units"] = unit
        how = {"append_dim": "sample"} if start else {"mode": "w"}
        data.to_zarr(self._temporary, consolidated=False, **how)

    def finish(self) -> None:
        self._temporary.rename(self.path)
        sync(self.path.parent)

    def discard(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)


class ArraysWriter(Writer):
    """An archive of named arrays: `.npz`, or `.mat` for MATLAB; fields alone: `.npy`. They are kept until the end."""

    def refuse(self, path: Path) -> None:
        _refuse_names(self.header, path)
        header = self.header
        if path.suffix == ".npy" and (header.parameters or header.static or header.forcings or header.masked):
            raise UserError(f"{path}: a .npy file has no place for parameters and other conditions; write an .npz")
        self._parts: dict[str, list[Tensor]] = {}

    def put(self, start: int, batch: Batch) -> None:
        for name, values in _arrays(self.header, batch):
            self._parts.setdefault(name, []).append(values)

    def finish(self) -> None:
        header, content = self.header, io.BytesIO()
        arrays = {name: torch.cat(parts).numpy() for name, parts in self._parts.items()}
        arrays |= {"time": header.times.numpy()}
        arrays |= dict(zip(AXES, (p.numpy() for p in header.grid.positions), strict=False))
        arrays |= {name: np.array(value) for name, value in header.parameters.items() if value is not None}
        arrays[ATTRIBUTE] = np.array(to_json(header))
        if self.path.suffix == ".mat":
            try:
                from scipy.io import savemat  # pyright: ignore[reportMissingImports]
            except ImportError:
                raise UserError(f"{self.path} is written by scipy, which is not installed; {EXTRA}") from None
            savemat(content, arrays)
        elif self.path.suffix == ".npy":
            np.save(content, np.stack([arrays[name] for name in header.channels], -1))
        else:
            np.savez(content, **arrays)  # pyright: ignore[reportArgumentType]
        write(self.path, content.getbuffer())

    def discard(self) -> None:
        self._parts.clear()


def is_ours(file: h5py.File) -> bool:
    return ATTRIBUTE in file.attrs and file.attrs.get("Conventions") == CONVENTIONS


def holds_fields(file: h5py.File) -> bool:
    """Whether there are arrays of enough axes for trajectories, and none that names PDEBench's."""
    found: list[bool] = []
    file.visititems(lambda name, item: found.append(isinstance(item, h5py.Dataset) and item.ndim > 2))
    return any(found) and not any(str(name).endswith("-coordinate") for name in file)
