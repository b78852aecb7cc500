"""What assimilation is measured beside: radial basis functions and gappy POD, where both are right."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("scipy")
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from assimilation import best, gappy, made, rbf
from small import Solved

from ups.data.prepare.statistics import statistics
from ups.equations import Advection
from ups.models.saved import TrainedTask

EQUATION = Advection(points=32, beta=0.4, frames=12, duration=0.5)


def waves(count: int) -> Solved:
    """Of two lengths, which gappy POD needs four modes for."""
    data = Solved(EQUATION, count)
    x, phase = EQUATION.grid.points()[:, 0], torch.arange(count)[:, None] + EQUATION.times
    angle = 2 * torch.pi * x - phase[..., None]
    data.batch.values.copy_((angle.sin() + 0.5 * (2 * angle).cos())[..., None])
    return data


def test_both_give_back_what_they_can_represent_and_the_better_of_several_is_chosen() -> None:
    data, spec = waves(6), EQUATION.task()
    learned = TrainedTask(spec, data.grid, statistics(data, spec), {"beta": (0.4, 0.4)}, (spec.dt or 0.0,))
    options = argparse.Namespace(samples=6, layouts=2, frames=4, stride=2, sensors=1.0, noise=0.0, seed=0)
    cases = list(made(learned, data, options, 0))
    assert [case.read.shape for case in cases] == [(3, 4, 32, 1)] * 2
    assert torch.allclose(cases[0].batch.times.diff(), torch.full((3, 3), 2 * (spec.dt or 0.0), dtype=torch.float64))
    modes = torch.linalg.svd(learned.normaliser.normalise(data.batch.values).flatten(0, 1).flatten(1).double()).Vh
    mean = torch.zeros(32, dtype=torch.float64)
    methods = [(f"POD {count}", gappy(learned, mean, modes[:count], 1)) for count in (1, 4)]
    methods += [(f"RBF {stretch}", rbf(learned, "cubic", 1.0, 0.0, stretch)) for stretch in (None, 1.0)]
    errors = {name: cases[0].error(method(cases[0])) for name, method in methods}
    assert errors["POD 4"] < 0.01 < errors["POD 1"]  # sensors are read by cubics
    assert errors["RBF None"] < 0.2 and errors["RBF 1.0"] < 0.2
    assert best(methods, cases)[0] == "POD 4"
