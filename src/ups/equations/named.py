"""Equations by name, for the command line and for configurations."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from ups import equations
from ups.equations import Equation
from ups.errors import UserError

EQUATIONS: dict[str, type[Equation]] = {
    kind.name: kind for kind in (getattr(equations, word) for word in equations.__all__) if hasattr(kind, "name")
}


def named_equation(name: str, settings: Mapping[str, float | str]) -> Equation:
    """`named_equation("burgers", {"points": 256, "nu": 0.01})` is `Burgers(points=256, nu=0.01)`.

    Settings are numbers, whole numbers where the equation says `int`, and words where it says `str`.
    """
    if name not in EQUATIONS:
        raise UserError(f"there is no equation {name!r};{_nearest(name, EQUATIONS)} known: {', '.join(EQUATIONS)}")
    equation = EQUATIONS[name]
    kinds = {field.name: field.type for field in fields(equation)}  # pyright: ignore[reportArgumentType]  (all are dataclasses)
    given: dict[str, Any] = {}
    for setting, value in settings.items():
        if setting not in kinds:
            raise UserError(f"{name} has no setting {setting!r};{_nearest(setting, kinds)} it has {', '.join(kinds)}")
        if kinds[setting] in (str, "str"):
            if not isinstance(value, str):
                raise UserError(f"{name}: {setting} is {value!r}; give a word")
            given[setting] = value  # the equation itself refuses words it does not know
            continue
        whole = kinds[setting] in (int, "int")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or (whole and isinstance(value, float) and not value.is_integer()):  # NaN and inf are not whole
            raise UserError(f"{name}: {setting} is {value!r}; give a {'whole ' if whole else ''}number")
        given[setting] = int(value) if whole else float(value)
    return equation(**given)


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" did you mean {close[0]}?" if close else ""
