"""What every operator model can be told; an architecture adds its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ups.config.settings import Positive, PositiveFloat, Strict


class OperatorSettings(Strict):
    width: Positive = Field(default=48, description="channels of the latents")
    depth: Positive = Field(default=4, description="blocks")
    expansion: PositiveFloat = Field(default=2.0, description="hidden width of a block's MLP, in widths")
    head: Positive = Field(default=32, description="hidden width of the head")
    conditions: Positive = Field(default=64, description="width of the embedded conditions")
    position_modes: Annotated[int, Field(ge=0)] = Field(
        default=5,
        description="along each axis, of the field that a task with a periodic axis learns of its points' positions, "
        "as fixed forces need; 0: none, and shifts commute exactly",
    )
