"""Our own way: the Trainer, as `ups train` uses it."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from torch import nn

from ups.bench.contestants import Setting, Watch
from ups.bench.counts import Counts
from ups.bench.data import KEPT
from ups.bench.loops import Loop, build, recipe
from ups.errors import Stopped
from ups.models.propagator import Propagator
from ups.track.open import open_tracker
from ups.training.trainer import Trainer


class Trained:
    """A model in the Trainer, which captures its steps and places its data as it does anywhere."""

    def __init__(self, model: str, setting: Setting) -> None:
        self.model, self.setting = model, setting
        data = setting.data
        described = data.task.models[model]
        spec, network = build(described, data.learned, setting.seed)
        self.config = recipe(described, data.task.batch_size, setting.steps)
        self.watch: Watch | None = None
        self._held = ExitStack()
        self._place = tempfile.TemporaryDirectory(dir=setting.folder)
        folder = Path(self._place.name)
        self.trainer = Trainer(
            setting.runtime,
            network,
            {data.learned.spec.name: data.store},
            {data.learned.spec.name: 1.0},
            self.config,
            setting.seed,
            folder,
            {"model": spec.to_dict()},
            self._validate,
            open_tracker(folder, (), setting.runtime.rank, setting.runtime.ranks.attempt),
        )

    @property
    def module(self) -> nn.Module:
        return self.trainer.model

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

    def train(self, watch: Watch) -> float:
        self.watch = watch
        try:
            return self.trainer.fit(watch.progress).seconds
        except Stopped:  # what the Trainer saved goes with its folder
            raise Stopped(KEPT) from None

    def _validate(self, model: Propagator) -> dict[str, tuple[float, float]]:
        state, watch = self.trainer.state, self.watch
        assert watch is not None, "only `train` validates"
        return {self.setting.data.learned.spec.name: (watch.validate(state.step, state.seconds, model), 1.0)}

    def trained(self) -> Propagator:
        """With the averaged weights, as everything of ours is judged."""
        self._held.enter_context(self.trainer.ema.applied())
        return self.trainer.model

    def close(self) -> None:
        self._held.close()
        self.trainer.events.close()
        self._place.cleanup()
