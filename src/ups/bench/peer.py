"""neuraloperator's FNO, trained by neuraloperator's own Trainer on batches that are gathered on the device, so that it
waits for no data. The package is no dependency: it may be absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ups.bench.contestants import POINTS, Absent, Setting, Validate
from ups.bench.data import KEPT
from ups.bench.loops import Clock, on_device
from ups.bench.roofline import Counts, count_step
from ups.fields import Batch, Grid
from ups.models.propagator import Propagator

EPOCHS = 20
"""Into so many the training is divided: its Trainer moves the schedule once an epoch, and ours here last minutes."""
SHORTEST = 10
"""Steps of an epoch, at least."""


def package() -> Any:
    try:
        import neuralop  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise Absent(f"neuraloperator is not installed ({error}); `pip install neuraloperator` adds its row") from error
    return neuralop


class Stretch:
    """An epoch of so many batches out of an endless walk through the data."""

    def __init__(self, batches: Iterator[Any], count: int) -> None:
        self.batches, self.count = batches, count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.count):
            yield next(self.batches)


class NextFrame(nn.Module):
    """Its FNO as it is used there, from one normalised frame to the next, where our evaluation expects a propagator."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.zeros(()), requires_grad=False)  # the first parameter tells a model's precision
        self.network = network

    def forward(
        self,
        task: str,
        history: Float[Tensor, "B H *space C"],
        static: Float[Tensor, "B *space S"],
        parameters: Mapping[str, Float[Tensor, " B"]],
        lead: Float[Tensor, " B"],
        grid: Grid,
    ) -> Float[Tensor, "B *space C"]:
        return self.network(history[:, -1].movedim(-1, 1)).movedim(1, -1)


class Peer:
    def __init__(self, model: str, setting: Setting) -> None:
        neuralop = package()
        data, self.runtime = setting.data, setting.runtime
        self.device, self.steps = self.runtime.device, setting.steps
        described, dimension = data.task.models[model], data.learned.spec.dimension
        settings = dict(described.settings)
        channels = len(data.learned.spec.channels)
        torch.manual_seed(setting.seed)
        network = neuralop.models.FNO(
            n_modes=(2 * settings.pop("modes"),) * dimension,  # positive and negative ones: ours counts only the former
            in_channels=channels,
            out_channels=channels,
            **settings,
        )
        self.module: nn.Module = network.to(self.device)
        self.judged = NextFrame(network).to(self.device)
        self.batches = map(_named, on_device(data, self.device, setting.seed))
        self.optimiser = torch.optim.AdamW(network.parameters(), lr=described.learning_rate, weight_decay=1e-4)
        self.loss = neuralop.LpLoss(d=dimension, p=2)
        self.trainer = neuralop.Trainer(model=network, n_epochs=EPOCHS, device=self.device)
        self._same: dict[str, Tensor] | None = None

    def advance(self, steps: int, *, fixed: bool = False) -> None:
        self._schedule(10**6)
        batches = iter(lambda: self._fixed(), None) if fixed else self.batches
        self.trainer.train_one_epoch(0, Stretch(batches, steps), self.loss)

    def _schedule(self, epochs: int) -> None:
        self.trainer.optimizer, self.trainer.regularizer = self.optimiser, None
        self.trainer.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, T_max=epochs)

    def _fixed(self) -> dict[str, Tensor]:
        same = self._same or next(self.batches)
        self._same = same
        return same

    def count(self) -> Counts:
        batch = self._fixed()
        self.advance(1, fixed=True)

        def step() -> None:
            self.trainer.train_one_epoch(0, Stretch(iter([batch]), 1), self.loss)

        return count_step(step, self.module, self.optimiser)

    def train(self, validate: Validate, progress: Callable[[int, str], None]) -> float:
        epochs = max(1, min(EPOCHS, self.steps // SHORTEST))
        each = self.steps // epochs
        due = max(1, epochs // POINTS)
        self._schedule(epochs)
        clock = Clock(self.device)
        for epoch in range(1, epochs + 1):
            self.trainer.train_one_epoch(epoch - 1, Stretch(self.batches, each), self.loss)
            self.runtime.check_stop(KEPT)
            progress(epoch * each, "")
            if epoch % due == 0 or epoch == epochs:
                self.module.eval()
                with clock.stopped(), torch.no_grad():
                    validate(epoch * each, clock.seconds, self.trained())
        return clock.seconds

    def trained(self) -> Propagator:
        return cast(Propagator, self.judged)

    def close(self) -> None:
        del self.batches, self._same


def _named(batch: Batch) -> dict[str, Tensor]:
    """As its Trainer wants them: a frame and the next, channels first."""
    x, y = batch.values.movedim(-1, 2).unbind(1)
    return {"x": x.contiguous(), "y": y.contiguous()}
