"""The arrays that a person hands over, or that lie in a file: by name, with the names of their axes, coordinates and
units where they have any. Nothing is read here but those small ones; fields are read when they are sliced.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from ups.data.formats.arrays.tables import columns_of, read_table
from ups.data.formats.description import ATTRIBUTE, from_json
from ups.data.formats.hdf5 import open_file
from ups.errors import UserError
from ups.fields import Header

_NUMBERS = "fiub"
_MATLAB = b"MATLAB 7.3"
"""As the header of an HDF5 file that MATLAB wrote begins: its axes are stored in the opposite order."""
EXTRA = "pip install 'universal-physics-stack[arrays]'"


@dataclass(frozen=True, eq=False)
class NamedArray:
    """`values` has a shape and a dtype and takes slices; a list has one array a trajectory, of any lengths."""

    values: Any
    dims: tuple[str, ...] = ()
    unit: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a list: of its longest array, behind their number."""
        if isinstance(self.values, list):
            return len(self.values), *max(tuple(each.shape) for each in self.values)
        return tuple(self.values.shape)


@dataclass(frozen=True, eq=False)
class Contents:
    """`source` says whose they are in a sentence; `header`, where ups wrote the file, says everything."""

    arrays: Mapping[str, NamedArray]
    source: str = "the array"
    stem: str = ""
    coordinates: Mapping[str, NamedArray] = field(default_factory=dict)
    header: Header | None = None


def contents_of(data: Any) -> Contents:
    """Of a path, an array (NumPy, torch, h5py, zarr), an xarray Dataset or DataArray, a mapping of names to arrays, or
    a list with one array a trajectory.
    """
    if isinstance(data, str | Path):
        return _of_file(Path(data).expanduser())
    if type(data).__module__.startswith("xarray"):
        return _of_xarray(data, "the array")
    if isinstance(data, Mapping):
        arrays = {str(name): NamedArray(plain(value, f"array {name!r}")) for name, value in data.items()}
        return Contents(arrays, "the mapping")
    if isinstance(data, list | tuple) and data and all(len(np.shape(each)) > 1 for each in data):
        return Contents({"u": NamedArray([plain(each, f"trajectory {n}") for n, each in enumerate(data)])}, "the list")
    return Contents({"u": NamedArray(plain(data, "the array"))})


def plain(values: Any, what: str) -> Any:
    """Real numbers with a shape and a dtype; those on a disk stay there."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype in (torch.bfloat16, torch.float16) else values).numpy()
    elif not (hasattr(values, "shape") and hasattr(values, "dtype")):
        try:
            values = np.asarray(values)
        except ValueError:  # lists of unequal lengths
            values = np.empty(0, dtype=object)
    if values.dtype == object:
        raise UserError(f"{what} is no array of numbers; give one array, or a list with one array for each trajectory")
    if values.dtype.kind not in _NUMBERS:
        raise UserError(f"{what} is of type {values.dtype}; give real numbers")
    if 0 in values.shape:
        raise UserError(f"{what} has the shape {tuple(values.shape)}: there is nothing in it")
    return values


@dataclass(frozen=True)
class OnDisk:
    """An array of a file, opened for each read. MATLAB's have their axes the other way round."""

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    reversed: bool = False

    def __getitem__(self, part: Any) -> np.ndarray:
        part = (part if isinstance(part, tuple) else (part,)) + (slice(None),) * len(self.shape)
        part = part[: len(self.shape)]
        if not self.key:
            return np.load(self.path, mmap_mode="r", allow_pickle=False)[part]
        with open_file(self.path) as file:
            stored: Any = file[self.key]
            return stored[part[::-1]].T if self.reversed else stored[part]


def _of_file(path: Path) -> Contents:
    if not path.exists():
        raise UserError(f"{path} is not there; check the path")
    if path.is_dir() and not is_zarr(path):
        raise UserError(f"{path} is a folder; name a file in it")
    with _said_of(path):
        if is_zarr(path):
            data = _xarray(path).open_zarr(path, consolidated=False, decode_timedelta=False)  # hours stay hours
            text = data.attrs.get(ATTRIBUTE)
            header = from_json(text, path) if isinstance(text, str) else None
            return replace(_of_xarray(data, str(path), path.stem), header=header)
        with path.open("rb") as file:
            begins = file.read(10)
        if begins.startswith(b"\x93NUMPY"):
            array = plain(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
            return Contents({"u": NamedArray(OnDisk(path, "", array.shape, array.dtype))}, str(path), path.stem)
        if begins.startswith(b"PK") and path.suffix != ".pt":
            return _of_npz(path)
        if begins.startswith((b"PK", b"\x80")):
            return _of_torch(path)
        if begins.startswith(b"CDF"):
            return _of_xarray(_xarray(path).open_dataset(path), str(path), path.stem)
        if h5py.is_hdf5(path):
            return _of_hdf5(path, begins == _MATLAB)
        if begins.startswith(b"MATLAB"):
            return _of_matlab(path)
        if columns_of(path) is not None:
            return _of_table(path)
    raise UserError(
        f"{path} is none of the files that arrays are read from (.npy, .npz, .pt, .nc, .zarr, .h5, .mat, or .csv whose "
        "first line names columns such as trajectory,t,x,u); save the array with numpy.save"
    )


@contextmanager
def _said_of(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, NotImplementedError) as error:
        raise UserError(
            f"{path} cannot be read ({str(error).strip().split(chr(10))[0][:200]}); check the file"
        ) from error
    except (pickle.UnpicklingError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged or holds more than plain arrays; save it again") from error


def is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / key).exists() for key in ("zarr.json", ".zgroup", ".zmetadata"))


def _of_npz(path: Path) -> Contents:
    with np.load(path, allow_pickle=False) as arrays:
        header = from_json(str(arrays[ATTRIBUTE]), path) if ATTRIBUTE in arrays.files else None
        found = {name: arrays[name] for name in arrays.files if arrays[name].dtype.kind in _NUMBERS}
    return Contents({name: NamedArray(values) for name, values in found.items()}, str(path), path.stem, header=header)


def _of_torch(path: Path) -> Contents:
    loaded = torch.load(path, weights_only=True, map_location="cpu")
    whole = {"u": loaded} if isinstance(loaded, torch.Tensor) else loaded
    if not isinstance(whole, Mapping):
        raise UserError(f"{path} holds a {type(loaded).__name__}; save one tensor, or a dictionary of them")
    arrays = {str(n): NamedArray(plain(v, f"{path}: {n!r}")) for n, v in whole.items() if isinstance(v, torch.Tensor)}
    return Contents(arrays, str(path), path.stem)


def _of_matlab(path: Path) -> Contents:
    try:
        from scipy.io import loadmat  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"{path} is of MATLAB's older format, which scipy reads; {EXTRA}") from None
    whole = loadmat(path)
    loaded = {name: v for name, v in whole.items() if isinstance(v, np.ndarray) and v.dtype.kind in _NUMBERS}
    arrays = {n: NamedArray(v.reshape(-1) if v.ndim == 2 and 1 in v.shape else v) for n, v in loaded.items()}
    header = from_json(str(text[0]), path) if (text := whole.get(ATTRIBUTE)) is not None else None
    return Contents(arrays, str(path), path.stem, header=header)


def _of_table(path: Path) -> Contents:
    arrays, coordinates, units = read_table(path)
    fields = {name: NamedArray(values, dims, units.get(name, "")) for name, (values, dims) in arrays.items()}
    places = {name: NamedArray(values, unit=units.get(name, "")) for name, values in coordinates.items()}
    return Contents(fields, str(path), path.stem, places)


def _of_hdf5(path: Path, matlab: bool) -> Contents:
    """All numbers of an HDF5 or netCDF4 file; dimension scales name the axes of the others."""
    arrays: dict[str, NamedArray] = {}
    coordinates: dict[str, NamedArray] = {}
    with open_file(path) as file:
        text = file.attrs.get(ATTRIBUTE)
        header = from_json(text, path) if isinstance(text, str) else None

        def note(name: str, item: Any) -> None:
            if not isinstance(item, h5py.Dataset) or item.dtype.kind not in _NUMBERS or name.startswith("#"):
                return
            if item.is_virtual or item.external:
                raise UserError(f"{path}: {name!r} lies in another file; copy it into this one")
            unit = item.attrs.get("units", "")
            unit = unit.decode() if isinstance(unit, bytes) else unit if isinstance(unit, str) else ""
            shape = item.shape[::-1] if matlab else item.shape
            if matlab and 1 in shape and len(shape) == 2:  # MATLAB has no vectors
                stored: Any = item[()].reshape(-1)
            else:
                stored = item[()] if item.is_scale else OnDisk(path, name, shape, item.dtype, matlab)
            if item.is_scale:
                coordinates[name.rpartition("/")[2]] = NamedArray(stored, unit=unit)
            else:
                arrays[name] = NamedArray(stored, _named_dims(item), unit)

        file.visititems(note)
    return Contents(arrays, str(path), path.stem, coordinates, header)


def _named_dims(item: h5py.Dataset) -> tuple[str, ...]:
    names = tuple(
        dim.label or (str(dim[0].name).rpartition("/")[2] if len(dim) else "")
        for dim in item.dims  # pyright: ignore
    )
    return names if names and all(names) else ()


def _xarray(path: Path) -> Any:
    try:
        import xarray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"{path} is read by xarray, which is not installed; {EXTRA}") from None
    return xarray


def _of_xarray(data: Any, source: str, stem: str = "") -> Contents:
    """A Dataset, or a DataArray as one variable of its name. Times become numbers: seconds since the first."""
    if not hasattr(data, "data_vars"):
        data = data.to_dataset(name=data.name or "u")
    coordinates = {str(name): _numbers_of(each) for name, each in data.coords.items() if each.ndim == 1}
    arrays = {
        str(name): NamedArray(each.variable, tuple(map(str, each.dims)), str(each.attrs.get("units", "")))
        for name, each in data.data_vars.items()
        if each.dtype.kind in _NUMBERS
    }
    return Contents(arrays, source, stem, {n: c for n, c in coordinates.items() if c.values.dtype.kind in _NUMBERS})


def _numbers_of(coordinate: Any) -> NamedArray:
    values, unit = coordinate.values, str(coordinate.attrs.get("units", ""))
    if values.dtype.kind == "M":
        return NamedArray((values - values[0]) / np.timedelta64(1, "s"), unit="s")
    if values.dtype.kind == "m":
        return NamedArray(values / np.timedelta64(1, "s"), unit="s")
    return NamedArray(values, unit=unit)
