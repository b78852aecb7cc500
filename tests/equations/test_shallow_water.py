"""Shallow water against Stoker's exact dam break, and what the radial one must keep."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import ShallowWater
from ups.equations.base import balance
from ups.equations.shallow_water import Water
from ups.errors import UserError


def at(*times: float) -> torch.Tensor:
    return torch.tensor(times, dtype=torch.float64)


def stoker(x: torch.Tensor, t: float, deep: float, shallow: float) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Depth and velocity of a planar dam break over a wet bed (Stoker 1957), gravity 1, and the bore's speed.

    The middle depth is where the rarefaction's u = 2(√h_L − √h) meets the bore's (h − h_R) √((1/h + 1/h_R)/2).
    """
    low, high = shallow, deep
    for _ in range(100):
        h = (low + high) / 2
        fan, bore = 2 * (math.sqrt(deep) - math.sqrt(h)), (h - shallow) * math.sqrt((1 / h + 1 / shallow) / 2)
        low, high = (h, high) if fan > bore else (low, h)
    h = (low + high) / 2
    u = 2 * (math.sqrt(deep) - math.sqrt(h))
    front = h * u / (h - shallow)
    ray = x / t
    fan_depth, fan_speed = (2 * math.sqrt(deep) - ray).square() / 9, 2 / 3 * (math.sqrt(deep) + ray)
    head, tail = -math.sqrt(deep), u - math.sqrt(h)
    depth, speed = torch.full_like(x, deep), torch.zeros_like(x)
    for where, d, s in ((ray > head, fan_depth, fan_speed), (ray > tail, h, u), (ray > front, shallow, 0.0)):
        depth = torch.where(where, d, depth)
        speed = torch.where(where, s, speed)
    return depth, speed, front


def planar(n: int, axis: int) -> torch.Tensor:
    """A dam across one axis at its middle, on a slab of four cells along the other."""
    x = -2.5 + (torch.arange(n, dtype=torch.float64) + 0.5) * 5 / n
    h = torch.where(x < 0, 2.0, 1.0).double()[:, None].expand(n, 4)
    h = h if axis == 0 else h.T
    return torch.stack((h, torch.zeros_like(h), torch.zeros_like(h)))[None]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_planar_dam_break_converges_to_stokers_solution(axis):
    """One discontinuity, held in a few cells, and a fan with two kinks: the mean error falls nearly as dx."""
    errors = []
    for n in (64, 128, 256):
        x = -2.5 + (torch.arange(n, dtype=torch.float64) + 0.5) * 5 / n
        rolled = ShallowWater().roll(planar(n, axis), at(1.0))[0, 0]
        assert torch.equal(rolled[2 - axis], torch.zeros_like(rolled[0]))
        line = rolled.movedim(1 + axis, -1)[:, 0]
        h, u, _ = stoker(x, 1.0, 2.0, 1.0)
        errors.append(float((line[0] - h).abs().mean() + (line[1 + axis] - h * u).abs().mean()))
    assert all(math.log2(a / b) > 0.85 for a, b in pairwise(errors)), errors
    assert errors[-1] < 2 * 0.7 * 3 / 256  # jumps of h and hu at the bore are 0.45 and 0.6: three cells wrong in each


def test_the_bore_has_the_speed_that_bounds_the_domain():
    _, _, front = stoker(torch.zeros(1).double(), 1.0, 2.0, 1.0)
    assert front < 1.34  # what `task` promises conservation by
    assert ShallowWater(duration=1.3).task().invariants and not ShallowWater(duration=1.5).task().invariants


def test_a_dam_break_is_symmetric():
    """Mirrored, turned and transposed it is itself, to the rounding of some hundred steps."""
    equation = ShallowWater(points=48, frames=3)
    rolled = equation.roll(equation.start(0, range(2)), at(0.5, 1.0))
    h, hu, hv = rolled.unbind(2)
    rounding = 1e-12
    for mirrored in (h.flip(2), h.flip(3), h.transpose(2, 3)):
        assert float((mirrored - h).abs().max()) < rounding
    assert float((hu.flip(2) + hu).abs().max()) < rounding
    assert float((hv.transpose(2, 3) - hu).abs().max()) < rounding


def test_mass_is_kept_until_the_bore_reaches_the_boundary():
    equation = ShallowWater(points=48, frames=6, duration=1.2)
    start = equation.start(0, range(4))
    mass = equation.roll(start, equation.times)[:, :, 0].mean((2, 3))
    # ahead of the bore the scheme's own tail falls by half a cell or so: at the edge, nine cells on, little is left
    assert float((mass / mass[:, :1] - 1).abs().max()) < equation.task().invariants[0].tolerance / 100
    late = equation.roll(start[:1], at(3.0))[:, 0, 0].mean()
    assert float(late) < float(mass[0, 0]) - 1e-3  # and then flows out


def test_momentum_is_kept_to_rounding():
    equation = ShallowWater(points=32)
    start = equation.start(0, range(3))
    flow = equation.roll(start, at(1.0))[:, 0, 1:]
    assert float(flow.mean((2, 3)).abs().max()) < 1e-13


def test_still_water_stays_still():
    flat = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    flat[:, 0] = 1.5
    assert torch.equal(ShallowWater().roll(flat, at(0.5))[:, 0], flat)


def test_radii_are_drawn_as_stated_and_no_two_starts_are_equal():
    equation = ShallowWater(points=64)
    radii = equation.radii(0, range(1000))
    assert float(radii.mean()) == pytest.approx(0.5, abs=4 * 0.4 / math.sqrt(12 * 1000))
    assert float(radii.min()) > 0.3 and float(radii.max()) < 0.7
    start = equation.start(0, range(100))
    assert len({row.numpy().tobytes() for row in start}) == 100
    volume = (start[:, 0] - 1).sum((1, 2)) * (5 / 64) ** 2
    # a ring of about 2πr/dx cut cells, each right to first order: the volume is to (dx/r)² or so
    assert torch.allclose(volume, math.pi * radii[:100].square(), rtol=(5 / 64 / 0.3) ** 2 / 4)


def test_trajectories_do_not_depend_on_their_batch():
    equation = ShallowWater(points=17, frames=3, duration=0.2)
    whole = equation.solve(0, range(5)).values
    pieces = [equation.solve(0, ids).values for ids in ([0], range(1, 5))]
    assert torch.equal(whole, torch.cat(pieces))
    assert whole.shape == (5, 3, 17, 17, 1)


def test_a_coarse_solution_needs_the_start():
    equation = ShallowWater(points=32, frames=3, duration=0.2)
    batch = equation.solve(0, range(2))
    assert torch.allclose(equation.coarse(batch, 32).float(), batch.values, atol=1e-6)
    coarse = equation.coarse(batch, 16)
    assert torch.allclose(coarse.mean((2, 3)), batch.values.double().mean((2, 3)), rtol=1e-6)
    later = ShallowWater(points=32, frames=3).solve(0, [0], at(0.1, 0.2))
    with pytest.raises(UserError, match="t = 0"):
        equation.coarse(later, 16)
    with pytest.raises(UserError, match="divide"):
        equation.coarse(batch, 20)


def test_depth_alone_has_no_rate():
    equation = ShallowWater(points=16, frames=2, duration=0.1)
    with pytest.raises(UserError, match="flow is not stored"):
        balance(equation, (batch := equation.solve(0, [0])).values, batch.times, batch.static)
    assert equation.task().history == 2


def test_dry_beds_and_strange_sizes_are_refused():
    with pytest.raises(UserError, match="wet"):
        ShallowWater().roll(torch.zeros(1, 3, 8, 8, dtype=torch.float64), at(0.1))
    with pytest.raises(UserError, match="points"):
        ShallowWater(points=1)
    assert not Water("x", (1.0, 1.0)).admissible(torch.full((1, 3, 2, 2), math.nan)).any()
