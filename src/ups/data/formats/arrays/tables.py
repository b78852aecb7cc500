"""Tables of text, a row a point: columns of the trajectory, the time and the position, then one a field.

    trajectory,t,x,u [K],nu
    0,0.0,0.0,1.25,0.01
    …

A field that is one number in every trajectory is a parameter, one that never changes in time a static field.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from ups.errors import UserError

_WORDS = {
    "B": "trajectory traj sample run case simulation sim member id",
    "T": "t time",
    "X": "x lon longitude",
    "Y": "y lat latitude",
    "Z": "z",
}
_LETTERS = {word: letter for letter, words in _WORDS.items() for word in words.split()}
_DELIMITERS = ",;\t"


def columns_of(path: Path) -> tuple[list[str], str] | None:
    """The names in a table's first line and what separates them; None where a file does not begin like such a table."""
    with path.open("rb") as file:
        line = file.readline(1 << 16)
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        return None
    for delimiter in _DELIMITERS:
        names = [name.strip().strip("\"'") for name in text.split(delimiter)]
        if {"T", "X"} <= {_letter(name) for name in names}:
            return names, delimiter
    return None


def read_table(path: Path) -> tuple[dict[str, tuple[object, tuple[str, ...]]], dict[str, object], dict[str, str]]:
    """Arrays by name with the names of their axes; coordinates; units. Trajectories of several lengths are lists."""
    named = columns_of(path)
    assert named is not None, "it begins like a table"
    titles, delimiter = named
    rows = np.loadtxt(path, delimiter=delimiter, skiprows=1, ndmin=2, encoding="utf-8-sig")
    parts = [_name_and_unit(title) for title in titles]
    names, letters = [name for name, _ in parts], [_letter(title) for title in titles]
    axes = [letter for letter in "BTXYZ" if letter in letters]
    if "B" not in axes:
        raise UserError(f"{path} has no column of trajectories; add one called trajectory, a number for each solution")
    if len(set(names)) < len(names) or any(letters.count(letter) > 1 for letter in axes):
        raise UserError(f"{path} has the columns {', '.join(names)}, of which two are the same; rename one")
    places = {letter: rows[:, letters.index(letter)] for letter in axes}
    trajectories, belongs = np.unique(places["B"], return_inverse=True)
    space = [letter for letter in axes if letter in "XYZ"]
    points = {letter: np.unique(places[letter], return_inverse=True) for letter in space}
    fields = [n for n, letter in enumerate(letters) if not letter]
    if not fields:
        raise UserError(f"{path} has no column of a field beside {', '.join(names)}; add one")
    whole, times = [], []
    for number, name in enumerate(trajectories):
        own = np.flatnonzero(belongs == number)
        moments, frame = np.unique(places["T"][own], return_inverse=True)
        at = (frame, *(points[letter][1][own] for letter in space))
        shape = (len(moments), *(len(points[letter][0]) for letter in space))
        whole.append(_placed(rows[own][:, fields], at, shape, f"{path}: trajectory {name:g}"))
        times.append(moments)
    dims = {"B": "trajectory", "T": "time", "X": "x", "Y": "y", "Z": "z"}
    arrays = _arrays(whole, [names[n] for n in fields], tuple(dims[letter] for letter in axes))
    same = all(np.array_equal(moments, times[0]) for moments in times)
    coordinates: dict[str, object] = {dims[letter]: points[letter][0] for letter in space}
    coordinates["time"] = times[0] if same else times
    units = {name: unit for name, unit in parts if unit}
    units |= {dims[letter]: parts[letters.index(letter)][1] for letter in axes}
    return arrays, coordinates, units


def _arrays(
    whole: list[Float[np.ndarray, "_ *space C"]], names: list[str], axes: tuple[str, ...]
) -> dict[str, tuple[object, tuple[str, ...]]]:
    found: dict[str, tuple[object, tuple[str, ...]]] = {}
    ragged = len({len(each) for each in whole}) > 1
    for column, name in enumerate(names):
        own = [each[..., column] for each in whole]
        if all((each == each.flat[0]).all() for each in own):
            found[name] = np.array([each.flat[0] for each in own]), axes[:1]
        elif all((each == each[0]).all() for each in own):
            found[name] = np.stack([each[0] for each in own]), (axes[0], *axes[2:])
        else:
            found[name] = own if ragged else np.stack(own), axes
    return found


def _placed(
    values: Float[np.ndarray, "N C"], at: tuple[Int[np.ndarray, " N"], ...], shape: tuple[int, ...], whose: str
) -> Float[np.ndarray, "T *space C"]:
    rows, frames = len(values), shape[0]
    flat = np.ravel_multi_index(at, shape)
    if rows != np.prod(shape) or len(np.unique(flat)) < rows:
        raise UserError(
            f"{whose} has {rows} rows for {frames} times of {' × '.join(map(str, shape[1:]))} points; give one row for "
            "every point at every time"
        )
    placed = np.empty((rows, values.shape[1]))
    placed[flat] = values
    return placed.reshape(*shape, -1)


def _name_and_unit(title: str) -> tuple[str, str]:
    """`u [K]` and `u (K)` are u in K."""
    for opens, closes in ("[]", "()"):
        if title.endswith(closes) and opens in title[1:]:
            name, _, unit = title[:-1].rpartition(opens)
            return name.strip(), unit.strip()
    return title, ""


def _letter(title: str) -> str:
    return _LETTERS.get(_name_and_unit(title)[0].lower(), "")
