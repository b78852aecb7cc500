"""What the keys of a configuration mean, a section at a time: the page that `--help` has no room for."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ups.config.explain import alternatives, models_among, types_inside
from ups.errors import UserError


def key_page(schema: type[BaseModel], section: str) -> str:
    """Every key of a section, such as `training` or `tasks.NAME.files` ("" is the top): what it takes, what it is if it
    is not given, what it is for.
    """
    types: list[Any] = [schema]
    path = [part for part in section.split(".") if part]
    for depth, part in enumerate(path):
        inner = [kind for one in types for kind in types_inside(one, part)]
        if not inner:
            known = [name for model in models_among(types) for name in model.model_fields]
            raise UserError(_unknown(".".join(path[: depth + 1]), part, known))
        types = inner
    models = models_among(types) or models_among([kind for one in types for kind in types_inside(one, "NAME")])
    if not models:
        raise UserError(
            f"{section} is a key and no section; `ups config --explain {section.rpartition('.')[0]}` has it"
        )
    rows = [_row(section, name, field) for model in models for name, field in model.model_fields.items()]
    rows = list(dict.fromkeys(rows))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    says = " ".join((models[0].__doc__ or "").split())
    lines = [f"{name.ljust(widths[0])}  {kind.ljust(widths[1])}  {text}".rstrip() for name, kind, text in rows]
    return "\n".join([*([says, ""] if section and says else []), *lines])


def _unknown(place: str, part: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(part, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}" if known else "leave the end out"
    return f"there is no section {place!r}; {hint}"


def _row(section: str, name: str, field: FieldInfo) -> tuple[str, str, str]:
    inside = models_among([field.annotation])
    path = f"{section}.{name}".lstrip(".")
    named = get_origin(field.annotation) is dict and models_among(list(get_args(field.annotation)))
    if inside or named:
        further = path if inside else f"{path}.NAME"
        return name, "section", f"ups config --explain {further}"
    given = "needed" if field.is_required() else f"= {_shown(field.get_default(call_default_factory=True))}"
    return name, _kind(field.annotation), "; ".join(filter(None, [given, field.description]))


def _kind(annotation: Any) -> str:
    """A type in the words of a configuration."""
    words = [word for member in alternatives(annotation) for word in _words(member)]
    return " | ".join(dict.fromkeys(words))


def _words(member: Any) -> Sequence[str]:
    if get_origin(member) is Literal:
        return [str(value) for value in get_args(member)]
    plain = {int: "whole number", float: "number", str: "text", bool: "true | false", type(None): "null"}
    return [plain.get(member) or {list: "list", dict: "mapping", tuple: "list"}.get(get_origin(member), "anything")]


def _shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
