"""Marching through time: the frames asked for, in the memory of the stored file; averages over larger cells."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ups.equations import Compressible1D, Equation, ShallowWater
from ups.equations.named import EQUATIONS, named_equation
from ups.equations.schemes.marching import block_means, march
from ups.errors import UserError


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that is made."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.most = max(self.most, made.numel() * made.element_size())
        return made


@pytest.mark.parametrize(
    "equation", [ShallowWater(points=16, frames=201), Compressible1D(points=16, frames=201)], ids=lambda e: e.name
)
def test_frames_are_kept_as_they_are_stored(equation: Equation) -> None:
    """The largest tensor is the stored file's, not the states' in double precision."""
    with Largest() as seen:
        values = equation.solve(0, range(2), equation.times / 50).values
    assert seen.most == values.numel() * 4


def test_times_that_go_back_are_refused():
    frames = march("x", torch.zeros(1), torch.tensor([0.0, 1.0, 0.5]), lambda u, now, later: u + later - now)
    assert [next(frames).item(), next(frames).item()] == [0.0, 1.0]
    with pytest.raises(UserError, match=r"x: time 0\.5 comes after 1\.0"):
        next(frames)


def test_blocks_are_averaged_and_must_divide_the_grid():
    field = torch.arange(2 * 8 * 12, dtype=torch.float64).reshape(2, 8, 12)
    assert torch.equal(block_means("x", field, 4, (1, 2))[1, 2, 3], field[1, 4:6, 9:].mean())
    for points in (3, 5, 2, 0, -4):
        with pytest.raises(UserError, match="do not divide 12; give a divisor of at least 4"):
            block_means("x", field, points, (1, 2))


@pytest.mark.parametrize("points", [5, 24])
def test_every_equation_refuses_a_grid_that_does_not_divide_its_own(points: int) -> None:
    for name in EQUATIONS:
        small = {"points": 32} if name == "darcy" else {"points": 32, "frames": 2}
        equation = named_equation(name, small)
        start = equation.times[:1]
        with pytest.raises(UserError, match=f"{name}: {points} points do not divide 32"):
            equation.coarse(equation.solve(0, [0], start), points)
