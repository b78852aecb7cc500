"""What a request asks for, from bytes that may hold anything.

JSON takes the arguments of `Simulator.rollout` by name, arrays as nested lists; an .npz archive takes the same as
arrays, "conditions.beta" for a condition, "forcings.f" for a forcing, "grid.x" and "grid.extent" for the grid; an Arrow
stream has a column for each of these (`arrow.py`).
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch

from ups.errors import UserError
from ups.fields import AXES, Grid
from ups.web.arrow import from_arrow
from ups.web.settings import ServerSettings

JSON, NPZ, ARROW = "application/json", "application/x-npz", "application/vnd.apache.arrow.stream"
ARRAYS = ("u0", "times", "at", "mask")
WHOLE = {"steps": 1, "members": 1, "seed": 0}
"""Whole numbers, and the least of each."""
GROUPS = ("conditions", "forcings", "grid")
KNOWN = ("task", *ARRAYS, *WHOLE, "dt", *GROUPS)
MOST_ARRAYS = 64
LONGEST_NAME = 100
DEEPEST = 6
"""Nested lists of an array."""


def read(body: bytes, kind: str, settings: ServerSettings) -> dict[str, Any]:
    """The arguments of `Simulator.question`."""
    return arguments({JSON: _from_json, NPZ: _from_npz, ARROW: _from_arrow}[kind](body, settings), settings)


def arguments(given: Mapping[str, Any], settings: ServerSettings) -> dict[str, Any]:
    for name in given:
        if name not in KNOWN:
            raise UserError(f"a request has no {name[:50]!r}; it has {', '.join(KNOWN)}")
    given = {name: value for name, value in given.items() if value is not None}
    read: dict[str, Any] = {name: _array(given[name], name) for name in ARRAYS if name in given}
    if "times" in read and (read["times"].ndim != 1 or len(read["times"]) > settings.steps + 1):
        raise UserError(f"times has the shape {read['times'].shape}; give a list of {settings.steps + 1} at most")
    for name, least in WHOLE.items():
        if name in given:
            read[name] = _whole(given[name], name, least, getattr(settings, name, 2**63 - 1))
    if "dt" in given:
        value = _array(given["dt"], "dt")
        if value.ndim:
            raise UserError("dt is a list; give one number")
        read["dt"] = float(value)
    if "task" in given:
        if not isinstance(given["task"], str):
            raise UserError("task is no text; give the task's name")
        read["task"] = given["task"][:200]
    for group in GROUPS:
        if group in given:
            if not isinstance(given[group], Mapping) or len(given[group]) > MOST_ARRAYS:
                raise UserError(f"{group} is no table of names and numbers")
            if too_long := [name for name in given[group] if len(name) > LONGEST_NAME]:
                raise UserError(f"{group} has no {too_long[0][:LONGEST_NAME]!r}...; it has short names")
            read[group] = {name: _array(value, f"{group}.{name}") for name, value in given[group].items()}
    if "grid" in read:
        read["grid"] = _grid(read["grid"])
    return read


def _array(value: Any, name: str) -> np.ndarray:
    """In double precision, as all numbers of JSON are, but truths."""
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise UserError(f"{name} is no array of numbers; give a number, or lists of lists of equal lengths")
    if array.ndim > DEEPEST or array.size == 0:
        raise UserError(f"{name} has the shape {array.shape}; give some numbers, on {DEEPEST} axes at most")
    return array.astype(np.bool_ if array.dtype.kind == "b" else np.float64)


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{name} is {str(value)[:30]}; this server takes whole numbers from {least} to {most}")
    return value


def _grid(given: Mapping[str, np.ndarray]) -> Grid:
    axes = [axis for axis in AXES if axis in given]
    extent = given.get("extent")
    if set(given) != {*axes, "extent"} or extent is None or extent.shape != (len(axes), 2) or not axes:
        raise UserError("grid needs the positions along each axis, x, y, z, and extent, [[lower, upper], ...]")
    for axis, (lower, upper) in zip(axes, extent.tolist(), strict=True):
        places = given[axis]
        inside = places.ndim == 1 and -math.inf < lower <= places[0] and places[-1] <= upper < math.inf
        if not (inside and lower < upper and np.isfinite(places).all() and (np.diff(places) > 0).all()):
            raise UserError(f"grid.{axis} must be increasing numbers inside its extent")
    return Grid(tuple(torch.from_numpy(given[axis]) for axis in axes), tuple((a, b) for a, b in extent.tolist()))


def _from_json(body: bytes, settings: ServerSettings) -> dict[str, Any]:
    if len(body) > settings.json_body:
        raise TooLarge(f"a request in JSON has {settings.json_body:,} bytes at most; send large arrays as {NPZ}")
    try:
        given = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the body is not JSON ({str(error)[:100]})") from None
    if not isinstance(given, dict):
        raise Unreadable("the body is not a JSON object; give the arguments by name")
    return given


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


class Unreadable(UserError):
    """Not what the content type says: status 400 rather than 422."""


class TooLarge(UserError):
    """Status 413."""


def _from_npz(body: bytes, settings: ServerSettings) -> dict[str, Any]:
    given: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = archive.infolist()
            if len(members) > MOST_ARRAYS or sum(member.file_size for member in members) > settings.body:
                raise TooLarge(
                    f"an archive has {MOST_ARRAYS} arrays of {settings.body:,} bytes together at most, unpacked"
                )
            for member in members:
                with archive.open(member) as file:
                    content = file.read(member.file_size)
                _put(given, member.filename.removesuffix(".npy"), _from_npy(content))
    except TooLarge:
        raise
    except (ValueError, SyntaxError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise Unreadable(f"the body is no readable .npz archive ({str(error)[:100]})") from None
    except (NotImplementedError, RuntimeError, RecursionError, MemoryError, TypeError, KeyError, OverflowError):
        raise Unreadable("the body is no readable .npz archive; numpy.savez makes one") from None
    return given


def _from_npy(content: bytes) -> Any:
    """An array of numbers, or a text; what a header says is not believed before it agrees with the bytes."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError("an array is of an unknown version")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    start, size = file.tell(), math.prod(shape)
    if dtype.kind not in "biufU" or min(shape, default=1) < 0 or size * dtype.itemsize != len(content) - start:
        raise ValueError("an array holds other things than numbers, or not as many as it says")
    array = np.frombuffer(content, dtype, size, start).reshape(shape, order="F" if fortran else "C")
    return str(array) if dtype.kind == "U" and not shape else array


def _put(given: dict[str, Any], name: str, value: Any) -> None:
    group, dot, inner = name.partition(".")
    if dot and group in GROUPS:
        given.setdefault(group, {})[inner] = value
    else:
        given[name] = value


def _from_arrow(body: bytes, settings: ServerSettings) -> dict[str, Any]:
    try:
        columns = from_arrow(body, MOST_ARRAYS)
    except ValueError as error:
        raise Unreadable(f"the body is no readable Arrow stream ({str(error)[:150]})") from None
    given: dict[str, Any] = {}
    for name, value in columns.items():
        _put(given, name, value)
    return given
