"""Curves in TensorBoard: `tensorboard --logdir runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from ups.track.curves import curves


class TensorBoard:
    """Every number of the events that are drawn as a curve over the step, named by its place in the event."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None

    def write(self, kind: str, /, **fields: Any) -> None:
        if self._writer is None:
            # After a restart some steps are repeated: what the last attempt drew of them is hidden.
            repeated = fields["step"] + 1 if kind == "resumed" else None
            self._writer = SummaryWriter(self._directory, purge_step=repeated)
        found = curves(kind, fields)
        for name, number in found.items():
            self._writer.add_scalar(name, number, fields["step"])
        if found:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
