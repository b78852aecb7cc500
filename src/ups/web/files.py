"""What was played as a file: netCDF, a layout of PDEBench's, The Well's. The page writes .npz and films itself."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from ups.data.formats.layouts import LAYOUTS, Layout, named_layout
from ups.errors import UserError
from ups.fields import Batch, Header
from ups.models.saved import TrainedTask
from ups.rollout.places import grid_like

FORMATS = {"nc": ("netcdf",), "well": ("well",)} | {
    "pdebench": tuple(layout.name for layout in LAYOUTS if layout.name.startswith("pdebench"))
}
"""Layouts by what the page calls them; of several, the first that can hold everything is written."""

MASK = "mask"
"""What the page calls the cells inside the domain, beside static fields and forcings."""


@dataclass(frozen=True, eq=False)
class Recording:
    header: Header
    batch: Batch

    @classmethod
    def of(
        cls,
        told: Mapping[str, Any],
        arrays: Mapping[str, Float[np.ndarray, "..."]],
        tasks: Mapping[str, TrainedTask],
    ) -> Recording:
        """From what the page sends: task, times, parameters; `fields` (T, C, *space), static fields, forcings, mask."""
        learned, values, times = tasks.get(str(told.get("task"))), arrays.get("fields"), told.get("times")
        if learned is None or values is None or not isinstance(times, list) or len(times) != len(values):
            raise UserError("the recording is not whole; play first, then download")
        spec = learned.spec
        if values.ndim != 2 + spec.dimension or values.shape[1] != len(spec.channels) or min(values.shape) < 1:
            raise UserError(f"the recording has the shape {values.shape}; play first, then download")
        grid = grid_like(learned.grid, values.shape[2:])
        beside = [*spec.static, *spec.forcings, *([MASK] if spec.masked else [])]
        if any(name not in arrays or arrays[name].shape != grid.shape for name in beside):
            raise UserError(f"{', '.join(beside)} have other points than the recording; play again, then download")
        given = {name: torch.from_numpy(arrays[name])[None] for name in beside}
        parameters = {name: float(told["parameters"][name]) for name in spec.parameters}
        when = torch.tensor([float(time) for time in times], dtype=torch.float64)
        header = Header(
            task=spec.name,
            channels=spec.channel_names,
            grid=grid,
            times=when,
            boundary=spec.boundary,
            parameters=dict(parameters),
            static=spec.static,
            forcings=dict.fromkeys(spec.forcings, False),
            masked=spec.masked,
            notes={"made_by": "a learned simulator, in the playground", "units": dict(spec.units)},
        )
        batch = Batch(
            task=spec.name,
            values=torch.from_numpy(values).movedim(1, -1)[None].contiguous(),
            times=when[None],
            grid=grid,
            boundary=spec.boundary,
            parameters={name: torch.tensor([value], dtype=torch.float64) for name, value in parameters.items()},
            static={name: given[name] for name in spec.static},
            ids=torch.zeros(1, dtype=torch.int64),
            forcings={name: given[name] for name in spec.forcings},
            mask=given[MASK] > 0.5 if spec.masked else None,
        )
        return cls(header, batch)


def written(recording: Recording, kind: str) -> bytes:
    """The file's bytes."""
    if kind not in FORMATS:
        raise UserError(f"there is no format {kind!r}; choose {', '.join(FORMATS)}")
    refused: UserError | None = None
    for name in FORMATS[kind]:
        try:
            return _bytes(recording, named_layout(name))
        except UserError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _bytes(recording: Recording, layout: Layout) -> bytes:
    if lost := layout.loses(recording.header):
        raise UserError(f"files of {layout.name} do not keep {', '.join(lost)}; download netCDF instead")
    with tempfile.TemporaryDirectory(prefix="ups-play-") as folder:
        path = Path(folder) / f"{recording.header.task}{layout.extension}"
        with layout.writer(path, recording.header, 1) as writer:
            writer.write(recording.batch)
        return path.read_bytes()
