"""neuraloperator's FNO, trained by neuraloperator's own Trainer on batches that are gathered on the device, so that it
waits for no data. The package is no dependency: it may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import islice, repeat
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ups.bench.contestants import STRETCHES, Absent, Setting
from ups.bench.loops import on_device
from ups.bench.roofline import Counts, count_step
from ups.fields import Batch, Grid
from ups.models.propagator import Propagator


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
        return islice(self.batches, self.count)


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
        data, device = setting.data, setting.runtime.device
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
        self.module: nn.Module = network.to(device)
        self.propagator = NextFrame(network).to(device)
        self.batches = map(_named, on_device(data, device, setting.seed))
        self.optimiser = torch.optim.AdamW(network.parameters(), lr=described.learning_rate, weight_decay=1e-4)
        self.loss = neuralop.LpLoss(d=dimension, p=2)
        self.trainer = neuralop.Trainer(model=network, n_epochs=STRETCHES, device=device)
        self.trainer.optimizer, self.trainer.regularizer = self.optimiser, None
        self.trainer.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, T_max=STRETCHES)

    @cached_property
    def same(self) -> dict[str, Tensor]:
        return next(self.batches)

    def advance(self, steps: int, *, fixed: bool = False) -> None:
        """An epoch of its Trainer, after which that moves the schedule."""
        batches = repeat(self.same) if fixed else self.batches
        self.trainer.train_one_epoch(0, Stretch(batches, steps), self.loss)

    def count(self) -> Counts:
        self.advance(1, fixed=True)
        return count_step(lambda: self.advance(1, fixed=True), self.module, self.optimiser)

    @contextmanager
    def judged(self) -> Iterator[Propagator]:
        self.module.eval()
        yield cast(Propagator, self.propagator)


def _named(batch: Batch) -> dict[str, Tensor]:
    """As its Trainer wants them: a frame and the next, channels first."""
    x, y = batch.values.movedim(-1, 2).unbind(1)
    return {"x": x.contiguous(), "y": y.contiguous()}
