"""Who takes part: the same data, batch size and schedule for all; docs/performance.md lists what differs.

| key | model | run |
|---|---|---|
| ours | operator | the Trainer: fields where it places them, steps captured on a GPU |
| eager | operator | a plain loop, gather on the device |
| dataloader | operator | a plain loop, torch's DataLoader |
| fno | our FNO, by Muon | the Trainer |
| fno_usual, unet_usual | our FNO, our U-Net, by AdamW | a plain loop, torch's DataLoader |
| neuraloperator | its FNO | its own Trainer, gather on the device |

`small`, `large` and `transformer` are the operator at the quickstart's width, at six million parameters, and as plain
transformer: timed, not trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from ups.bench.data import Data
from ups.bench.roofline import Counts
from ups.bench.tasks import Task
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.models.propagator import Propagator

STRETCHES = 20
"""Into so many a training is divided; after every second one it is validated, its clock stopped."""


class Absent(Exception):
    """Something optional is not there: one sentence. Its row says so, and nothing has failed."""


class Contestant(Protocol):
    """A model and a way to train it."""

    @property
    def module(self) -> nn.Module:
        """What is trained."""
        ...

    def advance(self, steps: int, *, fixed: bool = False) -> None:
        """So many training steps; on one and the same batch if `fixed`."""
        ...

    def count(self) -> Counts:
        """What an eager step of the same model computes and moves, on a batch that is there already."""
        ...

    def judged(self) -> AbstractContextManager[Propagator]:
        """Within, the model as it is judged: with averaged weights, if it has them."""
        ...


@dataclass(frozen=True)
class Setting:
    """What a contestant is made from."""

    data: Data
    runtime: Runtime
    seed: int
    steps: int
    folder: Path


@dataclass(frozen=True)
class Entry:
    """One row of the table. `way` is trainer, gather, loader or neuraloperator; a loop that stands beside our Trainer
    averages weights as it does (`averaged`), one that stands for the usual way does not.
    """

    key: str
    title: str
    model: str
    way: str
    trained: bool = True
    averaged: bool = False

    def make(self, setting: Setting) -> Contestant:
        if self.way == "neuraloperator":
            from ups.bench.peer import Peer

            return Peer(self.model, setting)
        if self.way == "trainer":
            from ups.bench.trained import Trained

            return Trained(self.model, setting)
        from ups.bench.loops import Loop

        return Loop(self.model, setting, self.way, averaged=self.averaged)


ENTRIES = (
    Entry("ours", "ours", "ours", "trainer"),
    Entry("eager", "ours, eager", "ours", "gather", averaged=True),
    Entry("dataloader", "ours, DataLoader", "ours", "loader", averaged=True),
    Entry("fno", "FNO", "fno", "trainer"),
    Entry("fno_usual", "FNO, usual way", "fno_usual", "loader"),
    Entry("unet_usual", "U-Net, usual way", "unet", "loader"),
    Entry("neuraloperator", "neuraloperator", "neuraloperator", "neuraloperator"),
    Entry("small", "ours, small", "small", "trainer", trained=False),
    Entry("small_eager", "ours, small, eager", "small", "gather", trained=False, averaged=True),
    Entry("small_dataloader", "ours, small, DataLoader", "small", "loader", trained=False, averaged=True),
    Entry("large", "ours, large", "large", "trainer", trained=False),
    Entry("large_eager", "ours, large, eager", "large", "gather", trained=False, averaged=True),
    Entry("large_dataloader", "ours, large, DataLoader", "large", "loader", trained=False, averaged=True),
    Entry("transformer", "plain transformer", "transformer", "trainer", trained=False),
)
QUICK = ("ours", "eager", "fno_usual", "unet_usual", "neuraloperator", "transformer")


def ordered(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a file of results in the order of ENTRIES, whatever was measured first."""
    found = content["contestants"]
    return [found[entry.key] for entry in ENTRIES if entry.key in found]


def chosen(only: Sequence[str], task: Task, quick: bool) -> list[Entry]:
    """Those named, or all that the task has a model for; a quick benchmark has fewer."""
    known = {entry.key: entry for entry in ENTRIES}
    for key in only:
        if key not in known:
            raise UserError(f"--only {key}: there is no such contestant; use {', '.join(known)}")
    keys = only or (QUICK if quick else tuple(known))
    return [known[key] for key in known if key in keys and known[key].model in task.models]
