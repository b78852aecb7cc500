"""What every layout of HDF5 files shares: opening them, and understanding their arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.remote import is_remote, is_there, open_remote, read_bytes
from ups.errors import UserError
from ups.fields import Grid

_MOST_TIMES, _SMALL = 2000, 2**20  # what compression can save (deflate: 1032 times), and what needs no such thing
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 does; it may still be truncated."""
    if not is_remote(path):
        return bool(h5py.is_hdf5(path))
    return read_bytes(path, len(_SIGNATURE)) == _SIGNATURE


def open_file(path: Path) -> h5py.File:
    """Open for reading. Readers open for each read, so that a dataset can be handed to other processes."""
    if not is_there(path):
        raise UserError(f"{path} is not there; check the path or make the data with `ups data make`")
    try:
        return h5py.File(open_remote(path) if is_remote(path) else path, "r")
    except OSError as error:
        raise UserError(f"{path} is not HDF5 or is truncated ({error}); fetch or make it again") from error


def holds(file: h5py.File, *names: str) -> bool:
    return all(isinstance(file.get(name), h5py.Dataset) for name in names)


def precision(data: h5py.Dataset) -> torch.dtype:
    return torch.float64 if data.dtype.itemsize == 8 else torch.float32


def stored_type(dtype: torch.dtype) -> str:
    """What NumPy calls a precision as it lies in files."""
    return "<f8" if dtype == torch.float64 else "<f4"


def rounded(positions: Float[Tensor, "*B n"]) -> np.ndarray:
    """float32 as published, unless neighbours would fall together."""
    single = positions.cpu().numpy().astype("<f4")
    return single if (np.diff(single) > 0).all() else positions.cpu().numpy().astype("<f8")


def array(file: h5py.File | h5py.Group, name: str, path: Path) -> h5py.Dataset:
    item = file.get(name)
    if not isinstance(item, h5py.Dataset):
        held = ", ".join(sorted(file)[:8]) or "nothing"
        raise UserError(f"{path} has no dataset {name!r} (it holds {held}); the file is damaged or of another layout")
    if item.dtype.kind != "f" or item.dtype.itemsize not in (4, 8):
        raise UserError(f"{path}: {name!r} is of type {item.dtype}; it must be float32 or float64")
    elsewhere = item.file.filename != str(path) and not is_remote(path)
    if elsewhere or item.external or item.is_virtual:
        raise UserError(f"{path}: {name!r} lies in another file; copy it into this one")
    stored = item.id.get_storage_size()
    if item.nbytes > _MOST_TIMES * stored + _SMALL:
        raise UserError(
            f"{path}: {name!r} declares {item.nbytes:,} bytes and holds {stored:,}; it is damaged or was never written"
        )
    return item


def coordinate(file: h5py.File | h5py.Group, name: str, path: Path, least: int = 2) -> np.ndarray:
    """A list of increasing positions, as float64."""
    values = array(file, name, path)[()].astype(np.float64)
    if values.ndim != 1 or len(values) < least or not np.isfinite(values).all() or not (np.diff(values) > 0).all():
        raise UserError(f"{path}: {name!r} must be a list of at least {least} finite, increasing numbers")
    return values


def centred_axis(stored: Float[np.ndarray, " n"]) -> tuple[Float[Tensor, " n"], tuple[float, float]]:
    """The positions and extent of the axis whose cell centres these are.

    float32 centres lie up to 6e-8 beside the true ones; where an even grid with round ends explains them to a
    thousandth of a cell, that grid is taken, so that files of one grid have equal grids.
    """
    n = len(stored)
    dx = (stored[-1] - stored[0]) / (n - 1)
    length = float(f"{n * dx:.5g}")
    lower = round((stored[0] - dx / 2) / length, 5) * length
    even = Grid.cell_centred((n,), ((lower, lower + length),))
    if np.abs(even.positions[0].numpy() - stored).max() < 1e-3 * dx:
        return even.positions[0], even.extent[0]
    ends = (stored[0] - (stored[1] - stored[0]) / 2, stored[-1] + (stored[-1] - stored[-2]) / 2)
    return torch.from_numpy(stored), (float(ends[0]), float(ends[1]))


def axis_positions(stored: Float[np.ndarray, " n"], periodic: bool) -> tuple[Float[Tensor, " n"], tuple[float, float]]:
    """Positions and extent. Even points at odd multiples of half a spacing are cell centres; others start on the end.

    On a periodic axis the last point is one spacing before the end, else it lies on it.
    """
    n, dx = len(stored), (stored[-1] - stored[0]) / (len(stored) - 1)
    offset = stored[0] / dx % 1
    if np.abs(np.diff(stored) - dx).max() > 1e-3 * dx or abs(offset - 0.5) < 1e-3:
        return centred_axis(stored)
    cells = n if periodic else n - 1
    length = float(f"{cells * dx:.5g}")
    lower = round(stored[0] / length, 5) * length
    even = lower + torch.arange(n, dtype=torch.float64) * (length / cells)
    if np.abs(even.numpy() - stored).max() < 1e-3 * dx:
        return even, (lower, lower + length)
    return torch.from_numpy(stored), (float(stored[0]), float(stored[0] + cells * dx))


def even_times(stored: Float[np.ndarray, " T"]) -> Float[Tensor, " T"]:
    """Times that are even up to float32 rounding are taken as even, like a grid's positions."""
    if len(stored) == 1:
        return torch.from_numpy(stored)
    dt = float(f"{(stored[-1] - stored[0]) / (len(stored) - 1):.6g}")
    even = round(stored[0] / dt, 5) * dt + torch.arange(len(stored), dtype=torch.float64) * dt
    return even if np.abs(even.numpy() - stored).max() < 1e-3 * dt else torch.from_numpy(stored)


def read_rows(data: Any, rows: Int[np.ndarray, " B"], frames: slice | None = None) -> np.ndarray:
    """Rows in any order, repeats allowed, as few contiguous reads as they make."""
    selection = () if frames is None else (frames,)
    unique, back = np.unique(rows, return_inverse=True)
    runs = np.split(unique, np.flatnonzero(np.diff(unique) != 1) + 1)
    pieces = [read_part(data, (slice(int(run[0]), int(run[-1]) + 1), *selection)) for run in runs if len(run)]
    if not pieces:
        found = data[(slice(0, 0), *selection)]
    elif len(pieces) == 1 and len(unique) == len(rows) and (np.diff(rows) > 0).all():
        found = pieces[0]  # as asked for: a copy takes longer than the reading
    else:
        found = np.concatenate(pieces)[back]
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def read_part(data: Any, selection: tuple[slice, ...]) -> np.ndarray:
    """A part of an array; a compressed chunk that is damaged shows only now."""
    try:
        return data[selection]
    except OSError as error:
        raise UserError(
            f"{data.file.filename}: {data.name!r} cannot be read ({error}); the file is damaged: fetch or make it again"
        ) from error
