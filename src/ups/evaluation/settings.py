"""What an evaluation can be told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ups.config.settings import Positive, Strict, neutral


class EvaluationConfig(Strict):
    pictures: Positive = neutral(4, "test trajectories shown in the report, per task")
    members: Annotated[int, Field(ge=2, le=1024)] = Field(
        default=16, description="of the ensembles of predictors with chance; their 90 % intervals are whole from 19 on"
    )
    resamples: Annotated[int, Field(ge=100)] = 2000
    small: Positive = neutral(
        8, "test trajectories of each set that gates see before the rest is trained and evaluated"
    )
    solved: Annotated[int, Field(ge=0)] = Field(
        default=64, description="test trajectories that the task's own solver solves again on coarser grids; 0: none"
    )
