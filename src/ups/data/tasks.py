"""The registry of tasks, and tasks written as plain data.

Built-in ones come from the equations, and Python adds its own with `register`. What a configuration defines is not
registered: it is that configuration's alone, and is handed to whatever reads its data.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from ups.errors import UserError
from ups.fields import Boundary, Channel, Invariant, Side, TaskSpec

if TYPE_CHECKING:
    from ups.equations import Equation

_Number = TypeVar("_Number", int, float)
_Kind = TypeVar("_Kind", Channel, Invariant, Side)


@cache
def _known() -> dict[str, TaskSpec]:
    from ups.equations.named import EQUATIONS  # not before it is asked for: a trained model needs none of the solvers

    return {name: equation().task() for name, equation in EQUATIONS.items()}


def register(spec: TaskSpec) -> TaskSpec:
    """Make a task known by its name. The same task twice is fine; another of the same name is refused."""
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
    _check_keys(mapping, TaskSpec, where)
    missing = [key for key in ("name", "dimension", "channels", "boundary") if mapping.get(key) is None]
    if missing:
        raise UserError(f"{where}: give {', '.join(missing)}")
    dimension = _number(mapping["dimension"], int, f"{where}: dimension")
    spec = TaskSpec(
        name=_text(mapping["name"], f"{where}: name"),
        dimension=dimension,
        channels=tuple(_channel(entry, where) for entry in _list(mapping["channels"], f"{where}: channels")),
        boundary=_boundary(mapping["boundary"], dimension, where),
        latent_spacing=_optional(mapping, "latent_spacing", where),
        parameters=_names(mapping.get("parameters", ()), f"{where}: parameters"),
        static=_names(mapping.get("static", ()), f"{where}: static"),
        history=_number(mapping.get("history", 1), int, f"{where}: history"),
        dt=_optional(mapping, "dt", where),
        steady=bool(mapping.get("steady", False)),
        invariants=tuple(_invariant(e, where) for e in _list(mapping.get("invariants", ()), f"{where}: invariants")),
        source=dict(mapping.get("source", {})),
    )
    for invariant in spec.invariants:
        if invariant.channel not in spec.channel_names:
            raise UserError(
                f"{where}: invariant of channel {invariant.channel!r}; channels are {', '.join(spec.channel_names)}"
            )
    return spec


def _nearest(key: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _check_keys(mapping: Mapping[str, Any], kind: type, where: str) -> None:
    known = [field.name for field in fields(kind)]
    for key in mapping:
        if key not in known:
            hint = _nearest(str(key), known) or f"; use one of {', '.join(known)}"
            raise UserError(f"{where}: key {key!r} is unknown{hint}")


def _list(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UserError(f"{where} is {value!r}; give a list")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where} is {value!r}; give text")
    return value


def _names(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_text(entry, where) for entry in _list(value, where))


def _number(value: Any, kind: type[_Number], where: str) -> _Number:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and isinstance(value, float):
        number = value.is_integer() if kind is int else math.isfinite(value)
    if not number:
        raise UserError(f"{where} is {value!r}; give {'a whole number' if kind is int else 'a number'}")
    return kind(value)


def _optional(mapping: Mapping[str, Any], key: str, where: str) -> float | None:
    return None if mapping.get(key) is None else _number(mapping[key], float, f"{where}: {key}")


def _entry(kind: type[_Kind], entry: Any, key: str, where: str, what: str, form: str) -> _Kind:
    """What a name alone stands for, or what a mapping with the key and its other fields says."""
    if isinstance(entry, str):
        return kind(entry)  # pyright: ignore[reportArgumentType]  (Side refuses unknown kinds)
    if not isinstance(entry, Mapping) or key not in entry:
        raise UserError(f"{where}: {what} {entry!r} is not understood; give {form}")
    _check_keys(entry, kind, f"{where}, {what} {entry[key]!r}")
    return kind(**entry)


def _channel(entry: Any, where: str) -> Channel:
    channel = _entry(Channel, entry, "name", where, "channel", "a name or {name, transform, vector}")
    if channel.transform not in ("identity", "log"):
        raise UserError(f"{where}: transform of channel {channel.name!r} is {channel.transform!r}; use identity or log")
    return channel


def _invariant(entry: Any, where: str) -> Invariant:
    return _entry(Invariant, entry, "channel", where, "invariant", "a channel or {channel, tolerance}")


def _boundary(value: Any, dimension: int, where: str) -> Boundary:
    if isinstance(value, str):
        side = _side(value, where)
        return Boundary(((side, side),) * dimension)
    pairs = []
    for axis in _list(value, f"{where}: boundary"):
        if isinstance(axis, str | Mapping):
            axis = (axis, axis)
        if len(axis) != 2:
            raise UserError(
                f"{where}: boundary {axis!r} is not understood; give a kind or a [lower, upper] pair per axis"
            )
        pairs.append((_side(axis[0], where), _side(axis[1], where)))
    return Boundary(tuple(pairs))


def _side(entry: Any, where: str) -> Side:
    if isinstance(entry, Mapping) and "value" in entry:
        entry = {**entry, "value": tuple(float(v) for v in _list(entry["value"], f"{where}: boundary value"))}
    return _entry(Side, entry, "kind", where, "boundary side", "a kind or {kind, value}")
