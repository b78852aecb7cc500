"""The file layouts that ups reads and writes, and which of them a file is of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import h5py

from ups.data.formats.arrays.contents import is_zarr
from ups.data.formats.arrays.reader import OPTIONS, open_arrays
from ups.data.formats.arrays.tables import columns_of
from ups.data.formats.arrays.writer import ArraysWriter, NetCDFWriter, ZarrWriter, holds_fields, is_ours
from ups.data.formats.hdf5 import holds, is_hdf5, open_file
from ups.data.formats.pairs import PairsFile, PairsWriter, holds_pairs
from ups.data.formats.pdebench.arrays import (
    CFDFile,
    CFDWriter,
    IncompressibleFile,
    IncompressibleWriter,
    TensorFile,
    TensorWriter,
    cfd_fields,
)
from ups.data.formats.pdebench.grouped import GroupedFile, GroupedWriter, begins_with_a_trajectory
from ups.data.formats.pdegym.reader import GymFile, is_gym
from ups.data.formats.pdegym.writer import GymWriter
from ups.data.formats.well.reader import WellFile, is_well
from ups.data.formats.well.writer import WellWriter
from ups.data.formats.writing import Writer
from ups.data.remote import is_there, read_bytes
from ups.errors import UserError
from ups.fields import Dataset, Header


@dataclass(frozen=True)
class Layout:
    """One kind of file. `name` is what people type, `extension` what published files end with.

    `open(path, task=None, **options)` gives a Dataset; `options` are the words it takes besides. `recognises` says
    whether an HDF5 file's content (never its name) is of this layout. `test_at` is the end of such files that
    publications test on, for data that do not say it themselves.
    """

    name: str
    extension: str
    open: Callable[..., Dataset]
    writer: type[Writer]
    recognises: Callable[[h5py.File], bool]
    options: tuple[str, ...] = ()
    test_at: Literal["first", "last"] = "first"

    def loses(self, header: Header) -> list[str]:
        """What of such data a file of this layout does not keep, in words; empty if it keeps all."""
        kept = self.writer.kept(header)
        lost = [f"static field {name}" for name in header.static if name not in kept.static]
        lost += [f"forcing {name}" for name in header.forcings if name not in kept.forcings]
        return lost + (["the mask"] if header.masked and not kept.masked else [])


TENSOR = Layout("pdebench-tensor", ".hdf5", TensorFile, TensorWriter, lambda file: holds(file, "tensor"))
CFD = Layout("pdebench-cfd", ".hdf5", CFDFile, CFDWriter, lambda file: holds(file, *cfd_fields(1)))
INCOMPRESSIBLE = Layout(
    "pdebench-incompressible",
    ".h5",
    IncompressibleFile,
    IncompressibleWriter,
    lambda file: holds(file, "velocity", "particles"),
)
GROUPED = Layout("pdebench-grouped", ".h5", GroupedFile, GroupedWriter, begins_with_a_trajectory, test_at="last")
WELL = Layout("well", ".hdf5", WellFile, WellWriter, is_well)
GYM = Layout("pdegym", ".nc", GymFile, GymWriter, is_gym, ("convention", "boundary"), "last")
PAIRS = Layout("pairs", ".pt", PairsFile, PairsWriter, lambda file: False, ("convention", "parameters"))
NETCDF = Layout("netcdf", ".nc", open_arrays, NetCDFWriter, is_ours, OPTIONS)
ZARR = Layout("zarr", ".zarr", open_arrays, ZarrWriter, lambda file: False, OPTIONS)
ARRAYS = Layout("arrays", ".npz", open_arrays, ArraysWriter, holds_fields, OPTIONS)
LAYOUTS = (NETCDF, TENSOR, CFD, INCOMPRESSIBLE, GROUPED, WELL, GYM, PAIRS, ZARR, ARRAYS)
"""In the order in which a file's content is compared with them."""


def layout_of(path: Path) -> Layout:
    """The layout of a file, or of a folder of Zarr, recognised by its content."""
    if is_zarr(path):
        return ZARR
    if not is_there(path):
        raise UserError(f"{path} is not there; check the path or make the data with `ups data make`")
    if not is_hdf5(path):
        begins = read_bytes(path, 8)
        if begins.startswith((b"PK", b"\x80")):  # as zip archives and pickles begin
            return PAIRS if holds_pairs(path) else ARRAYS
        if begins.startswith((b"\x93NUMPY", b"CDF", b"MATLAB 5")) or columns_of(path) is not None:
            return ARRAYS
        raise UserError(
            f"{path} is neither HDF5 nor an array or archive of arrays (.npy, .npz, .pt, .mat, or .csv whose first "
            "line names columns such as trajectory,t,x,u), or it is damaged; check the file"
        )
    with open_file(path) as file:
        for layout in LAYOUTS:
            if layout.recognises(file):
                return layout
        held = ", ".join(sorted(file)[:8]) or "nothing"
    raise UserError(
        f"{path} holds {held}; that is none of the layouts ups reads (such as 'tensor' with 'x-coordinate'): "
        f"{', '.join(layout.name for layout in LAYOUTS)}; convert the file to one of them"
    )


def named_layout(name: str) -> Layout:
    for layout in LAYOUTS:
        if layout.name == name:
            return layout
    raise UserError(f"there is no layout {name!r}; known: {', '.join(layout.name for layout in LAYOUTS)}")
