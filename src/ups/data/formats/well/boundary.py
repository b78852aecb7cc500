"""The boundary group of The Well's files: WALL, OPEN and PERIODIC on masked points, read and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Bool, Int

from ups.data.formats.hdf5 import read_part, read_rows
from ups.errors import UserError
from ups.fields import AXES, Boundary, Header, Kind, Side

_KINDS: dict[str, Kind] = {"WALL": "reflecting", "OPEN": "open", "PERIODIC": "periodic"}
_ENDS = ("0", "L")


def names_of(attributes: h5py.AttributeManager, key: str, where: str) -> tuple[str, ...]:
    """An attribute that lists names; one name alone, or bytes, are also in use."""
    value = attributes.get(key)
    if value is None:
        raise UserError(f"{where} has no attribute {key!r}; add the list of names or fetch the file again")
    names = [value] if isinstance(value, str | bytes) else list(np.asarray(value).reshape(-1))
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def set_names(item: h5py.Group | h5py.File, key: str, names: Sequence[str]) -> None:
    """Write a list of names; an empty one too is a list of text."""
    item.attrs.create(key, np.array(list(names), dtype=object), dtype=h5py.string_dtype())


def read_boundary(groups: h5py.Group, dims: Sequence[str], channels: Sequence[str], path: Path) -> Boundary:
    """A wall is `value` where the file stores a value for every channel, else `reflecting`; what is unsaid is open."""
    sides: list[list[Kind]] = [["open", "open"] for _ in dims]
    values: dict[tuple[int, int], dict[str, float]] = {}
    for name in map(str, groups):
        group, kind, axes = _condition(groups, name, dims, path)
        on = _mask(group, axes)
        for number, axis in enumerate(axes):
            for end in (0, 1):
                face = np.take(on, -end, axis=number)
                # A face is a wall where all of it is; an axis is periodic whatever the mask says, since published
                # writers leave it empty.
                if kind == "PERIODIC" or (face.all() if kind == "WALL" else face.any()):
                    place = (dims.index(axis), end)
                    sides[place[0]][end] = _KINDS[kind]
                    if kind == "WALL" and len(axes) == 1:
                        values.setdefault(place, {}).update(_wall_values(group, on, end, dims))
    pairs = [
        tuple(_side(kind, values.get((axis, end), {}), channels) for end, kind in enumerate(kinds))
        for axis, kinds in enumerate(sides)
    ]
    return Boundary(tuple((lower, upper) for lower, upper in pairs))


@dataclass(frozen=True)
class InnerWall:
    """Walls given point by point inside the domain: where their mask lies, whether each sample has its own, and the
    axes of the grid that its own are, in the file's order; it holds along the others.
    """

    place: str
    samples: bool
    axes: tuple[int, ...]

    def read(self, file: h5py.File, rows: Int[np.ndarray, " B"], dimension: int) -> Bool[np.ndarray, "own *space"]:
        """True in the wall; axis of samples and axes along which it holds have one entry, ready to be broadcast."""
        walls: Any = file[self.place]
        found = (read_rows(walls, rows) if self.samples else read_part(walls, ())[None]) != 0
        ordered = np.moveaxis(found, range(1, found.ndim), [1 + sorted(self.axes).index(axis) for axis in self.axes])
        return np.expand_dims(ordered, [1 + axis for axis in range(dimension) if axis not in self.axes])


def inner_walls(
    groups: h5py.Group, dims: Sequence[str], shape: Sequence[int], count: int, path: Path
) -> list[InnerWall]:
    """Walls that are more than faces of the domain."""
    found = []
    for name in map(str, groups):
        group, kind, axes = _condition(groups, name, dims, path)
        if kind != "WALL":
            continue
        mask, where = _dataset(group, "mask"), f"{path}: boundary_conditions/{name}"
        if len(axes) == 1 and not np.asarray(mask[()], dtype=bool)[..., 1:-1].any():
            continue
        own, samples = tuple(shape[dims.index(axis)] for axis in axes), mask.ndim > len(axes)
        if samples and bool(group.attrs.get("time_varying", False)):
            raise UserError(f"{where} moves with time, and a mask is that of a whole trajectory; use other data")
        if mask.shape != (count,) * samples + own:
            raise UserError(
                f"{where} has a mask of shape {mask.shape}, but the axes {', '.join(axes)} of this file say {own}; the "
                "file is damaged or its attributes are wrong"
            )
        found.append(InnerWall(f"{groups.name}/{name}/mask", samples, tuple(dims.index(axis) for axis in axes)))
    return found


def write_boundary(groups: h5py.Group, header: Header, fields: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """A group a side (periodic: an axis); walls with values have one a field, as the format wants it."""
    for axis, points, pair in zip(AXES[: header.grid.dimension], header.grid.shape, header.boundary.sides, strict=True):
        if pair[0].kind == "periodic":
            _write(groups, f"{axis}_periodic", axis, "PERIODIC", points, (0, -1))
            continue
        for end, side in enumerate(pair):
            name, at = f"{axis}{_ENDS[end]}", (-end,)
            if side.kind == "open":
                _write(groups, f"{name}_open", axis, "OPEN", points, at)
            elif side.kind != "value" or len(side.value) not in (0, len(header.channels)):
                _write(groups, f"{name}_wall", axis, "WALL", points, at)
            else:
                given = dict(zip(header.channels, side.value or (0.0,) * len(header.channels), strict=True))
                for field, parts in fields:
                    group = _write(groups, f"{name}_wall_{field}", axis, "WALL", points, at, field)
                    numbers = [given[part] for part in parts]
                    group["values"] = np.array([numbers if parts != (field,) else numbers[0]])


def _condition(
    groups: h5py.Group, name: str, dims: Sequence[str], path: Path
) -> tuple[h5py.Group, str, tuple[str, ...]]:
    where = f"{path}: boundary_conditions/{name}"
    group = groups[name]
    if not isinstance(group, h5py.Group) or not isinstance(group.get("mask"), h5py.Dataset):
        raise UserError(f"{where} must be a group with a dataset 'mask'; fetch the file again or add it")
    kind = str(group.attrs.get("bc_type", "")).upper()
    if kind not in _KINDS:
        raise UserError(f"{where} has bc_type {kind!r}; use one of {', '.join(_KINDS)}")
    axes = names_of(group.attrs, "associated_dims", where)
    if not axes or any(axis not in dims for axis in axes):
        raise UserError(f"{where} is on the axes {', '.join(axes) or 'none'}; the file has {', '.join(dims)}")
    return group, kind, axes


def _dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    item = group[name]
    assert isinstance(item, h5py.Dataset)
    return item


def _mask(group: h5py.Group, axes: Sequence[str]) -> np.ndarray:
    """Where the condition holds, in every sample."""
    mask = np.asarray(_dataset(group, "mask")[()], dtype=bool)
    return np.asarray(mask.all(axis=tuple(range(mask.ndim - len(axes)))))


def _wall_values(group: h5py.Group, on: np.ndarray, end: int, dims: Sequence[str]) -> dict[str, float]:
    """What a wall holds its field at: one number a masked point, or one component a point; other shapes say nothing."""
    fields = names_of(group.attrs, "associated_fields", "") if "associated_fields" in group.attrs else ()
    stored = group.get("values")
    if len(fields) != 1 or not isinstance(stored, h5py.Dataset) or stored.dtype.kind != "f":
        return {}
    values = np.asarray(stored[()], dtype=np.float64)
    if values.shape == (int(on.sum()),):
        return {fields[0]: float(values[-end])}
    if values.shape == (int(on.sum()), len(dims)):
        return {f"{fields[0]}_{dim}": float(value) for dim, value in zip(dims, values[-end], strict=True)}
    return {}


def _side(kind: Kind, values: dict[str, float], channels: Sequence[str]) -> Side:
    if kind == "reflecting" and all(channel in values for channel in channels):
        return Side("value", tuple(values[channel] for channel in channels))
    return Side(kind)


def _write(
    groups: h5py.Group, name: str, axis: str, kind: str, points: int, at: tuple[int, ...], field: str | None = None
) -> h5py.Group:
    group = groups.create_group(name)
    set_names(group, "associated_dims", [axis])
    set_names(group, "associated_fields", [field] if field else [])
    group.attrs["bc_type"] = kind
    group.attrs["sample_varying"] = False
    group.attrs["time_varying"] = False
    mask = np.zeros(points, dtype=bool)
    mask[list(at)] = True
    group["mask"] = mask
    return group
