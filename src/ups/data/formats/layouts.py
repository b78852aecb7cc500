"""The file layouts that ups reads and writes, and which of them a file is of."""

from __future__ import annotations

from pathlib import Path

from ups.data.formats.hdf5 import is_hdf5, open_file
from ups.data.formats.layout import Layout
from ups.data.formats.pairs import Pairs
from ups.data.formats.pdebench.cfd import CFD
from ups.data.formats.pdebench.grouped import Grouped
from ups.data.formats.pdebench.incompressible import Incompressible
from ups.data.formats.pdebench.tensor import Tensor
from ups.data.formats.pdegym.writer import Gym
from ups.data.formats.well.writer import Well
from ups.data.remote import is_there
from ups.errors import UserError

LAYOUTS: tuple[type[Layout], ...] = (Tensor, CFD, Incompressible, Grouped, Well, Gym, Pairs)
"""In the order in which a file's content is compared with them."""


def layout_of(path: Path) -> type[Layout]:
    """The layout of a file, recognised by its content."""
    if not is_there(path):
        raise UserError(f"{path} is not there; check the path or make the data with `ups data make`")
    held = ""
    if is_hdf5(path):
        with open_file(path) as file:
            held = ", ".join(sorted(file)[:8]) or "nothing"
    for layout in LAYOUTS:
        if layout.recognises(path):
            return layout
    if held:
        raise UserError(
            f"{path} holds {held}; that is none of the layouts ups reads (such as 'tensor' with 'x-coordinate'): "
            f"{', '.join(layout.name for layout in LAYOUTS)}; convert the file to one of them"
        )
    raise UserError(f"{path} is neither HDF5 nor .pt or .npz pairs, or it is damaged; check the file")


def named_layout(name: str) -> type[Layout]:
    """The layout that people call so."""
    for layout in LAYOUTS:
        if layout.name == name:
            return layout
    raise UserError(f"there is no layout {name!r}; known: {', '.join(layout.name for layout in LAYOUTS)}")
