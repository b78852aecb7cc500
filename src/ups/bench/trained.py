"""Our own way: the Trainer, as `ups train` uses it, but for losses that nobody reads and checkpoints nobody keeps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from ups.bench.contestants import Setting
from ups.bench.loops import build, counted, recipe
from ups.bench.roofline import Counts
from ups.models.propagator import Propagator
from ups.track.tracker import Tracks
from ups.training.data import TaskData
from ups.training.stages.operator import OperatorStage
from ups.training.trainer import Trainer


class Trained:
    """A model in the Trainer, which captures its steps and places its data as it does anywhere."""

    def __init__(self, model: str, setting: Setting) -> None:
        self.model, self.setting, data = model, setting, setting.data
        described, learned = data.task.models[model], data.learned
        config = recipe(described, data.task.batch_size, setting.steps)
        self.stage = OperatorStage(build(described, learned, setting.seed), config, setting.runtime.config)
        tasks = {learned.spec.name: TaskData(learned, data.store, learned.normaliser.batch(data.validation), 1.0)}
        folder = Path(tempfile.mkdtemp(dir=setting.folder))
        self.trainer = Trainer(
            setting.runtime,
            self.stage,
            tasks,
            config,
            setting.seed,
            folder,
            {},
            Tracks((), setting.runtime.ranks.attempt),
        )
        self.module: nn.Module = self.trainer.model

    def advance(self, steps: int, *, fixed: bool = False) -> None:
        own = self.trainer.micro_batches
        if fixed:
            same = list(own(self.trainer.state.step))
            self.trainer.micro_batches = lambda step: iter(same)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            for _ in range(steps):
                self.trainer.step()
        finally:
            if fixed:
                del self.trainer.micro_batches  # the method again

    def count(self) -> Counts:
        return counted(self.model, self.setting, averaged=True)

    @contextmanager
    def judged(self) -> Iterator[Propagator]:
        with self.trainer.ema.applied():
            yield self.stage.model
