"""A GPU computes what a CPU computes: every solver and rate, and every network's loss with its gradients.

Libraries differ in more than rounding: where an input breaks a rule of theirs, a CPU's may do what was meant and a
GPU's something else, and neither says so.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import small
import torch

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import statistics
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import Advection, DiffusionReaction, Equation
from ups.equations.named import EQUATIONS, named_equation
from ups.models.saved import ModelSpec, TrainedTask

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="compares a GPU with a CPU")

NO_RATE = ("shallow_water", "wave")
"""What is stored of them does not tell it."""
SETTINGS: dict[str, dict[str, Any]] = {
    "spectral": {"width": 24, "depth": 2, "modes": 16, "head": 16},
    "pdet_stack": {"width": 32, "depth": 2, "heads": 2},
    "pdet_unet": {"width": 16, "depth": 2, "levels": 2},
    "fno": {"width": 16, "modes": 12, "depth": 3},
    "unet": {"width": 16},  # at 8 every group has one channel: a bias before it has no gradient but rounding
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_solver_s_first_interval(name: str) -> None:
    equation = named_equation(name, {"points": 32})
    cpu, gpu = (equation.solve(0, range(3), equation.times[:2], device).values for device in ("cpu", "cuda"))
    assert difference(gpu, cpu) < 1e-5


@pytest.mark.parametrize("name", [name for name in EQUATIONS if name not in NO_RATE])
def test_the_rate_of_a_state(name: str) -> None:
    equation = named_equation(name, {"points": 32})
    batch = equation.solve(0, range(3), equation.times[:2])
    state, static = batch.values[:, -1].double(), {name: field.double() for name, field in batch.static.items()}
    there = equation.rate(state.cuda(), {name: field.cuda() for name, field in static.items()})
    assert difference(there, equation.rate(state, static)) < 1e-9


@pytest.mark.parametrize("architecture", SETTINGS)
@pytest.mark.parametrize(
    "equation", [Advection(points=256, frames=3), DiffusionReaction(points=64, frames=3)], ids=lambda e: e.name
)
def test_a_network_s_loss_and_its_gradients(architecture: str, equation: Equation) -> None:
    data, spec = small.Solved(equation, 4), equation.task()
    scales = statistics(data, spec)
    known = {name: (value, value) for name, value in equation.parameters.items() if name in spec.parameters}
    learned = TrainedTask(spec, data.grid, scales, known, (spec.dt or 0.0,))
    model = ModelSpec(architecture, SETTINGS[architecture], (learned,)).build(0)
    torch.manual_seed(0)
    for parameter in model.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.3)
    fields = replace(data.batch, values=Normaliser(spec, scales).normalise(data.batch.values))
    losses, gradients = [], []
    for device in ("cpu", "cuda"):
        there = copy.deepcopy(model).to(device)
        with Runtime.start(RuntimeConfig(device=device, tf32=False), 0):
            batch = fields.to(device, torch.float32)
            loss = small.operator_stage(there).loss(batch, small.draws_of(batch)).total
            loss.sum().backward()
        losses.append(loss.detach())
        gradients.append({name: parameter.grad for name, parameter in there.named_parameters()})
    assert difference(losses[1], losses[0]) < 1e-4
    for name, gradient in gradients[0].items():
        assert gradient is not None and difference(gradients[1][name], gradient) < 1e-3, name


def difference(there: torch.Tensor, here: torch.Tensor) -> float:
    """The largest, in units of the largest value."""
    return float((there.cpu() - here).abs().max() / here.abs().max())
