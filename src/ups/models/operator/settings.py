"""What every operator model can be told; an architecture adds its own."""

from __future__ import annotations

from pydantic import Field

from ups.config.settings import Positive, PositiveFloat, Strict


class OperatorSettings(Strict):
    width: Positive = Field(default=48, description="channels of the latents")
    depth: Positive = Field(default=4, description="blocks")
    expansion: PositiveFloat = Field(default=2.0, description="hidden width of a block's MLP, in widths")
    head: Positive = Field(default=32, description="hidden width of the head")
    conditions: Positive = Field(default=64, description="width of the embedded conditions")
