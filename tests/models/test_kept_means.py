"""Means that the equation conserves are kept in physical units, also of channels that are learned in logarithms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import Solved
from torch import Tensor

from ups.data.prepare.statistics import statistics
from ups.equations import Compressible1D
from ups.fields import Grid, Invariant
from ups.models.programs import write_torch
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator

FLOW = Compressible1D(points=64, frames=6, duration=0.25)
SETTINGS = {"width": 8, "depth": 1, "head": 8, "conditions": 8}
DATA = Solved(FLOW, 3)
VISCOSITY = {"eta": FLOW.eta, "zeta": FLOW.zeta}


def gas(history: int, *also: str, grid: Grid = FLOW.grid) -> tuple[Propagator, ModelSpec]:
    """Random weights, large enough to move every field; `also`: further channels taken for conserved."""
    task = replace(FLOW.task(), history=history)
    task = replace(task, invariants=(*task.invariants, *map(Invariant, also)))
    ranges = {name: (value, value) for name, value in VISCOSITY.items()}
    learned = TrainedTask(task, grid, statistics(DATA, task), ranges, (task.dt or 0.0,))
    spec = ModelSpec("spectral", SETTINGS, (learned,))
    model = spec.build(0).double().requires_grad_(False)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    return model, spec


@pytest.mark.parametrize("history", [1, 2])
def test_a_rollout_keeps_the_mean_density_and_not_that_of_its_logarithm(history: int) -> None:
    model, spec = gas(history, "Vx")
    frames = DATA.batch.values[:, :history].double()
    values = Simulator(OperatorPredictor(model, spec.tasks)).rollout(frames, steps=10, conditions=VISCOSITY).values
    start = frames[:, -1]
    change = ((values - start[:, None]).square().mean(2).sqrt() / start.square().mean(1).sqrt()[:, None])[:, -1]
    assert float(change.min()) > 0.01  # every channel of every sample has moved
    means, first = values.mean(2), start.mean(1)[:, None]
    # Round-off of 64 logarithms a step, ten steps.
    assert torch.allclose(means[..., 0], first[..., 0].expand(3, 10), rtol=1e-12, atol=0)
    assert torch.allclose(
        means[..., 2], first[..., 2].expand(3, 10), rtol=0, atol=1e-12 * float(start[..., 2].abs().max())
    )
    assert float((means[..., 1] / first[..., 1] - 1).abs().max()) > 1e-4  # nothing keeps that of pressure
    logarithms = values[..., 0].log().mean(2) - start[..., 0].log().mean(1)[:, None]
    assert float(logarithms.abs().max()) > 1e-6


def test_the_kept_mean_is_differentiated_through() -> None:
    model, spec = gas(1, grid=Grid.cell_centred((8,), FLOW.extent))
    start = DATA.batch.values[:1, 0, ::8].double()

    def density(start: Tensor) -> Tensor:
        return (
            Simulator(OperatorPredictor(model, spec.tasks)).rollout(start, steps=2, conditions=VISCOSITY).values[..., 0]
        )

    assert torch.autograd.gradcheck(density, (start.requires_grad_(),), atol=1e-6)
    (gradient,) = torch.autograd.grad(density(start)[0, -1].mean(), start)
    assert torch.allclose(gradient[0, :, 0], torch.full((8,), 1 / 8, dtype=torch.float64), rtol=0, atol=1e-10)
    assert float(gradient[..., 1:].abs().max()) < 1e-10  # the mean depends on the start's density and on nothing else


def test_an_exported_program_keeps_the_mean_too(tmp_path: Path) -> None:
    model, spec = gas(1)
    write_torch(model, spec.tasks[0], tmp_path / "step.pt2")
    step = torch.export.load(tmp_path / "step.pt2").module()
    start = DATA.batch.values[:, :1].double()
    viscosity = {name: torch.full((3,), value, dtype=torch.float64) for name, value in VISCOSITY.items()}
    state = step(start, {}, viscosity, torch.full((3,), spec.tasks[0].spec.dt, dtype=torch.float64))
    assert torch.allclose(state[..., 0].mean(1), start[:, 0, :, 0].mean(1), rtol=1e-12, atol=0)
    assert not torch.allclose(state[..., 0], start[:, 0, :, 0], rtol=1e-3)
