"""A training's state and its checkpoints: written while it goes on, tried again when a disk refuses."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from ups.checkpoint.saver import Checkpoints, NotSaved
from ups.distributed.runtime.start import Runtime
from ups.errors import GaveUp
from ups.track.tracker import Tracker

REFUSALS = 3
"""So many checkpoints in a row that could not be written end a run."""
RETRY = 5.0
"""Seconds from a checkpoint that could not be written to the next try."""


@dataclass
class State:
    """Where the training stands; all of it is in every checkpoint."""

    step: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0
    best: float = math.inf
    best_step: int = -1
    skipped: int = 0


class Saving:
    """All ranks call it together. `description` is what a checkpoint says of what is in it, besides the state."""

    def __init__(
        self, directory: Path, runtime: Runtime, state: State, description: Mapping[str, Any], events: Tracker
    ) -> None:
        self.runtime, self.state, self.description, self.events = runtime, state, description, events
        self.folder = directory / "checkpoints"
        group = runtime.saving if runtime.size > 1 else None
        self._saver = Checkpoints(
            self.folder, rank=runtime.rank, size=runtime.size, group=group, attempt=runtime.ranks.attempt
        )
        self._refused, self._begun_at, self._step = 0, 0.0, -1
        self._kept = state.best, state.best_step  # the best that is on the disk

    def resume(self, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> None:
        """Fill tensors and state from the newest good checkpoint, if there is one."""
        manifest = self._saver.load(tensors)
        if manifest is None:
            return
        saved = manifest.content["progress"]
        vars(self.state).update(saved | {"best": math.inf if saved["best"] is None else saved["best"]})
        self._kept = self.state.best, self.state.best_step
        self.events.write("resumed", step=self.state.step, notes=list(manifest.warnings))

    @property
    def retry_due(self) -> bool:
        """Whether this rank knows that the last checkpoint was refused, and has waited long enough."""
        return self._saver.failed and time.monotonic() > self._begun_at + RETRY

    def save(self, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> None:
        """Begin to write a checkpoint of this step, once the one before is done; it ends while training goes on."""
        self._written()
        self._write(tensors)

    def settle(self, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> None:
        """Wait until the last checkpoint is on the disk, trying again if it was refused."""
        while not self._written():
            time.sleep(RETRY)
            self._write(tensors)

    def _write(self, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> None:
        state = self.state
        self.runtime.heartbeat.mark("checkpoint", state.step - 1)  # it belongs to the step before
        progress = vars(state) | {"best": None if math.isinf(state.best) else state.best}
        self._saver.save(
            state.step, tensors, {**self.description, "progress": progress}, best=state.best_step == state.step
        )
        self._begun_at, self._step = time.monotonic(), state.step

    def _written(self) -> bool:
        """Wait for the checkpoint in flight; whether it was written. Every rank sees the same."""
        state = self.state
        try:
            self._saver.wait()
        except NotSaved as error:
            self._refused += 1
            if state.best_step == self._step != state.step:  # those weights are gone
                state.best, state.best_step = self._kept
            self.events.write("not_saved", step=state.step, reason=str(error), in_a_row=self._refused)
            if self._refused == REFUSALS:
                raise GaveUp(f"{REFUSALS} checkpoints in a row were refused: {error}") from error
            return False
        self._refused = 0
        if state.best_step == self._step:
            self._kept = state.best, state.best_step
        return True
