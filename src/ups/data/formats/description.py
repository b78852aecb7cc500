"""A header as text: the attribute `ups` of the files we write, by which they are read back exactly.

Published layouts round positions to float32 and leave out boundaries, tasks and licences; this attribute has them all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import Boundary, Grid, Header, Side

ATTRIBUTE = "ups"
_MOST_POINTS = 10**7
"""Along an axis; a number alone could ask for any memory."""
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def to_json(header: Header) -> str:
    """Python writes floats so that they read back equal."""
    content = {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(header).items()}
    del content["own_times"]  # the file's own array of times
    content |= {
        "grid": [_axis(p, e) for p, e in zip(header.grid.positions, header.grid.extent, strict=True)],
        "times": header.times.tolist(),
        "boundary": [[vars(side) for side in pair] for pair in header.boundary.sides],
        "dtype": str(header.dtype).removeprefix("torch."),
    }
    if header.given == 1:  # so that what says nothing of it is the same text as before there was such a number
        del content["given"]
    return json.dumps({"version": 1, **content})


def from_json(text: str, path: Path) -> Header:
    try:
        content = json.loads(text)
        if (version := content.pop("version")) != 1:
            raise UserError(f"{path}: attribute {ATTRIBUTE!r} is of version {version}, this package reads 1; update it")
        axes = [_positions(axis) for axis in content["grid"]]
        understood = {
            "channels": tuple(content["channels"]),
            "grid": Grid(tuple(p for p, _ in axes), tuple(e for _, e in axes)),
            "times": torch.tensor(content["times"], dtype=torch.float64),
            "boundary": Boundary(tuple((_side(lower), _side(upper)) for lower, upper in content["boundary"])),
            "static": tuple(content["static"]),
            "dtype": _DTYPES[content["dtype"]],
        }
        return Header(**content | understood)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: attribute {ATTRIBUTE!r} is damaged ({error!r}); delete the attribute to read the file without it"
        ) from error


def described(file: h5py.File, path: Path) -> Header | None:
    """The header in a file's attribute `ups`; None where others wrote the file."""
    text = file.attrs.get(ATTRIBUTE)
    if text is None:
        return None
    if not isinstance(text, str):
        raise UserError(f"{path}: attribute {ATTRIBUTE!r} is no text; delete the attribute to read the file without it")
    return from_json(text, path)


def check_agrees(key: str, shape: tuple[int, ...], expected: tuple[int, ...], path: Path) -> None:
    """Refuse a description that is not of the array `key`."""
    if shape != expected:
        raise UserError(
            f"{path}: {key!r} has shape {shape}, but the attribute {ATTRIBUTE!r} describes {expected}; "
            "the file was changed: make it again, or delete the attribute to read the file without it"
        )


def _axis(positions: Float[Tensor, " n"], extent: tuple[float, float]) -> dict[str, Any]:
    """Even axes by their kind, so that the text stays short; others in full."""
    axis: dict[str, Any] = {"extent": extent}
    n = len(positions)
    for kind, make in (("cell_centred", Grid.cell_centred), ("nodal", Grid.nodal)):
        if torch.equal(make((n,), (extent,)).positions[0], positions):
            return {**axis, kind: n}
    return {**axis, "positions": positions.tolist()}


def _positions(axis: Mapping[str, Any]) -> tuple[Float[Tensor, " n"], tuple[float, float]]:
    lower, upper = axis["extent"]
    extent = (float(lower), float(upper))
    for kind, make in (("cell_centred", Grid.cell_centred), ("nodal", Grid.nodal)):
        if kind in axis:
            if axis[kind] not in range(1, _MOST_POINTS):
                raise ValueError(f"{axis[kind]} points along an axis")
            return make((axis[kind],), (extent,)).positions[0], extent
    return torch.tensor(axis["positions"], dtype=torch.float64), extent


def _side(entry: Mapping[str, Any]) -> Side:
    return Side(entry["kind"], tuple(float(v) for v in entry["value"]))
