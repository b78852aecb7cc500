"""YAML without its traps: text to plain mappings, and back.

YAML 1.1 as PyYAML reads it turns `1e-3` into a string, `no` into False, `010` into 8, `1:30` into 90, a date into an
object, and lets the second of two equal keys win. Here numbers, booleans and nulls follow the YAML 1.2 core schema and
equal keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from ups.errors import UserError

FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
INT = re.compile(r"^[-+]?[0-9]+$|^0o[0-7]+$|^0x[0-9a-fA-F]+$")
BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
NULL = re.compile(r"^(~|null|Null|NULL)$|^$")

# INT stands before FLOAT: "12" fits both, and the first that fits wins.
CORE = (
    ("tag:yaml.org,2002:null", NULL, ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", BOOL, list("tTfF")),
    ("tag:yaml.org,2002:int", INT, list("-+0123456789")),
    ("tag:yaml.org,2002:float", FLOAT, list("-+0123456789.")),
    ("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"]),
)


MOST, MOST_DIGITS = 100_000, 1000
"""Values that a text may stand for, with all aliases written out: a few lines of aliases could stand for billions."""
_too_large = UserError(f"this YAML stands for more than {MOST:,} values; use fewer aliases (*name) or a smaller file")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict = {}  # noqa: RUF012  (PyYAML's own way to say it; filled below)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuses equal keys here, before `<<` merges (which may repeat a key rightly) are expanded."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"line {line}: a key must be a plain word, not a list or a mapping")
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise UserError(f"line {line}: the key {key.value} is not text; write it in quotes")
            if key.value in seen:
                raise UserError(f"line {line}: the key {key.value!r} is given twice; remove one")
            seen.add(key.value)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST:  # merges of merges
            raise _too_large

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        if len(text) > MOST_DIGITS:
            raise UserError(f"line {node.start_mark.line + 1}: a number of {len(text)} digits; write it as 1e30")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


class _Dumper(yaml.SafeDumper):
    """Quotes a string whenever either reading of YAML, 1.1 or ours, would take it for something else."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Double quotes escape the line breaks of Unicode, which plain and single-quoted text would fold away."""
        style = '"' if any(mark in text for mark in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


for _tag, _pattern, _first in CORE:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)
_Dumper.add_representer(str, _Dumper.represent_text)


def parse_yaml(text: str) -> Any:
    """The value that `text` stands for; a UserError names the line of what cannot be read."""
    try:
        values = yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain values only
        return _unshared(values, iter(range(MOST)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise UserError(f"{line}this is not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UserError(f"this is not valid YAML: {str(error).splitlines()[0]}") from None
    except ValueError as error:
        raise UserError(f"this is not valid YAML: {error}") from None
    except RecursionError:
        raise UserError("this YAML holds a value that contains itself; remove the alias (*name) inside it") from None


def _unshared(value: Any, left: Iterator[int]) -> Any:
    """The same value with every alias written out, so that changing one place changes no other."""
    if next(left, None) is None:
        raise _too_large
    if isinstance(value, dict):
        return {key: _unshared(inner, left) for key, inner in value.items()}
    return [_unshared(inner, left) for inner in value] if isinstance(value, list) else value


def to_yaml(value: Any) -> str:
    """YAML text that `parse_yaml` reads back to an equal value, keys in the given order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
