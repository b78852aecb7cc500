"""A training's state and its checkpoints: written while it goes on, tried again when a disk refuses."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Shaped
from torch import Tensor

from ups import checkpoint
from ups.checkpoint.saver import Checkpoints, NotSaved
from ups.distributed.launch.claim import gone
from ups.distributed.runtime.start import Runtime
from ups.errors import GaveUp, Stopped
from ups.track.tracker import Tracker

RETRY = 5.0
"""Seconds from a checkpoint that could not be written to the next try."""
AGAIN, IN_FLIGHT = 1, 2
"""What a rank says of its disk in a vote: try again what was refused; a save is still in flight. The largest counts."""


@dataclass
class TrainingState:
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
        self, directory: Path, runtime: Runtime, state: TrainingState, description: Mapping[str, Any], events: Tracker
    ) -> None:
        self.runtime, self.state, self.description, self.events = runtime, state, description, events
        self.folder = directory / "checkpoints"
        group = runtime.saving if runtime.size > 1 else None
        self._saver = Checkpoints(
            self.folder, rank=runtime.rank, size=runtime.size, group=group, attempt=runtime.ranks.attempt
        )
        self._refused, self._refused_since, self._begun_at, self._step = 0, 0.0, 0.0, -1
        self._in_flight = self._asked = False  # as far as all ranks know
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
    def said(self) -> int:
        """What this rank says in a vote."""
        if self._saver.busy:
            return IN_FLIGHT
        return AGAIN if self._refused and time.monotonic() > self._begun_at + RETRY else 0

    def due(self, said: int, asked: bool, now: bool) -> bool:
        """Whether to save in this step, the same on every rank; `said` is the largest that the ranks had to say.

        One that is `asked` for while another is in flight comes after it, and training goes on; one whose weights
        would be gone by then must be written `now`, and waits for the other.
        """
        if self._in_flight and said != IN_FLIGHT:
            self._written()
        self._asked = self._asked or asked or said == AGAIN
        return now or (self._asked and not self._in_flight)

    def save(self, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> None:
        """Begin to write a checkpoint of this step, once the one before is done; it ends while training goes on."""
        self._written()
        self._write(tensors)

    def settle(self, tensors: Mapping[str, Shaped[Tensor, "..."]], stopping: bool) -> None:
        """Wait until the last checkpoint is on the disk. One that was refused is tried again, once if we are asked to
        stop meanwhile and never if we are `stopping`, for which there is little time: then `Stopped` says what is kept.
        """
        while not self._written(stopping):
            until = time.monotonic() + RETRY
            while time.monotonic() < until and not self.runtime.stop.asked:
                self._wait_for_disk()
                time.sleep(0.2)
            stopping = any(self.runtime.gather(self.runtime.stop.asked))  # a rank hears it before another
            self._write(tensors)

    def _wait_for_disk(self) -> None:
        self.runtime.heartbeat.mark("checkpoint", self.state.step - 1)  # it belongs to the step before

    def _write(self, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> None:
        state = self.state
        self._wait_for_disk()
        progress = vars(state) | {"best": None if math.isinf(state.best) else state.best}
        self._saver.save(
            state.step, tensors, {**self.description, "progress": progress}, best=state.best_step == state.step
        )
        self._begun_at, self._step, self._in_flight, self._asked = time.monotonic(), state.step, True, False

    def _written(self, stopping: bool = False) -> bool:
        """Wait for the checkpoint in flight, if any; whether it was written. Every rank sees the same."""
        if not self._in_flight:
            return True
        state, self._in_flight = self.state, False
        try:
            self._saver.wait(self._wait_for_disk)
        except NotSaved as error:
            self._refused += 1
            if self._refused == 1:
                self._refused_since = self._begun_at
            if state.best_step == self._step != state.step:  # those weights are gone
                state.best, state.best_step = self._kept
            if not self.folder.parent.is_dir():
                raise gone(self.runtime.directory or self.folder.parent) from error
            self.events.write("not_saved", step=state.step, reason=str(error), in_a_row=self._refused)
            if stopping:
                kept = checkpoint.steps(self.folder)
                left = f"step {kept[-1]} is the last that is saved" if kept else "nothing is saved"
                raise Stopped(f"{error}; {left}") from error
            if self._refused == 1 and self.runtime.rank == 0:
                warnings.warn(f"{error}; it is tried again every {RETRY:.0f} s", stacklevel=2)
            refused_for = time.monotonic() - self._refused_since
            if refused_for > self.runtime.config.disk_patience:
                raise GaveUp(f"no checkpoint could be written for {refused_for:.0f} s: {error}") from error
            return False
        self._refused = 0
        if state.best_step == self._step:
            self._kept = state.best, state.best_step
        return True
