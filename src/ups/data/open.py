"""Open data, whatever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ups.data.formats.layouts import layout_of
from ups.data.formats.pdegym.reader import holds_chunks
from ups.data.formats.pdegym.writer import Gym
from ups.data.joined import Joined
from ups.errors import UserError
from ups.fields import Dataset, TaskSpec

_DATA = (".hdf5", ".h5", ".nc")


def open_dataset(path: str | Path, task: str | TaskSpec | None = None, **options: Any) -> Dataset:
    """A data file as a Dataset, recognised by its content, not its extension.

    HDF5 says its task itself, or `task` does: a registered one's name, or a task that need not be registered. `.pt` and
    `.npz` are input-output pairs and need the option `convention` ("cell_centred" or "nodal") unless ups wrote them,
    since they do not say where their points lie; the option `parameters` gives them named values. A folder is its HDF5
    files end to end, in the order of their names. An address (`https://…`, `s3://…`) is read through fsspec, the parts
    that are asked for only.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path, task, options)
    layout = layout_of(path)
    _check_options(path, options, layout.options)
    return layout.open(path, task, **options)


def _open_folder(folder: Path, task: str | TaskSpec | None, options: dict[str, Any]) -> Dataset:
    if holds_chunks(folder):
        _check_options(folder, options, Gym.options)
        return Gym.open(folder, task, **options)
    files = sorted(path for path in folder.iterdir() if path.suffix in _DATA and not path.name.startswith("."))
    if not files:
        inside = (folder / "data").is_dir()
        remedy = f"open one of {folder / 'data'}/{{train,valid,test}}" if inside else "check the path"
        raise UserError(f"{folder} holds no data files ({', '.join(_DATA)}); {remedy}")
    return Joined([open_dataset(file, task, **options) for file in files])


def _check_options(path: Path, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise UserError(f"{path}: option {name!r} does not apply to this file; options are {known or 'none'}")
