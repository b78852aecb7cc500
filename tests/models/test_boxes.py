"""Operator models on boxes: what holds in one and two dimensions holds in three."""

from __future__ import annotations

import pytest
import torch

from ups.fields import Boundary, Channel, Grid, Side, TaskSpec
from ups.models.geometry import Frame
from ups.models.operator.model import OperatorModel
from ups.models.propagator import Propagator

AROUND, WALLS = (Side("periodic"), Side("periodic")), (Side("value"), Side("open"))
DUCT = TaskSpec("duct", 3, (Channel("u"), Channel("v")), Boundary((AROUND, AROUND, WALLS)), parameters=("nu",), dt=0.1)
GRID = Grid.cell_centred((8, 12, 8))
SETTINGS = {"spectral": {"modes": 2}, "pdet_stack": {"heads": 2}, "pdet_unet": {"heads": 2, "levels": 2, "window": 512}}


def model(architecture: str, position_modes: int = 0) -> Propagator:
    """Every parameter that starts at zero is filled, so that nothing is hidden by zeros."""
    torch.manual_seed(0)
    frames = {"duct": Frame(GRID, DUCT.boundary, (2, 2, 2))}
    sizes = {"width": 12, "depth": 2, "head": 10, "conditions": 8, "position_modes": position_modes}
    network = OperatorModel((DUCT,), frames, architecture=architecture, **sizes, **SETTINGS[architecture])
    propagator = Propagator(network, (DUCT,), {"duct": (torch.tensor([0.1]), torch.tensor([[0.5, 0.5]]))}).double()
    for parameter in propagator.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.3)
    return propagator


def step(propagator: Propagator, history: torch.Tensor) -> torch.Tensor:
    batch = len(history)
    static, lead = history.new_zeros(*history[:, 0, ..., 0].shape, 0), history.new_full((batch,), 0.1)
    return propagator("duct", history, static, {"nu": history.new_full((batch,), 0.3)}, lead, GRID)


def start() -> torch.Tensor:
    return torch.randn(2, 1, *GRID.shape, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("architecture", ["spectral", "pdet_stack"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_shifts_commute_along_the_periodic_axes_of_a_duct_and_not_across_it(axis: int, architecture: str) -> None:
    moved = step(model(architecture), start().roll(2, axis + 2))
    along = step(model(architecture), start()).roll(2, axis + 1)
    assert torch.allclose(moved, along, rtol=0, atol=1e-12) == (axis < 2)


@pytest.mark.parametrize("architecture", SETTINGS)
def test_every_parameter_is_moved_in_three_dimensions(architecture: str) -> None:
    propagator = model(architecture, position_modes=2)
    step(propagator, start()).square().mean().backward()
    still = [name for name, p in propagator.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert still == []


def test_the_three_axes_have_weights_of_their_own() -> None:
    """A field that varies along one axis alone: along another one it changes otherwise."""
    wave, changes = torch.sin(2 * torch.pi * torch.arange(8, dtype=torch.float64) / 8), []
    for axis in range(2):
        shape = [1, 1, 1, 1, 1, 1]
        shape[axis + 2] = 8
        values = wave.view(shape).expand(1, 1, 8, 8, 8, 2)
        spec = TaskSpec("duct", 3, DUCT.channels, Boundary((AROUND,) * 3), parameters=("nu",), dt=0.1)
        frame = Frame(Grid.cell_centred((8, 8, 8)), spec.boundary, (1, 1, 1))
        torch.manual_seed(0)
        network = OperatorModel((spec,), {"duct": frame}, width=8, depth=1, head=8, modes=4, position_modes=0)
        network.double()
        torch.nn.init.normal_(network.head.outer["u"])
        one = torch.ones(1, dtype=torch.float64)
        out = network("duct", values, values.new_zeros(1, 8, 8, 8, 0), {"parameter_nu": one, "lead": one}, frame.grid)
        changes.append(out.movedim(axis + 1, 1)[0, :, 0, 0])
    assert not torch.allclose(*changes, atol=1e-3)
