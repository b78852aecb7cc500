"""What is trained: the one thing the Trainer knows of a training.

A stage owns its modules, says what a sample of it is, and turns samples into losses and scores. Everything else
(batches, ranks, capture, optimiser, averages, checkpoints, selection) is the Trainer's, the same for every stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from ups.data.draws import Draws
from ups.data.sampler import Span
from ups.fields import Batch
from ups.models.predictor import Predictor
from ups.training.losses import LossParts


@dataclass(frozen=True, eq=False)
class Parent:
    """A trained stage that another one stands on: its module, which stays as it is, and its checkpoint's checksum."""

    module: nn.Module
    checksum: str


@dataclass(frozen=True, eq=False)
class Scores:
    """How wrong each sample of a validation batch is, and how wrong what needs no training is; lower is better.
    `shown`: the last frames of the first sample as they were predicted, for trackers to draw. `cut_off`: the share of
    predicted values that guards cut off, where there are guards.
    """

    errors: Float[Tensor, " B"]
    trivial: Float[Tensor, " B"]
    shown: Float[Tensor, "T *space C"] | None = None
    cut_off: Float[Tensor, " B"] | None = None


class Stage(Protocol):
    @property
    def name(self) -> str:
        """Under which it is saved, and which its draws depend on."""
        ...

    def trainable(self) -> nn.Module:
        """Whose parameters move, except those that do not require gradients. It is what a checkpoint holds."""
        ...

    def parents(self) -> Mapping[str, Parent]:
        """The stages it stands on, by name. The Trainer brings them to its device, frozen."""
        ...

    def window(self, step: int) -> Span:
        """What a sample holds in training step `step`; the last step's is the longest."""
        ...

    def loss(self, batch: Batch, draws: Draws) -> LossParts:
        """What to minimise, for windows of normalised fields of one task."""
        ...

    def validate(self, batch: Batch, draws: Draws) -> Scores:
        """For whole trajectories of normalised fields of one task. Draws do not depend on the step here."""
        ...

    def predictor(self) -> Predictor:
        """What is trained, for evaluation and users."""
        ...
