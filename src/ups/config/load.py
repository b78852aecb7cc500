"""From a name or a YAML file, with includes and dotted overrides, to a checked configuration.

    config = read_config("mine.yaml", ["training.steps=600"]).checked(Schema)

A file may say `include: base` (a packaged name) or `include: [../common.yaml, mine.yaml]` (paths beside the file).
Includes are merged in order, the file itself over them, overrides over all: mappings merge key by key, anything else is
replaced. Every mistake is a `UserError` that names the field, where it was set, and the nearest valid key.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ups.config.explain import explain
from ups.config.text import parse_yaml, to_yaml
from ups.durable import write
from ups.errors import UserError

Schema = TypeVar("Schema", bound=BaseModel)
Origins = dict[tuple[str | int, ...], str]  # where each key was last set: a file's name or an override


@dataclass(frozen=True)
class Written:
    """What a configuration says, before it is checked: its values, who set them, and the file it begins with."""

    values: dict[str, Any]
    origins: Origins
    path: Path
    name: str

    def checked(self, schema: type[Schema]) -> Schema:
        try:
            return schema.model_validate(self.values)
        except ValidationError as error:
            raise UserError(explain(error, schema, self.values, self.origins, self.name)) from None


def read_config(name_or_path: str | Path, overrides: Sequence[str]) -> Written:
    """What that name or file says, with overrides such as `training.steps=600`."""
    origins: Origins = {}
    path = _find(str(name_or_path), beside=None)
    values = _read(path, (), origins)
    for override in overrides:
        _apply(override, values, origins)
    return Written(values, origins, path, str(name_or_path))


def made_config(values: dict[str, Any], overrides: Sequence[str], by: str) -> Written:
    """What a command made, with overrides; paths in it are absolute."""
    values, origins = copy.deepcopy(values), {}
    _trace(values, (), by, origins)
    for override in overrides:
        _apply(override, values, origins)
    return Written(values, origins, Path(f"{values['name']}.yaml"), by)


def save_config(config: BaseModel, path: str | Path) -> None:
    """Writes the resolved configuration; `read_config(path, []).checked(type(config))` gives an equal one."""
    try:
        write(Path(path), to_yaml(config.model_dump(mode="json")).encode())
    except OSError as error:
        raise UserError(f"cannot write the configuration to {path}: {error.strerror}") from error


def config_hash(config: BaseModel) -> str:
    """16 hexadecimal digits that are equal exactly when the resolved configurations are."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def packaged_configs() -> dict[str, Path]:
    """The configurations inside the package, by name."""
    folder = Path(str(resources.files("ups.config")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _find(name: str, beside: Path | None) -> Path:
    """A path if it looks like one (a separator or a YAML suffix) or is a file; else a packaged name."""
    packaged = packaged_configs()
    if name in packaged:
        return packaged[name]
    path = Path(name).expanduser() if beside is None else beside.parent / Path(name).expanduser()
    if path.is_file():
        return path
    where = f" (included by {beside})" if beside else ""
    if path.is_dir():
        raise UserError(f"{path} is a folder{where}; name the YAML file in it")
    if "/" in name or os.sep in name or path.suffix in (".yaml", ".yml"):
        raise UserError(f"there is no configuration file {path}{where}; check the path")
    nearest = difflib.get_close_matches(name, packaged, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    raise UserError(
        f"there is no configuration named {name!r}{where}; {hint}packaged: {', '.join(packaged) or 'none'}; "
        "or give the path of a YAML file"
    )


def _read(path: Path, including: tuple[Path, ...], origins: Origins) -> dict[str, Any]:
    """The file's values over those of its includes; `including` is the chain of files that led here."""
    if path.resolve() in including:
        chain = " → ".join(p.name for p in (*including, path))
        raise UserError(f"{path} includes itself ({chain}); remove one of the includes")
    own = read_mapping(path)
    include = own.pop("include", None)
    names = [include] if isinstance(include, str) else include or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: include is {include!r}; give a path, a packaged name, or a list of them")
    values: dict[str, Any] = {}
    for name in names:
        included: Origins = {}
        other = _read(_find(name, beside=path), (*including, path.resolve()), included)
        _merge(values, other, (), included, origins)
    sources: Origins = {}
    _trace(own, (), str(path), sources)
    _merge(values, own, (), sources, origins)
    return values


def read_mapping(path: Path) -> dict[str, Any]:
    """What one file says, without its includes."""
    try:
        values = parse_yaml(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8; save it as such") from None
    except UserError as error:
        raise UserError(f"{path}, {error}") from None
    if values is None:
        raise UserError(f"{path} is empty; write `key: value` lines into it")
    if not isinstance(values, dict):
        raise UserError(f"{path} holds a {type(values).__name__}, not a mapping; write `key: value` lines")
    return values


def _merge(into: dict[str, Any], new: Mapping[str, Any], at: tuple, sources: Origins, origins: Origins) -> None:
    """Lays `new` over `into`: mappings key by key, anything else replaced; carries along who set what."""
    for key, value in new.items():
        path = (*at, key)
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value, path, sources, origins)
        else:
            into[key] = value
            origins.update({p: source for p, source in sources.items() if p[: len(path)] == path})


def _trace(value: Any, at: tuple, source: str, origins: Origins) -> None:
    """Notes `source` for this value and all inside it."""
    origins[at] = source
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        _trace(inner, (*at, key), source, origins)


def _apply(override: str, values: dict[str, Any], origins: Origins) -> None:
    """Sets one `dotted.path=value`; missing mappings on the way are made, a list is entered by index."""
    dotted, equals, text = override.partition("=")
    parts = dotted.strip().split(".")
    if not equals or not all(parts):
        raise UserError(f"override {override!r} is not of the form key.key=value, such as training.steps=600")
    try:
        value = parse_yaml(text)
    except UserError as error:
        raise UserError(f"override {override!r}: {error}") from None
    here: Any = values
    path: tuple[str | int, ...] = ()
    for depth, part in enumerate(parts):
        if not isinstance(here, dict | list):
            raise UserError(
                f"override {override!r}: {'.'.join(parts[:depth])} is {here!r}, which has no keys inside it; "
                "set the value itself or name another key"
            )
        holder: Any = here
        key = part if isinstance(holder, dict) else _index(part, holder, ".".join(parts[:depth]), override)
        path = (*path, key)
        if depth == len(parts) - 1:
            holder[key] = value
        else:
            here = holder.setdefault(key, {}) if isinstance(holder, dict) else holder[key]
    _trace(value, path, f"override {override}", origins)


def _index(part: str, items: list, dotted: str, override: str) -> int:
    if not part.isdecimal() or int(part) >= len(items):
        raise UserError(
            f"override {override!r}: {dotted} is a list of {len(items)}, so {part!r} must be a number from 0 to "
            f"{len(items) - 1}"
        )
    return int(part)
