"""What arrays are taken for: channels, axes, times, grid, sides, conditions; each with how it is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from ups.data.formats.arrays.axes import (
    CLOSES,
    PROBED,
    Known,
    found_axes,
    named_axes,
    seam,
    told_axes,
)
from ups.data.formats.arrays.contents import Contents, NamedArray, plain
from ups.data.formats.hdf5 import axis_positions, even_times
from ups.data.tasks import task_from_mapping
from ups.errors import UserError
from ups.fields import AXES, Boundary, Grid, Header, Side

TIMES = ("t", "time", "times", "t-coordinate")
GIVEN, FOUND, ASSUMED = "given", "found in the data", "assumed"
APART = 1e3
"""Channels whose sizes differ by more than this are spoken of."""
_SAME = 1e-6
"""Of a field's size: values no further apart are the same."""


@dataclass(frozen=True)
class Told:
    """What a person says of their arrays; what they do not say is found in them, or assumed.

    `axes` has a letter an axis (B trajectories, T time, X Y Z space, C channels); `lengths` the domain's lengths, or
    (lower, upper) pairs; `boundary` is one kind for every side, or a list with one entry an axis, or a mapping of axes
    to kinds; `parameters` have a number for each trajectory, or one for all; `static` fields have the grid's shape, with
    or without an axis of trajectories in front.
    """

    axes: str | None = None
    dt: float | None = None
    times: Any = None
    lengths: Any = None
    boundary: Any = None
    channels: Sequence[str] | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    static: Mapping[str, Any] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One line of what is shown: what it is, its value, and how it is known."""

    what: str
    value: str
    how: str = ""


@dataclass(frozen=True, eq=False)
class Understood:
    """`fields` are the arrays of the channels, in order, `axes` a letter for each of their axes, without B where they
    are lists; `points` how many along each axis are kept; `lengths` the frames of each trajectory. `rows` and `notes`
    say it to a person.
    """

    header: Header
    fields: tuple[NamedArray, ...]
    axes: str
    points: tuple[int, ...]
    lengths: tuple[int, ...]
    parameters: Mapping[str, Float[np.ndarray, " B"]]
    static: Mapping[str, tuple[Any, str]]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    timed: bool

    def noted(self, notes: Mapping[str, Any]) -> Understood:
        return replace(self, header=replace(self.header, notes={**self.header.notes, **notes}))

    def header_of(self, frames: int) -> Header:
        """That of pieces of so many frames."""
        return replace(self.header, times=self.header.times[:frames])


def understood(contents: Contents, told: Told, task: str) -> Understood:
    return _Reading(contents, told, task).result()


class _Reading:
    """The arrays, understood step by step; each step leaves rows and notes."""

    def __init__(self, contents: Contents, told: Told, task: str) -> None:
        self.contents, self.told, self.task = contents, told, task
        self.rows: list[Row] = []
        self.notes: list[str] = []
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

    def result(self) -> Understood:
        names, times = self._names(), self._times()
        boundary, points, grid = self._space(names)
        parameters, static = self._conditions(points)
        units = self._units(names)
        self._say_sizes(names)
        double = all(_dtype(each) == np.float64 for each in self.fields.values())
        header = Header(
            task=self.task,
            channels=names,
            grid=grid,
            times=times,
            boundary=boundary,
            parameters={n: float(v[0]) if (v == v[0]).all() else None for n, v in parameters.items()},
            static=tuple(static),
            dtype=torch.float64 if double else torch.float32,
            notes={"units": units} if units else {},
        )
        return Understood(
            header,
            tuple(self.fields.values()),
            self.axes,
            points,
            self.lengths,
            parameters,
            static,
            tuple(self.rows),
            tuple(self.notes),
            self.timed,
        )

    # Which arrays are the fields

    def _fields(self) -> dict[str, NamedArray]:
        arrays = dict(self.contents.arrays)
        for name in (*TIMES, *AXES, *(f"{axis}-coordinate" for axis in AXES)):
            if name in arrays and len(arrays[name].shape) == 1 and len(arrays) > 1:
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
        counts = {len(v) for v in map(np.atleast_1d, told.parameters.values()) if len(v) > 1}
        times = self.coordinates.get("t") or self.coordinates.get("time")
        count = len(told.times) if told.times is not None else None if times is None else times.shape[0]
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
                rows = [np.asarray(t[at], np.float64) for t in each.values[:: max(1, len(each.values) // PROBED)]]
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
        named = (self.first.dims[self.axes.index("T")],) if self.first.dims else ()
        return next((self.coordinates[name] for name in (*named, *TIMES) if name in self.coordinates), None)

    @property
    def timed(self) -> bool:
        """Whether anything says when the frames are."""
        return not (self.told.dt is None and self.told.times is None and self._stored_times is None)

    def _times(self) -> Float[torch.Tensor, " T"]:
        frames, told = max(self.lengths), self.told
        stored = self._stored_times
        how = GIVEN
        if told.times is not None:
            times = np.asarray(told.times, dtype=np.float64).reshape(-1)
        elif told.dt is not None:
            if not (np.isfinite(told.dt) and told.dt > 0):
                raise UserError(f"dt is {told.dt}; give a positive time")
            times = np.arange(frames) * float(told.dt)
        elif stored is not None:
            times, how = np.asarray(stored.values, dtype=np.float64), "coordinate of the data"
        else:
            times, how = np.arange(frames, dtype=np.float64), f"{ASSUMED}: times are counted in frames; give dt"
        if times.shape != (frames,) or not np.isfinite(times).all() or not (np.diff(times) > 0).all():
            raise UserError(f"times have the shape {times.shape}; give {frames} increasing numbers, one for each frame")
        if min(self.lengths) < 3:
            raise UserError(
                f"{self.contents.source} has a trajectory of {min(self.lengths)} frames; give three at least, to learn "
                "a step and to see it repeated"
            )
        even = even_times(times)
        if float((even.diff() - even.diff().mean()).abs().max()) > 1e-4 * float(even.diff().mean()):
            raise UserError("times are uneven; interpolate the trajectories to equal steps, then give them with dt=")
        shown = f"{frames}" if min(self.lengths) == frames else f"{min(self.lengths)} to {frames}"
        self.rows.append(Row("frames", f"{shown}, dt {float(even[1] - even[0]):.6g}", how))
        return even

    def _space(self, names: Sequence[str]) -> tuple[Boundary, tuple[int, ...], Grid]:
        boundary, how = self._told_boundary(names)
        spans, lengths_how = self._told_lengths()
        sides, axes, points = [], [], []
        shape = self.probe.shape[2:-1]
        for axis, n in enumerate(shape):
            if n < 2:
                raise UserError(
                    f"{self.contents.source} has {n} point along {AXES[axis]}; give two or more, or drop the axis"
                )
            pair = None if boundary is None else boundary.sides[axis]
            repeated = (pair is None or pair[0].kind == "periodic") and self._repeats(axis)
            kept = n - repeated
            if repeated:
                self.notes.append(f"the last point along {AXES[axis]} repeats the first: it is left out")
            if pair is None:
                pair, side_how = self._found_sides(axis, kept, names)
            else:
                side_how = how
                self._doubt(axis, kept, pair)
            periodic = pair[0].kind == "periodic"
            axes.append(self._positions(axis, n, kept, periodic, None if spans is None else spans[axis]))
            sides.append(pair)
            points.append(kept)
            given = f"coordinate {AXES[axis]}" if AXES[axis] in self.coordinates else lengths_how
            (positions, (lower, upper)) = axes[-1]
            self.rows.append(Row(f"{AXES[axis]}", f"{len(positions)} points in ({lower:.6g}, {upper:.6g})", given))
            kinds = " / ".join(dict.fromkeys(map(str, pair)))
            self.rows.append(Row(f"sides of {AXES[axis]}", kinds, side_how))
        grid = Grid(tuple(p for p, _ in axes), tuple(span for _, span in axes))
        return Boundary(tuple(sides)), tuple(points), grid

    def _told_boundary(self, names: Sequence[str]) -> tuple[Boundary | None, str]:
        told = self.told.boundary
        if told is None:
            return None, FOUND
        if isinstance(told, Mapping):
            axes = AXES[: self.dimension]
            if set(told) != set(axes):
                raise UserError(
                    f"boundary names the axes {', '.join(map(str, told))}; give one for each of {', '.join(axes)}"
                )
            told = [told[axis] for axis in axes]
        told = told if isinstance(told, str) else list(told)
        spec = {"name": self.task, "dimension": self.dimension, "channels": list(names), "boundary": told}
        return task_from_mapping(spec).boundary, GIVEN

    def _told_lengths(self) -> tuple[list[tuple[float, float]] | None, str]:
        told = self.told.lengths
        if told is None:
            return None, f"{ASSUMED}: even spacing, the longest axis 1; give lengths"
        each = [told] if np.ndim(told) == 0 else list(told)
        if len(each) != self.dimension:
            raise UserError(f"lengths has {len(each)} entries; give {self.dimension}, one an axis of space")
        spans = [(0.0, float(e)) if np.ndim(e) == 0 else (float(e[0]), float(e[1])) for e in each]
        for lower, upper in spans:
            if not (np.isfinite([lower, upper]).all() and lower < upper):
                raise UserError(f"lengths is {told!r}; give positive lengths, or (lower, upper) pairs")
        return spans, GIVEN

    def _repeats(self, axis: int) -> bool:
        """Whether the last point is the first again, which solvers on closed intervals store."""
        along = np.moveaxis(self.probe, 2 + axis, 0)
        size, apart = float(np.abs(along).max()), float(np.abs(along[0] - along[-1]).max())
        moving = float(along[0].std(tuple(range(along.ndim - 2))).max()) > _SAME * size
        return len(along) > 4 and apart <= _SAME * size and moving and seam(along[:-1], 0) < CLOSES

    def _found_sides(self, axis: int, kept: int, names: Sequence[str]) -> tuple[tuple[Side, Side], str]:
        along = np.moveaxis(self.probe, 2 + axis, 0)[:kept]
        scale = np.abs(along).reshape(-1, along.shape[-1]).max(0)
        if any(np.ptp(end.reshape(-1, end.shape[-1]), 0).max() > _SAME * scale.max() for end in (along[0], along[-1])):
            if seam(along, 0) < CLOSES:
                side = Side("periodic")
                return (side, side), f"{FOUND}: they close on themselves"
            inner = np.sqrt(np.square(np.diff(along, axis=0)).mean())
            flat = max(np.sqrt(np.square(along[a] - along[b]).mean()) for a, b in ((0, 1), (-1, -2))) < 0.35 * inner
            side = Side("flux") if flat else Side("open")
            why = (
                f"{FOUND}: flat at both ends" if flat else f"{ASSUMED}: not periodic; give boundary if these are walls"
            )
            return (side, side), why
        values = [tuple(float(v) for v in end.reshape(-1, end.shape[-1]).mean(0)) for end in (along[0], along[-1])]
        lower, upper = (Side("value", v if any(v) else ()) for v in values)
        return (lower, upper), f"{FOUND}: both ends never move"

    def _doubt(self, axis: int, kept: int, pair: tuple[Side, Side]) -> None:
        along = np.moveaxis(self.probe, 2 + axis, 0)[:kept]
        if pair[0].kind == "periodic" and (jump := seam(along, 0)) > 2 * CLOSES:
            self.notes.append(
                f"boundary says that {AXES[axis]} is periodic, but the data jump there: {jump:.0f} times as much as "
                "between neighbours; if there are walls, say so"
            )

    def _positions(
        self, axis: int, n: int, kept: int, periodic: bool, span: tuple[float, float] | None
    ) -> tuple[Float[torch.Tensor, " n"], tuple[float, float]]:
        name = AXES[axis]
        if span is None and (found := self._coordinate(axis)) is not None:
            if found.shape != (n,) or not np.isfinite(found).all() or not (np.diff(found) > 0).all():
                raise UserError(f"coordinate {name!r} has the shape {found.shape}; give {n} increasing positions")
            return axis_positions(found[:kept], periodic)
        if span is None:
            span = (0.0, n / max(self.probe.shape[2:-1]))
        lower, upper = span
        along = np.moveaxis(self.probe, 2 + axis, 0)
        on_walls = all(np.ptp(end.reshape(-1, end.shape[-1]), 0).max() == 0 for end in (along[0], along[-1]))
        if periodic:
            grid = Grid.nodal((kept,), (span,))
        elif on_walls:
            return torch.linspace(lower, upper, n, dtype=torch.float64), span
        else:
            grid = Grid.cell_centred((n,), (span,))
        return grid.positions[0], span

    def _coordinate(self, axis: int) -> np.ndarray | None:
        names = [AXES[axis]]
        if self.first.dims:
            names.insert(0, self.first.dims[self.axes.index("XYZ"[axis])])
        found = next((self.coordinates[name] for name in names if name in self.coordinates), None)
        return None if found is None else np.asarray(found.values, dtype=np.float64)

    def _conditions(self, points: tuple[int, ...]) -> tuple[dict[str, np.ndarray], dict[str, tuple[Any, str]]]:
        """Parameters, a number for each trajectory, and static fields with a letter for each of their axes."""
        count, space = len(self.lengths), "XYZ"[: self.dimension]
        shape = tuple(self.probe.shape[2:-1])
        parameters: dict[str, np.ndarray] = {}
        static: dict[str, tuple[Any, str]] = {}
        given = {name: NamedArray(plain(v, f"parameter {name!r}")) for name, v in self.told.parameters.items()}
        fixed = {name: NamedArray(plain(v, f"static field {name!r}")) for name, v in self.told.static.items()}
        for name, each in {**self.others, **given, **fixed}.items():
            letters, size = _letters(each), each.shape
            if size in ((), (1,), (count,)) and name not in fixed and letters in ("", "B"):
                values = np.asarray(each.values[()], dtype=np.float64)
                if not np.isfinite(values).all():
                    raise UserError(f"parameter {name!r} has NaN or infinite values; mend it")
                parameters[name] = np.broadcast_to(values.reshape(-1), (count,))
            elif name in given:
                raise UserError(f"parameter {name!r} has the shape {size}; give a number, or {count}, one a trajectory")
            elif letters and set(letters) <= {"B", *space} and set(space) <= set(letters):
                static[name] = (each.values, letters)
            elif size in (shape, (count, *shape)):
                static[name] = (each.values, space if size == shape else "B" + space)
            elif name in fixed:
                raise UserError(f"static field {name!r} has the shape {size}; give {shape}, or {(count, *shape)}")
            else:
                self.notes.append(f"{name!r} of shape {size} is not used")
        constant = [name for name, v in parameters.items() if (v == v[0]).all()]
        for name in constant:
            self.notes.append(
                f"parameter {name} is {parameters[name][0]:g} in every trajectory: the model need not know"
            )
        for name, values in parameters.items():
            shown = f"{values.min():.4g} to {values.max():.4g}" if name not in constant else f"{values[0]:.4g}"
            self.rows.append(Row(f"parameter {name}", shown, GIVEN if name in given else "an array of this name"))
        for name in static:
            self.rows.append(
                Row(f"static field {name}", " × ".join(map(str, points)), GIVEN if name in fixed else FOUND)
            )
        return parameters, static

    def _units(self, names: Sequence[str]) -> dict[str, str]:
        units = {
            name: each.unit for name, each in zip(names, self.fields.values(), strict=False) if len(self.fields) > 1
        }
        units |= {names[0]: self.first.unit} if len(names) == 1 else {}
        units["time"] = self._stored_times.unit if self._stored_times is not None else ""
        dims = dict(zip(self.axes, self.first.dims, strict=False))
        for axis in range(self.dimension):
            found = self.coordinates.get(dims.get("XYZ"[axis], "")) or self.coordinates.get(AXES[axis])
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
        for name, values, size in zip(names, flat.T, sizes, strict=True):
            if np.ptp(values) == 0:
                self.notes.append(f"channel {name} is {values[0]:g} everywhere: there is nothing to learn of it")
            elif not np.ptp(self.probe[..., names.index(name)], axis=1).any():
                self.notes.append(
                    f"channel {name} does not change in time; a static field ({name}) says more to a model"
                )
        some = sizes[sizes > 0]
        if len(some) > 1 and some.max() > APART * some.min():
            self.notes.append(
                f"channels differ in size by {some.max() / some.min():.1g}: each is learned in units of its own"
            )


def ordered(values: Float[np.ndarray, "..."], axes: str) -> Float[np.ndarray, "..."]:
    """With B, T, X, Y, Z, C in this order, where there are any, and C made where there is none."""
    present = [letter for letter in "BTXYZC" if letter in axes]
    values = np.transpose(values, [axes.index(letter) for letter in present])
    return values if "C" in axes else values[..., None]


def _some(values: Any, axis: int = 0) -> Float[np.ndarray, "..."]:
    """Some trajectories, evenly spread along an axis."""
    step = -(-values.shape[axis] // PROBED)
    part = (slice(None),) * axis + (slice(None, None, step),)
    return np.nan_to_num(np.asarray(values[part], dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def _letters(each: NamedArray) -> str:
    return named_axes(each.dims, "an array") if each.dims else ""


def _dtype(each: NamedArray) -> np.dtype:
    return np.dtype(each.values[0].dtype if isinstance(each.values, list) else each.values.dtype)


def shown(found: Understood) -> Iterator[str]:
    """The table, a line a row, and the notes."""
    widths = [max(len(getattr(row, part)) for row in found.rows) for part in ("what", "value")]
    for row in found.rows:
        yield f"  {row.what.ljust(widths[0])}  {row.value.ljust(widths[1])}  {row.how}".rstrip()
    yield from (f"note: {note}" for note in found.notes)
