"""What arrays are taken for: channels, axes, times, grid, sides, conditions; each with how it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ups.data.formats.arrays.axes import PROBED, PROBED_NUMBERS, Known, found_axes, named_axes, told_axes
from ups.data.formats.arrays.conditions import found_conditions, taken_out
from ups.data.formats.arrays.contents import Contents, NamedArray
from ups.data.formats.arrays.domain import ASSUMED, GIVEN, found_axis
from ups.data.formats.arrays.meaning import Row, Told, Understood
from ups.data.formats.hdf5 import even_times
from ups.data.tasks import task_from_mapping
from ups.errors import UserError
from ups.fields import AXES, Boundary, Grid, Header

TIMES = ("t", "time", "times", "t-coordinate")
APART = 1e3
"""Channels whose sizes differ by more than this are spoken of."""
OFFSET = 3.0
"""Standard deviations: a channel whose mean is further from zero is learned by its departures from it."""


def understood(contents: Contents, told: Told, task: str) -> Understood:
    return _Reading(contents, told, task).result()


class _Reading:
    """The arrays, understood step by step; each step leaves rows and notes."""

    def __init__(self, contents: Contents, told: Told, task: str) -> None:
        self.contents, self.told, self.task = contents, told, task
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.offset: tuple[str, ...] = ()
        self.coordinates = dict(contents.coordinates)
        self.others: dict[str, NamedArray] = {}
        self.fields = self._fields()
        self.listed = isinstance(self.first.values, list)
        self.axes = self._axes()
        self.lengths = self._lengths()
        self.probe = self._probe()

    @property
    def first(self) -> NamedArray:
        return next(iter(self.fields.values()))

    def size(self, letter: str) -> int:
        shape = self.first.shape[1:] if self.listed else self.first.shape
        return shape[self.axes.index(letter)]

    @property
    def dimension(self) -> int:
        return sum(letter in self.axes for letter in "XYZ")

    @property
    def dims(self) -> dict[str, str]:
        """What each axis is called, where they have names; those of lists begin with the trajectories'."""
        return dict(zip(reversed(self.axes), reversed(self.first.dims), strict=False))

    def result(self) -> Understood:
        names, times = self._names(), self._times()
        boundary, points, grid = self._space(names)
        stored = self.probe.shape[2:-1]
        found = found_conditions(self.given, self.others, self.lengths, stored)
        self.rows += found.rows
        self.notes += found.notes
        parameters, static, forcings = found.parameters, found.static, found.forcings
        units = self._units(names)
        self._say_sizes(names)
        double = all(_dtype(each) == np.float64 for each in self.fields.values())
        header = Header(
            task=self.task,
            channels=names,
            grid=grid,
            times=times[0],
            own_times=None,
            boundary=boundary,
            parameters={n: float(v[0]) if (v == v[0]).all() else None for n, v in parameters.items()},
            static=tuple(static),
            forcings={name: "T" in letters for name, (_, letters) in forcings.items()},
            masked=found.mask is not None,
            dtype=torch.float64 if double else torch.float32,
            notes={"units": units} if units else {},
        )
        return Understood(
            header,
            tuple(self.fields.values()),
            self.axes,
            points,
            self.lengths,
            times,
            parameters,
            static,
            forcings,
            found.mask,
            tuple(self.rows),
            tuple(self.notes),
            self.timed,
            self.offset,
        )

    # Which arrays are the fields

    def _fields(self) -> dict[str, NamedArray]:
        arrays = dict(self.contents.arrays)
        self.given = taken_out(arrays, self.told, self.contents.source)
        for name in (*TIMES, *AXES, *(f"{axis}-coordinate" for axis in AXES)):
            most = 2 if name in TIMES else 1  # times may be each trajectory's own
            if name in arrays and len(arrays[name].shape) <= most and len(arrays) > 1:
                self.coordinates.setdefault(name.removesuffix("-coordinate"), arrays.pop(name))
        if not arrays:
            raise UserError(f"{self.contents.source} holds no array of numbers; give the fields")
        named = {name: each for name, each in arrays.items() if name in (self.told.channels or ())}
        if not named:
            most = max(len(each.shape) for each in arrays.values())
            named = {name: each for name, each in arrays.items() if len(each.shape) == most}
            timed = {name: each for name, each in named.items() if "T" in _letters(each)}
            named = timed or named
        shapes = {name: each.shape for name, each in named.items()}
        if len(set(shapes.values())) > 1:
            shown = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise UserError(
                f"{self.contents.source} holds arrays of several shapes: {shown}; give channels= the fields"
            )
        self.others = {name: each for name, each in arrays.items() if name not in named}
        return named

    def _axes(self) -> str:
        told, shape, what = self.told, self.first.shape, self.contents.source
        if self.listed:
            if told.axes is not None:
                return told_axes(told.axes.upper().replace("B", ""), shape[1:], "a trajectory")
            if self.first.dims:
                return named_axes(self.first.dims, what).replace("B", "")
            longest = max(self.first.values, key=len)
            axes, notes = found_axes(np.asarray(longest, np.float64)[None], (1, *longest.shape), self._known(), what)
            self.notes += notes
            return axes.replace("B", "")
        if told.axes is not None:
            axes = told_axes(told.axes, shape, what)
        elif self.first.dims:
            axes = named_axes(self.first.dims, what)
        else:
            axes, notes = found_axes(_some(self.first.values), shape, self._known(), what)
            self.notes += notes
        for letter, word in (("B", "trajectories"), ("T", "times")):
            if letter not in axes:
                raise UserError(f"{what} of shape {shape} has no axis of {word}; give fields of several trajectories")
        return axes

    def _known(self) -> Known:
        told = self.told
        counts = {each.shape[0] for each in self.given["parameter"].values() if each.shape not in ((), (1,))}
        times = self._given_times
        count = None if times is None or isinstance(times.values, list) else times.shape[-1]
        dimension = None
        if told.lengths is not None:
            dimension = len(np.atleast_1d(np.asarray(told.lengths, dtype=np.float64)))
        elif isinstance(told.boundary, list | tuple | Mapping):
            dimension = len(told.boundary)
        elif spaced := [axis for axis in AXES if axis in self.coordinates]:
            dimension = len(spaced)
        channels = told.channels if told.channels is not None and len(self.fields) == 1 else None
        if len(self.fields) > 1 and dimension is None:
            dimension = len(self.first.shape) - 2
        return Known(max(counts) if counts else None, count, None if channels is None else len(channels), dimension)

    def _lengths(self) -> tuple[int, ...]:
        if not self.listed:
            return (self.size("T"),) * self.size("B")
        place = self.axes.index("T")
        shapes = [tuple(each.shape) for each in self.first.values]
        others = {shape[:place] + shape[place + 1 :] for shape in shapes}
        if len(others) > 1 or len({len(shape) for shape in shapes}) > 1:
            raise UserError(
                f"{self.contents.source}: trajectories have the shapes {', '.join(map(str, sorted(set(shapes))[:4]))}; "
                "only their numbers of frames may differ"
            )
        return tuple(shape[place] for shape in shapes)

    def _probe(self) -> Float[np.ndarray, "B T *space C"]:
        """Some trajectories, with their axes in the order of the house and all channels; not finite is zero."""
        columns = []
        for each in self.fields.values():
            if self.listed:
                shortest = min(self.lengths)
                at = (slice(None),) * self.axes.index("T") + (slice(shortest),)
                rows = [np.asarray(t[at], np.float64) for t in each.values[:: _apart(each.shape)]]
                columns.append(ordered(np.stack(rows), "B" + self.axes))
            else:
                columns.append(ordered(_some(each.values, self.axes.index("B")), self.axes))
        return np.nan_to_num(np.concatenate(columns, -1), nan=0.0, posinf=0.0, neginf=0.0)

    # What they mean

    def _names(self) -> tuple[str, ...]:
        count = self.probe.shape[-1]
        told = self.told.channels
        if told is not None and len(told) != count:
            raise UserError(f"channels names {len(told)}, and {self.contents.source} has {count}")
        if told is not None:
            names, how = tuple(map(str, told)), GIVEN
        elif len(self.fields) == count:
            names, how = tuple(self.fields), "names of the arrays" if len(self.contents.arrays) > 1 else ASSUMED
        else:
            names, how = tuple(f"u{n}" for n in range(count)), ASSUMED
        self.rows.append(Row("trajectories", f"{len(self.lengths)}"))
        self.rows.append(Row("channels", ", ".join(names), how))
        return names

    @property
    def _stored_times(self) -> NamedArray | None:
        named = (self.dims["T"],) if self.dims else ()
        return next((self.coordinates[name] for name in (*named, *TIMES) if name in self.coordinates), None)

    @property
    def _given_times(self) -> NamedArray | None:
        told = self.told.times
        if told is None:
            return next((self.coordinates[name] for name in TIMES if name in self.coordinates), None)
        if isinstance(told, list | tuple) and told and all(np.ndim(each) for each in told):
            return NamedArray([np.asarray(each, dtype=np.float64) for each in told])
        return NamedArray(np.asarray(told, dtype=np.float64))

    @property
    def timed(self) -> bool:
        """Whether anything says when the frames are."""
        return not (self.told.dt is None and self.told.times is None and self._stored_times is None)

    def _times(self) -> tuple[Float[Tensor, " _"], ...]:
        """Of every trajectory. Equal steps are the first's, from the start on."""
        frames, told = max(self.lengths), self.told
        if min(self.lengths) < 3:
            raise UserError(
                f"{self.contents.source} has a trajectory of {min(self.lengths)} frames; give three at least, to learn "
                "a step and to see it repeated"
            )
        given, how = self._given_times if told.times is not None else None, GIVEN
        if given is None and told.dt is not None:
            if not (np.isfinite(told.dt) and told.dt > 0):
                raise UserError(f"dt is {told.dt}; give a positive time")
            given = NamedArray(np.arange(frames) * float(told.dt))
        elif given is None and (given := self._stored_times) is not None:
            how = "coordinate of the data"
        elif given is None:
            given, how = NamedArray(np.arange(frames)), f"{ASSUMED}: times are counted in frames; give dt"
        each = self._each_times(given)
        ends = [(float(own.diff().min()), float(own.diff().max())) for own in each]
        apart = min(low for low, _ in ends), max(high for _, high in ends)
        dt = float(each[0].diff().mean())
        even = apart[1] - apart[0] <= 2e-4 * dt
        shown = f"{frames}" if min(self.lengths) == frames else f"{min(self.lengths)} to {frames}"
        steps = f"dt {dt:.6g}" if even else f"uneven: {apart[0]:.4g} to {apart[1]:.4g} apart"
        self.rows.append(Row("frames", f"{shown}, {steps}", how))
        return (max(each, key=len), *each[1:]) if even else each

    def _each_times(self, given: NamedArray) -> tuple[Float[Tensor, " _"], ...]:
        count, frames = len(self.lengths), max(self.lengths)
        own = given.values if isinstance(given.values, list) else np.asarray(given.values[()], dtype=np.float64)
        if not isinstance(own, list):
            if own.shape not in ((frames,), (count, frames)):
                raise UserError(
                    f"times have the shape {own.shape}; give {frames} increasing numbers, one for each frame, or "
                    f"{(count, frames)}"
                )
            own = [
                row[:length] for row, length in zip(np.broadcast_to(own, (count, frames)), self.lengths, strict=True)
            ]
        if [len(row) for row in own] != list(self.lengths):
            raise UserError("times are not as many as the frames of every trajectory; give one for each frame")
        for number, row in enumerate(own):
            if not (np.isfinite(row).all() and (np.diff(row) > 0).all()):
                raise UserError(f"times of trajectory {number} do not increase; give increasing numbers")
        return tuple(even_times(np.array(row)) for row in own)

    def _space(self, names: Sequence[str]) -> tuple[Boundary, tuple[int, ...], Grid]:
        boundary, spans = self._told_boundary(names), self._told_lengths()
        shape, axes = self.probe.shape[2:-1], []
        for axis, (name, n) in enumerate(zip(AXES, shape, strict=False)):
            coordinate = None if spans else self._coordinate(axis)
            span = spans[axis] if spans else (0.0, n / max(shape))
            along = np.moveaxis(self.probe, 2 + axis, 0)
            found = found_axis(along, name, coordinate, span, boundary and boundary.sides[axis])
            axes.append(found)
            self.notes += found.notes
            how = GIVEN if spans else f"{ASSUMED}: even spacing, the longest axis 1; give lengths"
            lower, upper = found.extent
            where = f"{found.kept} points in ({lower:.6g}, {upper:.6g})"
            self.rows.append(Row(name, where, how if coordinate is None else "coordinate of the data"))
            self.rows.append(Row(f"sides of {name}", " / ".join(dict.fromkeys(map(str, found.sides))), found.how))
        grid = Grid(tuple(found.positions for found in axes), tuple(found.extent for found in axes))
        return Boundary(tuple(found.sides for found in axes)), tuple(found.kept for found in axes), grid

    def _told_boundary(self, names: Sequence[str]) -> Boundary | None:
        told = self.told.boundary
        if told is None:
            return None
        if isinstance(told, Mapping):
            axes = AXES[: self.dimension]
            if set(told) != set(axes):
                given = ", ".join(map(str, told))
                raise UserError(f"boundary names the axes {given}; give one for each of {', '.join(axes)}")
            told = [told[axis] for axis in axes]
        told = told if isinstance(told, str) else list(told)
        spec = {"name": self.task, "dimension": self.dimension, "channels": list(names), "boundary": told}
        return task_from_mapping(spec).boundary

    def _told_lengths(self) -> list[tuple[float, float]] | None:
        told = self.told.lengths
        if told is None:
            return None
        each = [told] if np.ndim(told) == 0 else list(told)
        if len(each) != self.dimension:
            raise UserError(f"lengths has {len(each)} entries; give {self.dimension}, one an axis of space")
        spans = [(0.0, float(e)) if np.ndim(e) == 0 else (float(e[0]), float(e[1])) for e in each]
        for lower, upper in spans:
            if not (np.isfinite([lower, upper]).all() and lower < upper):
                raise UserError(f"lengths is {told!r}; give positive lengths, or (lower, upper) pairs")
        return spans

    def _coordinate(self, axis: int) -> np.ndarray | None:
        names = [AXES[axis]]
        if self.dims:
            names.insert(0, self.dims["XYZ"[axis]])
        found = next((self.coordinates[name] for name in names if name in self.coordinates), None)
        return None if found is None else np.asarray(found.values, dtype=np.float64)

    def _units(self, names: Sequence[str]) -> dict[str, str]:
        units = {
            name: each.unit for name, each in zip(names, self.fields.values(), strict=False) if len(self.fields) > 1
        }
        units |= {names[0]: self.first.unit} if len(names) == 1 else {}
        units["time"] = self._stored_times.unit if self._stored_times is not None else ""
        for axis in range(self.dimension):
            found = self.coordinates.get(self.dims.get("XYZ"[axis], "")) or self.coordinates.get(AXES[axis])
            units[AXES[axis]] = "" if found is None else found.unit
        units |= {name: each.unit for name, each in self.others.items()}
        units |= dict(self.told.units)
        units = {name: unit for name, unit in units.items() if unit}
        if units:
            self.rows.append(Row("units", ", ".join(f"{name} {unit}" for name, unit in units.items())))
        return units

    def _say_sizes(self, names: Sequence[str]) -> None:
        flat = self.probe.reshape(-1, len(names))
        sizes = np.sqrt(np.square(flat).mean(0))
        for name, values in zip(names, flat.T, strict=True):
            if np.ptp(values) == 0:
                self.notes.append(f"channel {name} is {values[0]:g} everywhere: there is nothing to learn of it")
            elif not np.ptp(self.probe[..., names.index(name)], axis=1).any():
                self.notes.append(
                    f"channel {name} does not change in time; a static field ({name}) says more to a model"
                )
            elif abs(values.mean()) > OFFSET * values.std():
                self.offset += (name,)
                self.notes.append(f"channel {name} varies little about {values.mean():.4g}: its departures are learned")
        some = sizes[sizes > 0]
        if len(some) > 1 and some.max() > APART * some.min():
            self.notes.append(
                f"channels differ in size by {some.max() / some.min():.1g}: each is learned in units of its own"
            )


def ordered(values: Shaped[np.ndarray, "..."], axes: str) -> Shaped[np.ndarray, "..."]:
    """With B, T, X, Y, Z, C in this order, where there are any, and C made where there is none."""
    present = [letter for letter in "BTXYZC" if letter in axes]
    values = np.transpose(values, [axes.index(letter) for letter in present])
    return values if "C" in axes else values[..., None]


def _some(values: Any, axis: int = 0) -> Float[np.ndarray, "..."]:
    """Some trajectories, evenly spread along an axis."""
    count = values.shape[axis]
    step = _apart((count, math.prod(values.shape) // max(1, count)))
    part = (slice(None),) * axis + (slice(None, None, step),)
    return np.nan_to_num(np.asarray(values[part], dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _apart(shape: Sequence[int]) -> int:
    """The step from one trajectory that is looked at to the next."""
    many = min(PROBED, max(1, PROBED_NUMBERS // max(1, math.prod(shape[1:]))))
    return max(1, -(-shape[0] // many))


def _letters(each: NamedArray) -> str:
    return named_axes(each.dims, "an array") if each.dims else ""


def _dtype(each: NamedArray) -> np.dtype:
    return np.dtype(each.values[0].dtype if isinstance(each.values, list) else each.values.dtype)
