"""Input-output pairs of steady problems: a `.pt` or `.npz` file with arrays x (coefficient) and y (solution)."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.header import Described, rows_of
from ups.data.tasks import task as registered_task
from ups.errors import UserError
from ups.fields import Batch, Grid, Header

Convention = Literal["cell_centred", "nodal"]


class PairsFile(Described):
    """Pairs x → y on the unit square as a steady Dataset: x is the task's static field, y its solution.

    x and y are (N, X, Y), (N, 1, X, Y) or (N, X, Y, 1); x may be boolean. Such files do not say where their points lie,
    so `convention` must: `cell_centred` (i + ½)/n or `nodal` i/n with the first point on the wall. Taking one for the
    other costs several times a good model's error. `.pt` is read with weights_only, so nothing in it is run.
    """

    def __init__(
        self,
        path: str | Path,
        convention: Convention,
        task: str = "darcy",
        parameters: Mapping[str, float] | None = None,
    ) -> None:
        self.path = Path(path)
        if convention not in ("cell_centred", "nodal"):
            raise UserError(f"{self.path}: convention is {convention!r}; use cell_centred or nodal")
        spec = registered_task(task)
        if not spec.steady or spec.dimension != 2 or len(spec.static) != 1 or len(spec.channels) != 1:
            raise UserError(
                f"{self.path}: pairs are one static field and one solution in two dimensions; task {task!r} is not"
            )
        arrays = _load(self.path)
        self._static_name = spec.static[0]
        self._x = _fields(arrays, "x", self.path)
        self._y = _fields(arrays, "y", self.path)
        if self._x.shape != self._y.shape:
            raise UserError(
                f"{self.path}: x has shape {tuple(self._x.shape)} and y {tuple(self._y.shape)}; they must agree"
            )
        for name, values in (
            (f"static field {self._static_name!r} (x)", self._x),
            (f"channel {spec.channel_names[0]!r} (y)", self._y),
        ):
            finite = torch.isfinite(values).flatten(1).all(1)
            if not finite.all():
                sample = int((~finite).nonzero()[0, 0])
                raise UserError(f"{self.path}: sample {sample} has NaN or infinite values in {name}; remove the sample")
        shape = self._y.shape[1:]
        self.header = Header(
            task=task,
            channels=spec.channel_names,
            grid=Grid.cell_centred(shape) if convention == "cell_centred" else Grid.nodal(shape),
            times=torch.zeros(1, dtype=torch.float64),
            boundary=spec.boundary,
            parameters={name: float(value) for name, value in (parameters or {}).items()},
            static=spec.static,
        )

    def __len__(self) -> int:
        return len(self._y)

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        rows = torch.tensor(list(indices), dtype=torch.int64)
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= len(self)):
            raise UserError(f"{self.path}: trajectory {int(rows.max())} is not among the {len(self)} of this file")
        return Batch(
            task=self.task,
            values=self._y[rows][:, None, ..., None][:, frames],
            times=self.times[frames].expand(len(rows), -1),
            grid=self.grid,
            boundary=self.boundary,
            parameters=rows_of(self.header, len(rows)),
            static={self._static_name: self._x[rows]},
            ids=rows,
        )


def _load(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise UserError(f"{path} is not there; check the path")
    try:
        if holds_arrays(path):
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        loaded = torch.load(path, weights_only=True, map_location="cpu")
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


def holds_arrays(path: Path) -> bool:
    """Whether a file is NumPy's `.npz`, judged by its content."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return all(name.endswith(".npy") for name in archive.namelist())


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
    return values.to(torch.float32).contiguous()
