"""Test trajectories of a task whose data our solvers make, solved on the spot: on another grid, for a longer time or at
another parameter value, without the files of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ups.data.formats.layouts import named_layout
from ups.data.generate.make import equation_header
from ups.data.joined import Joined
from ups.data.prepare.splits import Splits, split
from ups.data.settings import MakeConfig
from ups.data.sources import equations_of, family_seed
from ups.equations import Equation
from ups.fields import Batch, Dataset

CHUNK = 256
"""Trajectories solved at a time: what a GPU holds of the largest of them."""


class Solved(Dataset):
    """The first `count` trajectories of the family that a run of this seed makes, solved when they are read."""

    def __init__(self, equation: Equation, count: int, seed: int, device: torch.device) -> None:
        self.header = replace(equation_header(equation), test_at=named_layout(equation.layout).test_at)
        self.equation, self.count, self.device = equation, count, device
        self.seed = family_seed(seed, equation)

    def __len__(self) -> int:
        return self.count

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        times = self.times[frames]
        parts = [indices[lo : lo + CHUNK] for lo in range(0, len(indices), CHUNK)]
        solved = [self.equation.solve(self.seed, part, times, self.device) for part in parts]
        first = solved[0]
        return replace(
            first,
            values=torch.cat([batch.values.cpu() for batch in solved]),
            times=torch.cat([batch.times.cpu() for batch in solved]),
            parameters={n: torch.cat([batch.parameters[n].cpu() for batch in solved]) for n in first.parameters},
            static={n: torch.cat([batch.static[n].cpu() for batch in solved]) for n in first.static},
            ids=torch.tensor(list(indices)),
        )


def splits(
    task: str, make: MakeConfig, seed: int, device: torch.device, changes: Mapping[str, Any] | None = None
) -> list[tuple[str, Splits]]:
    """What a run of this seed trains on, chooses by and tests on, one for each combination of parameter values, with
    what that is called. `changes` are other points, frames or duration of the same starts.
    """
    changed = make.model_copy(update={"settings": {**make.settings, **(changes or {})}})
    return [
        (label, split(Solved(equation, make.trajectories, seed, device)))
        for label, equation in equations_of(task, changed)
    ]


def judged_on(parts: Sequence[tuple[str, Splits]]) -> Joined:
    """All test trajectories, in the order of the run's test set."""
    return Joined([part.test for _, part in parts])
