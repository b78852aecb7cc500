"""Two half steps against one whole: of a model of several lead times, beside its other numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import Solved

from ups.data.prepare.statistics import statistics
from ups.data.sources import Source
from ups.equations import Advection
from ups.evaluation.evaluate import evaluate
from ups.models.predictor import Persistence, State
from ups.models.saved import TrainedTask

EQUATION = Advection(points=32, beta=0.4, frames=9, duration=0.8)


class Decaying(Persistence):
    """u(t + Δ) = e^−Δ u(t), of which two half steps are one whole; by Euler's method they are not."""

    euler = False

    def step(self, state: State, lead: torch.Tensor | None) -> State:
        assert lead is not None
        factor = 1 - lead if self.euler else torch.exp(-lead)
        return replace(state, history=state.history * factor.to(state.history).view(-1, 1, 1, 1))


class Euler(Decaying):
    euler = True


def half_steps(leads: tuple[float, ...]) -> dict | None:
    data, spec = Solved(EQUATION, 4), EQUATION.task()
    learned = TrainedTask(spec, data.grid, statistics(data, spec), {}, leads)
    predictors = {"exact": Decaying([learned]), "euler": Euler([learned])}
    source, how = Source(spec, data, data, {"advection": data}), {"seed": 0, "resamples": 50, "pictures": 1}
    found = evaluate(predictors, "euler", learned, source, "advection", training_seconds=1.0, **how)
    assert "half_steps" not in found.metrics["rollout"]
    return found.metrics["one_step"].get("half_steps")


@pytest.mark.parametrize(("leads", "whole"), [((0.1, 0.2), 0.2), ((0.1, 0.2, 0.3), 0.2), ((0.2, 0.4), 0.4)])
def test_they_differ_by_what_the_method_lacks(leads: tuple[float, ...], whole: float) -> None:
    """Euler: (1 − Δ/2)² − (1 − Δ) = Δ²/4, over 1 − Δ."""
    entry = half_steps(leads)
    assert entry is not None and "persistence" not in entry
    assert entry["exact"] == pytest.approx(0.0, abs=1e-6)
    assert entry["model"] == entry["euler"] == pytest.approx(whole**2 / 4 / (1 - whole), rel=1e-4)
    assert entry["ci95"] == pytest.approx([entry["model"]] * 2, rel=1e-4)


@pytest.mark.parametrize("leads", [(0.1,), (0.2, 0.3)])
def test_there_are_none_where_half_a_step_was_not_trained(leads: tuple[float, ...]) -> None:
    assert half_steps(leads) is None
