"""The equations for people who look for one: each in a line, or with its whole description."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

from ups.equations.named import EQUATIONS, named_equation


def settings_of(name: str) -> dict[str, Any]:
    """An equation's settings and their values where none are given: values that work."""
    equation = named_equation(name, {})
    return {field.name: getattr(equation, field.name) for field in fields(equation)}  # pyright: ignore[reportArgumentType]


def formula_of(name: str) -> str:
    """The first paragraph of an equation's description: the equation itself."""
    text = inspect.getdoc(EQUATIONS[name]) or ""
    return " ".join(text.split("\n\n")[0].split())


def catalogue() -> str:
    """All equations: name, formula, settings."""
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
