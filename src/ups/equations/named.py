"""Equations by name, for the command line and for configurations; each in a line, or with its whole description."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from ups import equations
from ups.equations import Equation
from ups.errors import UserError

EQUATIONS: dict[str, type[Equation]] = {
    kind.name: kind for kind in vars(equations).values() if isinstance(kind, type) and hasattr(kind, "name")
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
    made = equation(**given)
    made.check_memory()
    return made


def settings_of(name: str) -> dict[str, Any]:
    """An equation's settings and their values where none are given: values that work."""
    equation = named_equation(name, {})
    return {field.name: getattr(equation, field.name) for field in fields(equation)}  # pyright: ignore[reportArgumentType]


def formula_of(name: str) -> str:
    """The first paragraph of an equation's description: the equation itself."""
    text = inspect.getdoc(EQUATIONS[name]) or ""
    return " ".join(text.split("\n\n")[0].split())


def catalogue() -> str:
    lines = []
    for name in EQUATIONS:
        settings = " ".join(f"{key}={value}" for key, value in settings_of(name).items())
        lines += [f"{name}", f"    {formula_of(name)}", f"    {settings}"]
    return "\n".join(lines)


def described(name: str) -> str:
    """One equation in full: what it is, what solutions look like, when it fails, which values work."""
    equation = named_equation(name, {})
    settings = "\n".join(f"  --set {key}={value}" for key, value in settings_of(name).items())
    return (
        f"{name}: {inspect.getdoc(EQUATIONS[name])}\n\n"
        f"Solver: {equation.solver}\nFile:   {equation.published_name} ({equation.layout})\n\n"
        f"Settings and their values where none are given:\n{settings}"
    )


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" did you mean {close[0]}?" if close else ""
