"""Our own way: the Trainer, as `ups train` uses it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from torch import nn

from ups.bench.contestants import Setting, Validate
from ups.bench.data import KEPT
from ups.bench.loops import Loop, build, recipe
from ups.bench.roofline import Counts
from ups.data.draws import Draws
from ups.errors import Stopped
from ups.fields import Batch
from ups.models.propagator import Propagator
from ups.track.open import open_tracker
from ups.training.data import TaskData
from ups.training.stage import Scores
from ups.training.stages.operator import OperatorStage
from ups.training.trainer import Trainer


class Trained:
    """A model in the Trainer, which captures its steps and places its data as it does anywhere."""

    def __init__(self, model: str, setting: Setting) -> None:
        self.model, self.setting = model, setting
        data = setting.data
        described = data.task.models[model]
        network = build(described, data.learned, setting.seed)
        self.config = recipe(described, data.task.batch_size, setting.steps)
        self._held = ExitStack()
        self._place = tempfile.TemporaryDirectory(dir=setting.folder)
        folder = Path(self._place.name)
        task = TaskData(data.learned, data.store, data.learned.normaliser.batch(data.validation), 1.0)
        self.stage = OperatorStage(network, self.config, setting.runtime.config)
        self.trainer = Trainer(
            setting.runtime,
            self.stage,
            {data.learned.spec.name: task},
            self.config,
            setting.seed,
            folder,
            {},
            open_tracker(folder, (), setting.runtime.rank, setting.runtime.ranks.attempt),
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
        """Of a plain step of the same model: graphs cannot be counted."""
        return Loop(self.model, self.setting, "gather", averaged=True, compiled=False).count()

    def train(self, validate: Validate, progress: Callable[[int, str], None]) -> float:
        def judged(batch: Batch, draws: Draws) -> Scores:
            """As all contestants are."""
            ones, state = batch.values.new_ones(len(batch)), self.trainer.state
            return Scores(validate(state.step, state.seconds, self.stage.model) * ones, ones)

        self.stage.validate = judged  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return self.trainer.fit(progress).seconds
        except Stopped:  # what the Trainer saved goes with its folder
            raise Stopped(KEPT) from None
        finally:
            del self.stage.validate  # the method again

    def trained(self) -> Propagator:
        """With the averaged weights, as everything of ours is judged."""
        self._held.enter_context(self.trainer.ema.applied())
        return self.stage.trainable()

    def close(self) -> None:
        self._held.close()
        self.trainer.events.close()
        self._place.cleanup()
