"""What is wrong with a configuration, in sentences a person can act on.

Pydantic says where it failed as a path that mixes keys, list indices and the tags of union members. This module turns
that into the dotted path the user wrote, the value, where it was set, and for an unknown key the nearest valid one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

SHOWN = 5  # problems listed at once; more would hide the first


def explain(
    error: ValidationError, schema: type[BaseModel], values: Any, origins: Mapping[tuple, str], name: str
) -> str:
    """One sentence for one problem; for several, the first ones, a line each."""
    problems = [_sentence(problem, schema, values, origins) for problem in error.errors(include_url=False)]
    problems = list(dict.fromkeys(problems))
    if len(problems) == 1:
        return problems[0]
    more = [f"  and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
    return "\n".join(
        [f"configuration {name} has {len(problems)} problems:", *(f"  {p}" for p in problems[:SHOWN]), *more]
    )


def _sentence(problem: Any, schema: type[BaseModel], values: Any, origins: Mapping[tuple, str]) -> str:
    path, level = _locate(problem["loc"], schema, values, problem["type"])
    dotted = ".".join(str(part) for part in path) or "the configuration"
    where = next((f" ({origins[path[:n]]})" for n in range(len(path), 0, -1) if path[:n] in origins), "")
    if problem["type"] == "extra_forbidden":
        return f"{dotted} is not a known key{where}; {_inside_of(path, level) or _nearest(path, level)}"
    if problem["type"] == "missing":
        return f"{dotted} is missing{where}; give it a value"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    expected = message[0].lower() + message[1:]
    expected = expected.replace("input should be", "it should be", 1)
    if problem["loc"][-1:] == ("[key]",):
        return f"{'.'.join(map(str, path[:-1]))} has the key {_short(problem['input'])}{where}, but {expected}"
    return f"{dotted} is {_short(problem['input'])}{where}, but {expected}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _inside_of(path: tuple, level: list[type[BaseModel]]) -> str:
    """Where a key goes that was written too far out: into the outermost section that has it, or lists it as `names`."""
    *before, key = map(str, path)
    places, seen = [(before, model) for model in level], set(level)
    while places:
        inner: list[tuple[list[str], type[BaseModel]]] = []
        for at, model in places:
            for name, field in model.model_fields.items():
                extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
                if key in cast(Sequence[str], extra.get("names", ())):
                    return f"it goes under {'.'.join([*at, name])}, as {'.'.join([*at, name, key])}"
                named = get_origin(field.annotation) is dict
                types = types_inside(field.annotation, key) if named else [field.annotation]
                inner += [([*at, name, *(["NAME"] if named else [])], section) for section in models_among(types)]
        places = [(at, section) for at, section in inner if section not in seen]
        seen |= {section for _, section in places}
        for at, section in places:
            if key in section.model_fields:
                return f"it goes under {'.'.join(at)}, as {'.'.join([*at, key])}"
    return ""


def _nearest(path: tuple, level: list[type[BaseModel]]) -> str:
    """The closest valid key at the level of the unknown one, with its full path; else all valid keys."""
    fields = list(dict.fromkeys(field for model in level for field in model.model_fields))
    prefix = "".join(f"{part}." for part in path[:-1])
    close = difflib.get_close_matches(str(path[-1]), fields, n=1, cutoff=0.5)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"valid keys here: {', '.join(prefix + field for field in fields) or 'none'}"


def _locate(
    loc: tuple[str | int, ...], schema: type[BaseModel], values: Any, kind: str
) -> tuple[tuple[str | int, ...], list[type[BaseModel]]]:
    """The path as the user wrote it, and the models whose fields are valid beside its last key.

    A part of `loc` that is neither in the values nor the missing key itself is the tag of a union's member.
    """
    path: tuple[str | int, ...] = ()
    types: list[Any] = [schema]
    level = [schema]
    for n, part in enumerate(loc):
        last_is_missing = kind == "missing" and n == len(loc) - 1
        inside = _holds(values, part)
        if inside or last_is_missing:
            path = (*path, part)
            level = models_among(types)
            types = [inner for t in types for inner in types_inside(t, part)]
            values = values[part] if inside else None
        else:
            types = [model for model in models_among(types) if _has_tag(model, part)] or types
    return path, level


def _holds(values: Any, part: str | int) -> bool:
    if isinstance(values, list):
        return isinstance(part, int) and part < len(values)
    return isinstance(values, dict) and part in values


def alternatives(annotation: Any) -> list[Any]:
    """The alternatives of a union, without Annotated around them; a plain type is its own only one."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [member for argument in get_args(annotation) for member in alternatives(argument)]
    return [annotation]


def models_among(annotations: list[Any]) -> list[type[BaseModel]]:
    members = [member for annotation in annotations for member in alternatives(annotation)]
    return [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]


def types_inside(annotation: Any, part: str | int) -> list[Any]:
    """The types that may stand at key or index `part` of a value of this type."""
    found = []
    for member in alternatives(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            if part in member.model_fields:
                found.append(member.model_fields[str(part)].annotation)
        else:  # list[X], tuple[X, ...], dict[str, X]: X is the last type that is not an ellipsis
            found += [argument for argument in get_args(member) if argument is not Ellipsis][-1:]
    return found


def _has_tag(model: type[BaseModel], tag: str | int) -> bool:
    """Whether a union calls this member so: by its name, or by the value of the field that tells members apart."""
    literals = [field.annotation for field in model.model_fields.values() if get_origin(field.annotation) is Literal]
    return tag == model.__name__ or any(tag in get_args(literal) for literal in literals)
