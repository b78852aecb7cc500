"""What a training can be told."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ups.config.settings import Positive, PositiveFloat, Share, Strict, neutral
from ups.data.settings import SamplingConfig

SHORTEST = 0.9
"""The share of samples of stride 1 among all pairs of frames: what others take, rollouts lose (docs/universal.md)."""


class PhysicsConfig(Strict):
    """Weights of losses that a task's equation gives, beside the relative error; 0 leaves one out."""

    balance: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="of the steps' balance, or a steady solution's residual, by the equation's own rate"
    )
    conservation: Annotated[float, Field(ge=0)] = Field(default=0.0, description="of means that the equation keeps")
    boundary: Annotated[float, Field(ge=0)] = Field(default=0.0, description="of the error on points next to walls")


class TrainingConfig(Strict):
    """One optimisation path. A batch is global: what the optimiser sees, on any number of ranks."""

    steps: Positive = 2000
    seconds: PositiveFloat | None = Field(
        default=None, description="train for this time instead: as many steps as the measured speed allows"
    )
    batch_size: Positive | None = Field(
        default=None, description="samples of a step; if not given, as many as have `sampling.points` points of a task"
    )
    sampling: SamplingConfig = SamplingConfig()
    optimiser: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="muon: for matrices of blocks and of their modulation, the FNO's too; all else stays with adamw",
    )
    learning_rate: PositiveFloat = 4e-3
    warmup: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    clip: PositiveFloat = 1.0
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.99
    noise: Annotated[float, Field(ge=0)] = Field(default=0.0, description="input noise, in units of the sample's rms")
    rollout: list[tuple[Share, Positive]] = Field(default=[(0.0, 1)], description="[share of training, steps unrolled]")
    strides: Positive | dict[Positive, PositiveFloat] = Field(
        default={1: 1.0},
        description="frames that a step spans: weight, drawn for each sample; a number alone: all pairs of frames that "
        "far apart at most, for a model of any lead time in between",
    )
    precision: Literal["float32", "float64", "bfloat16"] = Field(
        default="float32",
        description="bfloat16: attention and the blocks' products but the spectral ones; all else is float32. It is "
        "for wide pdet_stack; with spectral it may cost a few per cent of the accuracy",
    )
    physics: dict[str, PhysicsConfig] = Field(
        default={}, description="by task: losses that its equation gives, of operators; none if not given"
    )
    validate_every: Positive = 500
    checkpoint_every: Positive = neutral(500, "steps between checkpoints")

    def stride_table(self) -> tuple[tuple[int, float], ...]:
        """(frames that a step spans, weight). Of all strides up to a longest, 1 has `SHORTEST` of the weight, because
        rollouts are made of it, and the others the rest in parts of 1 / stride.
        """
        if isinstance(self.strides, dict):
            return tuple(self.strides.items())
        others = range(2, self.strides + 1)
        rest = (1 - SHORTEST) / math.fsum(1 / stride for stride in others) if others else 0.0
        return (1, SHORTEST), *((stride, rest / stride) for stride in others)

    @model_validator(mode="after")
    def _rollout_starts_at_zero(self) -> TrainingConfig:
        starts = [start for start, _ in self.rollout]
        if not starts or starts[0] != 0 or starts != sorted(starts):
            raise ValueError("rollout must list increasing shares of the training, the first of them 0")
        return self
