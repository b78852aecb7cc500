"""Curves in TensorBoard: `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

CURVES = ("step", "validation")
"""The kinds of events whose numbers are drawn; all kinds are in events.jsonl."""


class TensorBoard:
    """Every number of a "step" or "validation" event as a curve over the step, named by its place in the event."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None

    def write(self, kind: str, /, **fields: Any) -> None:
        if self._writer is None:
            # After a restart some steps are repeated: what the last attempt drew of them is hidden.
            repeated = fields["step"] + 1 if kind == "resumed" else None
            self._writer = SummaryWriter(self._directory, purge_step=repeated)
        if kind not in CURVES:
            return
        for name, number in _numbers(kind, {k: v for k, v in fields.items() if k not in ("step", "attempt")}):
            self._writer.add_scalar(name, number, fields["step"])
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The numbers inside nested dicts, named `outer/inner`; what is no number is left out."""
    if isinstance(value, dict):
        for inner, content in value.items():
            yield from _numbers(f"{name}/{inner}", content)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
