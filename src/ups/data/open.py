"""Open a data file, whatever it is."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from ups.data.layouts import layout_of
from ups.data.pairs import PairsFile
from ups.errors import UserError
from ups.fields import Dataset

_PICKLE = b"\x80"


def open_dataset(path: str | Path, task: str | None = None, **options: Any) -> Dataset:
    """A data file as a Dataset, recognised by its content, not its extension.

    HDF5 is one of PDEBench's layouts; it says its task itself, or `task` does. `.pt` and `.npz` are input-output
    pairs and need the option `convention` ("cell_centred" or "nodal"), since they do not say where their points lie;
    the option `parameters` gives them named values.
    """
    path = Path(path)
    if path.is_file() and _holds_pairs(path):
        _check_options(path, options, ("convention", "parameters"))
        if "convention" not in options:
            raise UserError(f"{path}: pairs do not say where their points lie; give convention: cell_centred or nodal")
        return PairsFile(path, task=task or "darcy", **options)
    layout = layout_of(path)
    _check_options(path, options, layout.options)
    return layout.open(path, task, **options)


def _holds_pairs(path: Path) -> bool:
    with path.open("rb") as file:
        return zipfile.is_zipfile(path) or file.read(2).startswith((b"PK", _PICKLE))


def _check_options(path: Path, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise UserError(f"{path}: option {name!r} does not apply to this file; options are {known or 'none'}")
