"""What trajectories depend on beside their start, found among arrays: parameters, static fields, forcings, a mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from ups.data.formats.arrays.axes import named_axes
from ups.data.formats.arrays.contents import NamedArray, plain
from ups.data.formats.arrays.domain import FOUND, GIVEN
from ups.data.formats.arrays.meaning import Row, Told
from ups.errors import UserError

MASK = "mask"


@dataclass
class FoundConditions:
    """Fields have a letter for each of their axes; those of forcings may be T or BT alone, the same at all points."""

    parameters: dict[str, Float[np.ndarray, " B"]] = field(default_factory=dict)
    static: dict[str, tuple[Any, str]] = field(default_factory=dict)
    forcings: dict[str, tuple[Any, str]] = field(default_factory=dict)
    mask: tuple[Any, str] | None = None
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def taken_out(arrays: dict[str, NamedArray], told: Told, source: str) -> dict[str, dict[str, NamedArray]]:
    """What a person says is a parameter, static field, forcing or mask: given as arrays, or by the names of those that
    are there, which leave `arrays`.
    """

    def found(words: Mapping[str, Any] | Sequence[str], what: str) -> dict[str, NamedArray]:
        if isinstance(words, Mapping):
            return {name: _array(value, f"{what} {name!r}") for name, value in words.items()}
        missing = [name for name in words if name not in arrays]
        if missing:
            raise UserError(f"{source} has no array {missing[0]!r} to be a {what}; it has {', '.join(arrays)}")
        return {name: arrays.pop(name) for name in words}

    mask = told.mask
    return {
        "parameter": found(told.parameters, "parameter"),
        "static field": found(told.static, "static field"),
        "forcing": found(told.forcings, "forcing"),
        MASK: {} if mask is None else found([mask] if isinstance(mask, str) else {MASK: mask}, "mask"),
    }


def _array(value: Any, what: str) -> NamedArray:
    if isinstance(value, NamedArray):
        return value
    if isinstance(value, list | tuple) and value and all(np.ndim(each) for each in value):
        each = [plain(one, what) for one in value]
        same = len({one.shape for one in each}) == 1
        return NamedArray(np.stack(each) if same else each)
    return NamedArray(plain(value, what))


def found_conditions(
    given: Mapping[str, Mapping[str, NamedArray]],
    others: Mapping[str, NamedArray],
    lengths: Sequence[int],
    points: Sequence[int],
) -> FoundConditions:
    """Of what is given and of the arrays that are neither fields nor coordinates. `points` are those stored."""
    found, count = FoundConditions(), len(lengths)
    space = "XYZ"[: len(points)]
    sizes = {"B": count, "T": max(lengths), **dict(zip(space, points, strict=True))}

    def numbers(name: str, each: NamedArray) -> None:
        values = np.asarray(each.values[()], dtype=np.float64)
        if not np.isfinite(values).all():
            raise UserError(f"parameter {name!r} has NaN or infinite values; mend it")
        found.parameters[name] = np.broadcast_to(values.reshape(-1), (count,))

    for name, each in given["parameter"].items():
        if each.shape not in ((), (1,), (count,)):
            raise UserError(
                f"parameter {name!r} has the shape {each.shape}; give a number, or {count}, one a trajectory"
            )
        numbers(name, each)
    for name, each in given["static field"].items():
        found.static[name] = (each.values, _letters(name, each, sizes, [space, "B" + space], "static field"))
    for name, each in given["forcing"].items():
        orders = [space, "T" + space, "B" + space, "BT" + space, "T", "BT"]
        found.forcings[name] = (each.values, _letters(name, each, sizes, orders, "forcing", lengths))
    for name, each in given[MASK].items():
        found.mask = (each.values, _letters(name, each, sizes, [space, "B" + space], MASK))
    for name, each in others.items():
        letters = named_axes(each.dims, "an array") if each.dims else ""
        fitting = [order for order in (space, "B" + space) if _fits(each, order, sizes) and letters in ("", order)]
        if each.shape in ((), (1,), (count,)) and letters in ("", "B"):
            numbers(name, each)
        elif (fitting or set(space) <= set(letters) <= {"B", *space}) and name == MASK and found.mask is None:
            found.mask = (each.values, letters or fitting[0])
        elif fitting or (letters and set(space) <= set(letters) <= {"B", *space}):
            found.static[name] = (each.values, letters or fitting[0])
        else:
            found.notes.append(f"{name!r} of shape {each.shape} is not used")
    _say(found, given, points)
    return found


def _say(found: FoundConditions, given: Mapping[str, Mapping[str, NamedArray]], points: Sequence[int]) -> None:
    def how(kind: str, name: str, else_: str) -> str:
        return GIVEN if name in given[kind] else else_

    for name, values in found.parameters.items():
        constant = bool((values == values[0]).all())
        if constant:
            found.notes.append(f"parameter {name} is {values[0]:g} in every trajectory: the model need not know")
        shown = f"{values[0]:.4g}" if constant else f"{values.min():.4g} to {values.max():.4g}"
        found.rows.append(Row(f"parameter {name}", shown, how("parameter", name, "an array of this name")))
    grid = " × ".join(map(str, points))
    for name in found.static:
        found.rows.append(Row(f"static field {name}", grid, how("static field", name, FOUND)))
    for name, (_, letters) in found.forcings.items():
        at = grid if set(letters) - {"B", "T"} else "the same at all points"
        found.rows.append(Row(f"forcing {name}", f"{at}{', at every frame' if 'T' in letters else ''}", GIVEN))
    if found.mask is not None:
        values, letters = found.mask
        inside = float(np.mean(np.asarray(values[:16] if letters.startswith("B") else values[()]) != 0))
        known = GIVEN if given[MASK] else "an array of this name"
        found.rows.append(Row(MASK, f"{100 * inside:.3g} % of the points are in the domain", known))


def _fits(each: NamedArray, order: str, sizes: Mapping[str, int]) -> bool:
    return not isinstance(each.values, list) and each.shape == tuple(sizes[letter] for letter in order)


def _letters(
    name: str,
    each: NamedArray,
    sizes: Mapping[str, int],
    orders: Sequence[str],
    what: str,
    lengths: Sequence[int] = (),
) -> str:
    """Of the axes of a field that was given: by their names, else by the only order that fits its shape."""
    if isinstance(each.values, list):  # of a trajectory each, as long as the trajectory
        for order in ("T" + orders[0], "T"):
            rest = tuple(sizes[letter] for letter in order[1:])
            if [tuple(one.shape) for one in each.values] == [(length, *rest) for length in lengths]:
                return order
    elif each.dims:
        letters = named_axes(each.dims, f"{what} {name!r}")
        if sorted(letters) in [sorted(order) for order in orders]:
            return letters
    else:
        fitting = [order for order in orders if _fits(each, order, sizes)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise UserError(
                f"{what} {name!r} of shape {each.shape} could have the axes {' or '.join(fitting)} (B trajectories, "
                f"T time); give all of {orders[3]}, of shape {tuple(sizes[letter] for letter in orders[3])}"
            )
    shapes = ", ".join(str(tuple(sizes[letter] for letter in order)) for order in orders)
    raise UserError(f"{what} {name!r} has the shape {each.shape}; give one of {shapes}")
