"""Open data, whatever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ups.data.formats.arrays.contents import is_zarr
from ups.data.formats.layouts import GYM, Layout, layout_of
from ups.data.formats.pdegym.reader import holds_chunks
from ups.data.formats.reading import refused
from ups.data.joined import Joined
from ups.errors import UserError
from ups.fields import Dataset, TaskSpec

_DATA = (".hdf5", ".h5", ".nc")


def open_dataset(path: str | Path, task: str | TaskSpec | None = None, **options: Any) -> Dataset:
    """A data file as a Dataset, recognised by its content, not its extension.

    HDF5 says its task itself, or `task` does: a registered one's name, or a task that need not be registered. `.pt` and
    `.npz` are input-output pairs and need the option `convention` ("cell_centred" or "nodal") unless ups wrote them,
    since they do not say where their points lie; the option `parameters` gives them named values. Plain arrays
    (`.npy`, `.npz`, `.nc`, `.zarr`, `.h5`, `.mat`, `.csv`) take what `ups.fit` is told of them as options: dt, lengths,
    boundary, axes. A folder is its HDF5 files end to end, in the order of their names. An address (`https://…`,
    `s3://…`) is read through fsspec, the parts that are asked for only.
    """
    path = Path(path)
    if not path.is_dir() or is_zarr(path):
        with refused(path):
            return _opened(path, layout_of(path), task, options)
    if holds_chunks(path):
        with refused(path):
            return _opened(path, GYM, task, options)
    files = sorted(file for file in path.iterdir() if file.suffix in _DATA and not file.name.startswith("."))
    if not files:
        inside = (path / "data").is_dir()
        remedy = f"open one of {path / 'data'}/{{train,valid,test}}" if inside else "check the path"
        raise UserError(f"{path} holds no data files ({', '.join(_DATA)}); {remedy}")
    return Joined([open_dataset(file, task, **options) for file in files])


def _opened(path: Path, layout: Layout, task: str | TaskSpec | None, options: dict[str, Any]) -> Dataset:
    for name in options:
        if name not in layout.options:
            known = layout.options or "none"
            raise UserError(f"{path}: option {name!r} does not apply to this file; options are {known}")
    return layout.open(path, task, **options)
