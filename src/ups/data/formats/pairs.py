"""Input-output pairs of steady problems: a `.pt` or `.npz` file with arrays x (coefficient) and y (solution).

Those we write also hold the text `ups`, which says where their points lie and what the fields are.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.data.formats.description import ATTRIBUTE, check_agrees, from_json, to_json
from ups.data.formats.reading import LazyFile, batch_from, named
from ups.data.formats.writing import Writer
from ups.data.remote import is_there, read_bytes
from ups.data.tasks import task as registered_task
from ups.durable import write
from ups.errors import UserError
from ups.fields import Batch, Grid, Header, TaskSpec

Convention = Literal["cell_centred", "nodal"]


class PairsFile(LazyFile):
    """Pairs x → y on the unit square as a steady Dataset: x is the task's static field, y its solution.

    x and y are (N, X, Y), (N, 1, X, Y) or (N, X, Y, 1); x may be boolean. Files of others do not say where their points
    lie, so `convention` must: `cell_centred` (i + ½)/n or `nodal` i/n with the first point on the wall. Taking one for
    the other costs several times a good model's error. `.pt` is read with weights_only, so nothing in it is run.
    """

    def __init__(
        self,
        path: str | Path,
        task: str | TaskSpec | None = None,
        convention: Convention | None = None,
        parameters: Mapping[str, float] | None = None,
    ) -> None:
        self.path = Path(path)
        arrays = _load(self.path)
        text = arrays.get(ATTRIBUTE)
        if text is None:
            header = _understood(self.path, convention, task or "darcy", parameters)
        elif convention is not None or parameters is not None:
            raise UserError(f"{self.path} says itself where its points lie; leave out convention and parameters")
        else:
            header = named(from_json(str(text), self.path), task)
        self._x = _fields(arrays, "x", self.path)
        self._y = _fields(arrays, "y", self.path)
        if self._x.shape != self._y.shape:
            raise UserError(
                f"{self.path}: x has shape {tuple(self._x.shape)} and y {tuple(self._y.shape)}; they must agree"
            )
        shape = tuple(self._y.shape[1:])
        if text is None:
            grid = Grid.cell_centred(shape) if convention == "cell_centred" else Grid.nodal(shape)
            header = replace(header, grid=grid, dtype=self._y.dtype)
        else:
            check_agrees("y", shape, header.grid.shape, self.path)
        if text is None and header.task == "darcy" and bool((self._x < 0).any()):
            raise UserError(
                f"{self.path}: x has negative values, which no permeability has; give the task of these pairs "
                "(--task), or fit them as arrays (ups fit)"
            )
        self.header, self.count = header, len(self._y)
        self.read(range(self.count), slice(None))  # refuses what is not finite

    def batch(self, rows: Int[np.ndarray, " B"], frames: slice) -> Batch:
        values = self._y[rows][:, None, ..., None][:, frames]
        return batch_from(self.header, rows, frames, values.numpy(), {self.header.static[0]: self._x[rows].numpy()})


def _understood(
    path: Path, convention: Convention | None, task: str | TaskSpec, parameters: Mapping[str, float] | None
) -> Header:
    """The header of a file that others wrote, but for its grid."""
    if convention is None:
        raise UserError(f"{path}: pairs do not say where their points lie; give convention: cell_centred or nodal")
    if convention not in ("cell_centred", "nodal"):
        raise UserError(f"{path}: convention is {convention!r}; use cell_centred or nodal")
    spec = registered_task(task)
    if not spec.steady or spec.dimension != 2 or len(spec.static) != 1 or len(spec.channels) != 1:
        raise UserError(
            f"{path}: pairs are one static field and one solution in two dimensions; task {spec.name!r} is not"
        )
    return Header(
        task=spec.name,
        channels=spec.channel_names,
        grid=Grid.cell_centred((1, 1)),
        times=torch.zeros(1, dtype=torch.float64),
        boundary=spec.boundary,
        parameters={name: float(value) for name, value in (parameters or {}).items()},
        static=spec.static,
    )


def _load(path: Path) -> Mapping[str, Any]:
    if not is_there(path):
        raise UserError(f"{path} is not there; check the path")
    try:
        content = io.BytesIO(read_bytes(path))
        if _holds_arrays(content):
            with np.load(content, allow_pickle=False) as arrays:
                texts = {name: arrays[name].item() for name in arrays.files if arrays[name].dtype.kind == "U"}
                return texts | {name: torch.from_numpy(arrays[name]) for name in arrays.files if name not in texts}
        content.seek(0)
        loaded = torch.load(content, weights_only=True, map_location="cpu")
    except (
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
        TypeError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
    ) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{path} is truncated or holds more than plain arrays ({reason}); fetch it again") from error
    if not isinstance(loaded, Mapping):
        raise UserError(f"{path} holds a {type(loaded).__name__}; pairs are a dictionary with x and y")
    return loaded


def _names(content: io.BytesIO) -> list[str]:
    """What an archive holds; nothing, where it is none or a damaged one."""
    try:
        with zipfile.ZipFile(content) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError):
        return []


def _holds_arrays(content: io.BytesIO) -> bool:
    names = _names(content)
    return bool(names) and all(name.endswith(".npy") for name in names)


def holds_pairs(path: Path) -> bool:
    """Whether an archive is one of pairs: of NumPy's, one of x and y alone; torch's own are not looked into."""
    content = io.BytesIO(read_bytes(path))
    return not _holds_arrays(content) or {*_names(content)} - {f"{ATTRIBUTE}.npy"} == {"x.npy", "y.npy"}


def _fields(arrays: Mapping[str, Any], name: str, path: Path) -> Float[Tensor, "N X Y"]:
    values = arrays.get(name)
    if not isinstance(values, Tensor):
        held = ", ".join(sorted(str(key) for key in arrays)) or "nothing"
        raise UserError(f"{path} has no array {name!r} (it holds {held}); pairs are a dictionary with x and y")
    if not (values.dtype == torch.bool or values.is_floating_point()):
        raise UserError(f"{path}: {name!r} is of type {values.dtype}; it must be boolean or floating point")
    shape = tuple(values.shape)
    if values.dim() == 4 and values.shape[1] == 1:
        values = values[:, 0]
    elif values.dim() == 4 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.dim() != 3 or 0 in values.shape:
        raise UserError(f"{path}: {name!r} has shape {shape}; it must be (N, X, Y), (N, 1, X, Y) or (N, X, Y, 1)")
    return values.to(torch.float64 if values.dtype == torch.float64 else torch.float32).contiguous()


class PairsWriter(Writer):
    """Writes pairs as `.npz` if the path ends so, else as `.pt`; they are kept until the end, being read whole too."""

    keeps: ClassVar[tuple[str, ...]] = ("static",)

    def refuse(self, path: Path) -> None:
        header = self.header
        if (header.grid.dimension, len(header.channels), len(header.static), header.steady) != (2, 1, 1, True):
            raise UserError(
                f"{path}: pairs are at least one steady field in two dimensions that depends on one static field; "
                "choose another layout"
            )
        varying = [name for name, value in header.parameters.items() if value is None]
        if varying:
            raise UserError(f"{path}: pairs have no place for {varying[0]}, which differs between them; drop it")
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def put(self, start: int, batch: Batch) -> None:
        x, y = batch.static[self.header.static[0]], batch.values[:, 0, ..., 0]
        self._pairs.append((x.to(self.header.dtype), y.to(self.header.dtype)))

    def finish(self) -> None:
        x, y = (torch.cat(column) for column in zip(*self._pairs, strict=True))
        text, content = to_json(self.header), io.BytesIO()
        if self.path.suffix == ".npz":
            np.savez(content, x=x.numpy(), y=y.numpy(), ups=np.array(text))
        else:
            torch.save({"x": x, "y": y, ATTRIBUTE: text}, content)
        write(self.path, content.getvalue())

    def discard(self) -> None:
        self._pairs.clear()
