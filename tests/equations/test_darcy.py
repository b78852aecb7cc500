"""Darcy against manufactured solutions, its discrete residual, and the published medium."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import Darcy
from ups.errors import UserError


def mesh(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return x[:, None].expand(n, n), x[None].expand(n, n)


def manufactured(n: int, variation: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """u = sin πx sin 2πy, a = 1 + variation · sin(πx + 2y), and −∇·(a∇u) worked out by hand."""
    x, y = mesh(n)
    pi = math.pi
    u = torch.sin(pi * x) * torch.sin(2 * pi * y)
    a = 1 + variation * torch.sin(pi * x + 2 * y)
    a_x, a_y = variation * pi * torch.cos(pi * x + 2 * y), variation * 2 * torch.cos(pi * x + 2 * y)
    u_x = pi * torch.cos(pi * x) * torch.sin(2 * pi * y)
    u_y = 2 * pi * torch.sin(pi * x) * torch.cos(2 * pi * y)
    return u, a, 5 * pi**2 * a * u - a_x * u_x - a_y * u_y


@pytest.mark.parametrize("variation", [0.0, 0.5])
def test_the_solver_is_of_second_order(variation):
    errors = []
    for n in (16, 32, 64):
        u, a, source = manufactured(n, variation)
        solved = Darcy(points=n).steady_state(a[None], source[None])[0]
        errors.append(float((solved - u).square().mean().sqrt()))
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert min(orders) > 1.9, (orders, errors)


def test_every_sample_is_solved_to_a_residual_of_1e_8():
    equation = Darcy(points=32)
    a = equation.permeability(0, range(80))
    residual = equation.operator(a, equation.steady_state(a)) - equation.beta
    assert float(residual.square().mean((1, 2)).sqrt().max()) <= 1e-8 * equation.beta


def test_the_medium_has_the_published_statistics():
    """49 % ones; a sample's fraction of ones has a standard deviation of about 0.28, so 4000 give ± 0.013 (3σ)."""
    a = Darcy(points=32).permeability(0, range(4000))
    assert set(a.unique().tolist()) == {0.1, 1.0}
    assert float((a == 1.0).double().mean()) == pytest.approx(0.49, abs=0.013)


@pytest.mark.parametrize("points", [32, 64])
def test_no_two_media_are_the_same(points):
    """Two equal samples could be in train and test; media without any permeable region would all be equal."""
    a = Darcy(points=points).permeability(0, range(3000))
    assert len({medium.numpy().tobytes() for medium in a}) == 3000


def test_a_sample_is_the_same_medium_on_every_grid():
    coarse, fine = (Darcy(points=n).permeability(0, range(300)) for n in (32, 96))
    assert torch.equal(fine[:, 1::3, 1::3], coarse)  # the middle of three cells is the coarse cell's centre


def test_the_pressure_is_positive_and_proportional_to_beta():
    one, two = (Darcy(points=32, beta=beta).solve(0, range(8)) for beta in (1.0, 2.0))
    assert float(one.values.min()) > 0  # the discrete maximum principle
    assert torch.allclose(two.values, 2 * one.values, rtol=1e-6)


def test_the_operator_is_symmetric():
    equation = Darcy(points=16)
    a = equation.permeability(0, range(3))
    p, q = torch.rand(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left, right = (p * equation.operator(a, q)).sum(), (q * equation.operator(a, p)).sum()
    assert float(left) == pytest.approx(float(right), rel=1e-12)


def test_a_sample_does_not_depend_on_its_batch():
    equation = Darcy(points=16)
    whole = equation.solve(0, range(70))
    part = equation.solve(0, range(61, 70))
    assert torch.equal(whole.values[61:], part.values) and torch.equal(whole.static["a"][61:], part.static["a"])


def test_a_steady_batch_has_one_frame_and_its_medium():
    batch = Darcy(points=16).solve(0, [3])
    assert batch.values.shape == (1, 1, 16, 16, 1) and batch.static["a"].shape == (1, 16, 16)
    assert batch.values.dtype == batch.static["a"].dtype == torch.float32
    assert Darcy().task().steady and Darcy().task().static == ("a",)


def test_an_impossible_medium_is_refused():
    with pytest.raises(UserError, match="positive"):
        Darcy(points=8).steady_state(torch.full((1, 8, 8), float("nan")))


def test_a_steady_equation_refuses_several_times():
    with pytest.raises(UserError, match="one frame"):
        Darcy(points=8).solve(0, [0], torch.tensor([0.0, 1.0]))
