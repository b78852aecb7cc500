"""The registry of tasks, and tasks written as plain data.

Built-in ones come from the equations, and Python adds its own with `register`. What a configuration defines is not
registered: it is that configuration's alone, and is handed to whatever reads its data.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ups.errors import UserError
from ups.fields import Channel, Invariant, Side, TaskSpec

if TYPE_CHECKING:
    from ups.equations import Equation


@cache
def _known() -> dict[str, TaskSpec]:
    from ups.equations.named import EQUATIONS  # not before it is asked for: a trained model needs none of the solvers

    return {name: equation().task() for name, equation in EQUATIONS.items()}


def register(spec: TaskSpec | None = None, **definition: Any) -> TaskSpec:
    """Make a task known by its name; as a TaskSpec, or by what `define:` in a configuration would say of it, with its
    `name`. The same task twice is fine; another of the same name is refused.
    """
    if spec is None:
        spec = task_from_mapping(definition)
    elif definition:
        raise UserError(f"register takes a TaskSpec, or words such as {next(iter(definition))}=, not both")
    if _known().setdefault(spec.name, spec) != spec:
        raise UserError(f"task {spec.name!r} is already registered with another definition; choose another name")
    return spec


def register_equation(equation: type[Equation]) -> type[Equation]:
    """Make an equation known by its name, and its task with it. It is a frozen dataclass whose settings have defaults;
    the same twice is fine, another of the same name is refused.
    """
    from ups.equations.named import EQUATIONS

    spec = equation().task()
    if EQUATIONS.get(equation.name, equation) is not equation:
        raise UserError(f"there is an equation {equation.name!r} already; choose another name")
    register(spec)
    EQUATIONS[equation.name] = equation
    return equation


def task(name: str | TaskSpec) -> TaskSpec:
    """The registered task of that name; a task that is given itself need not be registered."""
    if isinstance(name, TaskSpec):
        return name
    known = _known()
    if name not in known:
        raise UserError(
            f"task {name!r} is not registered{_nearest(name, known)}; known tasks: {', '.join(known)}; to add one, "
            "give `define:` beside its files, or call ups.register"
        )
    return known[name]


def tasks() -> tuple[TaskSpec, ...]:
    return tuple(_known().values())


def task_from_mapping(mapping: Mapping[str, Any]) -> TaskSpec:
    """A task from plain data, as YAML gives it.

    Keys are TaskSpec's fields. A channel is a name or {name, transform, vector}; a boundary is one kind for every side
    ("periodic") or a list with one entry per axis, each a kind or a [lower, upper] pair of kinds or {kind, value};
    an invariant is a channel's name or {channel, tolerance}. Name, dimension, channels and boundary are needed.

        name: heat
        dimension: 2
        channels: [temperature]
        boundary: [periodic, [{kind: value, value: [1.0]}, flux]]
    """
    where = f"task {mapping.get('name', '(without a name)')!r}"
    missing = [key for key in ("name", "dimension", "channels", "boundary") if mapping.get(key) is None]
    entries = {**mapping, "boundary": _sides(mapping.get("boundary"), mapping.get("dimension"))}
    for key, name in (("channels", "name"), ("invariants", "channel")):
        if isinstance(mapping.get(key), list | tuple):
            entries[key] = [_spelled_out(entry, name) for entry in mapping[key]]
    _check_keys(mapping, TaskSpec, where)
    if missing:
        raise UserError(f"{where}: give {', '.join(missing)}")
    for key in ("dimension", "history", "dt", "latent_spacing"):
        if isinstance(mapping.get(key), bool):
            raise UserError(f"{where}: {key} is {mapping[key]}; give a number")
    try:
        spec = _task_checker().validate_python(entries)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, said = ".".join(str(part) for part in first["loc"]), first["msg"].replace("Input", "it", 1)
        if first["type"] == "missing":
            raise UserError(f"{where}: {first['input']!r} is not understood; give {place}") from None
        raise UserError(f"{where}: {place} is {first['input']!r}; {said.replace('tuple', 'list')}") from None
    sides = itertools.chain(*entries["boundary"]["sides"])
    for kind, parts in ((Channel, entries["channels"]), (Invariant, entries.get("invariants", ())), (Side, sides)):
        for part in parts:
            _check_keys(part, kind, f"{where}, {kind.__name__.lower()} {part!r}")
    for invariant in spec.invariants:
        if invariant.channel not in spec.channel_names:
            raise UserError(
                f"{where}: invariant of channel {invariant.channel!r}; channels are {', '.join(spec.channel_names)}"
            )
    return spec


@cache
def _task_checker() -> TypeAdapter[TaskSpec]:
    return TypeAdapter(TaskSpec)


def _spelled_out(entry: Any, key: str) -> Any:
    """A name alone as the mapping that it stands for."""
    return {key: entry} if isinstance(entry, str) else entry


def _sides(value: Any, dimension: Any) -> Any:
    """A boundary with both sides of every axis written out."""
    if isinstance(value, str) and isinstance(dimension, int):
        value = [value] * dimension
    if not isinstance(value, list | tuple):
        return {"sides": value}
    pairs = [axis if isinstance(axis, list | tuple) else (axis, axis) for axis in value]
    return {"sides": [[_spelled_out(side, "kind") for side in pair] for pair in pairs]}


def _nearest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_keys(mapping: Mapping[str, Any], kind: type, where: str) -> None:
    known = [field.name for field in fields(kind)]
    for key in mapping:
        if key not in known:
            hint = _nearest(str(key), known) or f"; use one of {', '.join(known)}"
            raise UserError(f"{where}: key {key!r} is unknown{hint}")
