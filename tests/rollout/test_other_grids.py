"""Trained models away from the points they were trained on: no worse than their own prediction, interpolated."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import Scale, Statistics
from ups.fields import Batch, Boundary, Channel, Grid, TaskSpec
from ups.models.interpolation import axis_matrix, reader
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import one_step
from ups.simulator import Simulator

DT, WAVES, MODES = 0.1, 3, 2
TASKS = {
    name: TaskSpec(name, d, (Channel("u"),), Boundary.all(kind, d), spacing, dt=DT, parameters=("c",))
    for name, d, kind, spacing in (
        ("points", 1, "periodic", 1 / 32),
        ("patches", 1, "periodic", 1 / 16),
        ("plate", 2, "value", 1 / 8),
    )
}
GRIDS = {name: Grid.cell_centred((32,) if spec.dimension == 1 else (16, 16)) for name, spec in TASKS.items()}


def solution(task: str, sizes: Tensor, points: Tensor, t: float) -> Tensor:
    """Waves that travel along a ring at speed 1/2, or the heat of a plate whose rim is kept at zero; at any points."""
    x, k = points.double(), torch.arange(1, 4, dtype=torch.float64)
    if task == "plate":
        sines = torch.sin(math.pi * k[:MODES, None, None] * x.T)
        decay = torch.exp(-0.1 * math.pi**2 * t * (k[:MODES, None] ** 2 + k[:MODES] ** 2))
        return torch.einsum("bij,ij,ip,jp->bp", sizes.view(-1, MODES, MODES), decay, sines[:, 0], sines[:, 1])
    phase = 2 * math.pi * (x - 0.5 * t) * k
    basis = torch.cat([torch.sin(phase), torch.cos(phase)], -1)
    return sizes @ basis.T


def draw(task: str, count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, MODES**2 if task == "plate" else 2 * WAVES, generator=generator, dtype=torch.float64)


def states(task: str, sizes: Tensor, grid: Grid, t: float) -> Tensor:
    return solution(task, sizes, grid.points(), t).view(-1, *grid.shape, 1)


def learned(task: str) -> TrainedTask:
    sizes = draw(task, 500, torch.Generator().manual_seed(1))
    first, then = (states(task, sizes, GRIDS[task], t) for t in (0.0, DT))
    rms, change = (float(v.square().mean().sqrt()) for v in (first, then - first))
    statistics = Statistics(task, 500, DT, (1,), {"u": Scale(0.0, rms, rms, (change,))})
    return TrainedTask(TASKS[task], GRIDS[task], statistics, {"c": (1.0, 1.0)}, (DT,))


@lru_cache
def trained(architecture: str, *names: str) -> Simulator:
    """Some hundred steps on fresh samples: errors of a few per cent."""
    settings = {"fno": {"width": 12, "modes": 6, "depth": 2}, "unet": {"width": 8}}.get(
        architecture, {"width": 16, "depth": 2, "head": 16, "conditions": 8}
    )
    spec = ModelSpec(architecture, settings, tuple(learned(name) for name in names))
    model, generator = spec.build(0), torch.Generator().manual_seed(2)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for step in range(300):
        for group in optimiser.param_groups:
            group["lr"] = 1e-2 * (1 - step / 300)
        optimiser.zero_grad()
        for task in spec.tasks:
            name, normaliser = task.spec.name, Normaliser(task.spec, task.statistics)
            sizes = draw(name, 16, generator)
            first, then = (normaliser.normalise(states(name, sizes, task.grid, t)).float() for t in (0.0, DT))
            inputs = first[:, None], first[..., :0], {"c": torch.ones(16)}, torch.full((16,), DT), task.grid
            ((model(name, *inputs) - then).norm() / then.norm()).backward()
        optimiser.step()
    return Simulator(OperatorPredictor(model.eval().requires_grad_(False), spec.tasks))


def error(values: Tensor, truth: Tensor) -> float:
    return float((values.double() - truth).norm() / truth.norm())


def cubics(values: Tensor, grid: Grid, wraps: bool, points: Tensor) -> Tensor:
    """The plainest interpolation from a grid to scattered points."""
    for axis in range(grid.dimension):
        matrix = axis_matrix(grid.positions[axis], grid.extent[axis], wraps, points[:, axis], 3)
        lead = "b" if axis == 0 else "bp"
        values = torch.einsum(f"pn,{lead}n...->bp...", matrix, values)
    return values


MODELS = [
    ("spectral", ("points", "patches", "plate")),
    ("pdet_stack", ("points", "patches")),
    ("fno", ("plate",)),
    ("unet", ("points",)),
]
CASES = [(architecture, names, task) for architecture, names in MODELS for task in names]


@pytest.mark.parametrize(("architecture", "names", "task"), CASES, ids=lambda v: v if isinstance(v, str) else "of")
def test_other_grids_and_points_are_no_worse_than_the_interpolated_prediction(
    architecture: str, names: tuple[str, ...], task: str
) -> None:
    sim, own, wraps = trained(architecture, *names), GRIDS[task], task != "plate"
    sizes = draw(task, 20, torch.Generator().manual_seed(3))

    def advance(grid: Grid, at: Tensor | None = None) -> Tensor:
        u0 = states(task, sizes, grid, 0.0)
        return sim.rollout(u0, steps=2, conditions={"c": 1.0}, at=at, grid=grid, task=task).values[:, -1].double()

    prediction = advance(own)
    trained_error = error(prediction, states(task, sizes, own, 2 * DT))
    assert trained_error < 0.25
    for n in (24, 40, 48, 64, 96):
        for grid in (Grid.cell_centred((n,) * own.dimension), Grid.nodal((n,) * own.dimension)):
            truth = states(task, sizes, grid, 2 * DT)
            read = reader(own, (wraps,) * own.dimension, grid, {}, prediction)
            floor = error(read(prediction), truth)
            assert error(advance(grid), truth) <= 1.01 * floor
    points = torch.rand(300, own.dimension, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    truth = solution(task, sizes, points, 2 * DT)[..., None]
    assert error(advance(own, points), truth) <= 1.01 * error(cubics(prediction, own, wraps, points), truth)


@pytest.mark.parametrize("architecture", ["spectral", "fno"])
def test_a_test_set_on_another_grid_is_predicted_as_the_simulator_does(architecture: str) -> None:
    names = dict(MODELS)[architecture]
    sim, grid = trained(architecture, *names), Grid.nodal((24, 24))
    sizes = draw("plate", 3, torch.Generator().manual_seed(5))
    frames = torch.stack([states("plate", sizes, grid, t) for t in (0.0, DT)], 1)
    times = torch.tensor([0.0, DT], dtype=torch.float64).expand(3, 2)
    batch = Batch("plate", frames, times, grid, TASKS["plate"].boundary, {"c": torch.ones(3)}, {}, torch.arange(3))
    expected = sim.rollout(frames[:, 0], steps=1, conditions={"c": 1.0}, grid=grid, task="plate").values
    assert torch.allclose(one_step(sim.predictor, "plate", batch), expected, atol=1e-5)
