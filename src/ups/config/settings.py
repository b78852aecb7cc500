"""What the settings of every component are made of. They stand beside their components; `pipeline` assembles a run's.

Every key is checked: an unknown one is refused with the nearest valid key named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Optional, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]


def _file_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]*", name):
        raise ValueError("it names files: begin with a letter or digit, go on with these, '.', '_', '-' and '@' alone")
    return name


FileName = Annotated[str, AfterValidator(_file_name)]
"""What becomes the name of a file or folder of the run, and must not leave it."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def neutral(default: Any, description: str) -> Any:
    """A setting that does not change what is computed: another value of it is no other configuration."""
    return Field(default=default, description=description, json_schema_extra={"neutral": True})


def decisive(config: BaseModel) -> dict[str, Any]:
    """The configuration as plain values, without what does not change what is computed."""
    values: dict[str, Any] = {}
    for name, field in type(config).model_fields.items():
        if not (isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("neutral")):
            values[name] = _plain(getattr(config, name))
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return decisive(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


Model = TypeVar("Model", bound=Strict)


def changes_of(model: type[Strict]) -> type[Strict]:
    """The same keys, each of which may be left out: what overrides settings that are given elsewhere."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        kind = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        fields[name] = (Optional[kind], Field(default=None, description=field.description))  # noqa: UP045
    return create_model(f"{model.__name__}Changes", __base__=Strict, **fields)


def changed(settings: Model, changes: Strict | None) -> Model:
    """The settings with what `changes` gives instead, checked again."""
    given = {} if changes is None else changes.model_dump(exclude_none=True)
    return type(settings).model_validate(settings.model_dump() | given)
