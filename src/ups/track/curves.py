"""The numbers of a run's events as curves over the step: what TensorBoard and Weights & Biases draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CURVES = ("step", "validation", "skipped", "out_of_memory")
"""The kinds of events whose numbers are drawn; all kinds are in events.jsonl."""


def curves(kind: str, fields: Mapping[str, Any]) -> dict[str, float]:
    """Of one event, by its place in it: `step/loss`, `validation/errors/burgers`; nothing of other kinds."""
    if kind not in CURVES:
        return {}
    return dict(numbers(kind, {k: v for k, v in fields.items() if k not in _NONE}))


def numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers inside nested dicts, named `outer/inner`; what is no number is left out."""
    if isinstance(value, Mapping):
        for inner, content in value.items():
            yield from numbers(f"{name}/{inner}", content)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


_NONE = {"step", "attempt", "kind", "time", "seconds"}
"""What every event has."""
