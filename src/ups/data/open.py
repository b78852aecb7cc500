"""Open a data file, whatever it is."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from ups.data.pairs import PairsFile
from ups.data.pdebench import TensorFile
from ups.errors import UserError
from ups.fields import Dataset

_HDF5 = b"\x89HDF\r\n\x1a\n"
_PICKLE = b"\x80"


def open_dataset(path: str | Path, task: str | None = None, **options: Any) -> Dataset:
    """A data file as a Dataset, recognised by its content, not its extension.

    HDF5 is a PDEBench tensor or Darcy file; it says its task itself, or `task` does. `.pt` and `.npz` are input-output
    pairs and need the option `convention` ("cell_centred" or "nodal"), since they do not say where their points lie;
    the option `parameters` gives them named values.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is not there; check the path or make the data with `ups data make`")
    with path.open("rb") as file:
        start = file.read(len(_HDF5))
    if start == _HDF5:
        known: tuple[str, ...] = ()
    elif zipfile.is_zipfile(path) or start.startswith((b"PK", _PICKLE)):
        known = ("convention", "parameters")
        if "convention" not in options:
            raise UserError(f"{path}: pairs do not say where their points lie; give convention: cell_centred or nodal")
    else:
        raise UserError(f"{path} is neither HDF5 (PDEBench) nor .pt or .npz pairs, or it is damaged; check the file")
    for name in options:
        if name not in known:
            raise UserError(f"{path}: option {name!r} does not apply to this file; options are {known or 'none'}")
    if start == _HDF5:
        return TensorFile(path, task)
    return PairsFile(path, task=task or "darcy", **options)
