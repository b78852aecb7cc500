"""Darcy against manufactured solutions, its discrete residual, and the published medium."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import Darcy, DiffusionReaction
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


def test_refining_goes_on_from_where_a_guess_stands():
    equation = Darcy(points=32)
    batch = equation.solve(0, range(6))
    a, solved = batch.static["a"], equation.steady_state(batch.static["a"])
    noise = torch.randn(6, 32, 32, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    guess = solved[..., None] * (1 + 0.05 * noise)

    def error(values):
        return equation.energy(a, values[..., 0] - solved)

    assert torch.equal(equation.refine(guess, batch.static, 0), guess)
    refined = [error(equation.refine(guess, batch.static, n)) for n in (0, 2, 4, 8)]
    assert all(bool((later < earlier).all()) for earlier, later in pairwise(refined))  # what the method minimises
    assert bool((refined[3] < 0.05 * refined[0]).all())
    assert float(error(equation.refine(guess, batch.static, 60)).max()) < 1e-8  # as exact as the solution


def test_the_solver_needs_fewer_iterations_from_near_the_solution_and_none_from_it():
    equation = Darcy(points=32)
    a = equation.permeability(0, range(6))
    solved, zero = equation.steady_state(a), torch.zeros_like(a)
    cold = equation.iterations(a, zero, 1e-6)
    warm = equation.iterations(a, (1 - 1e-3) * solved, 1e-6)
    assert bool((warm < 0.7 * cold).all()) and bool((cold > 10).all())
    assert equation.iterations(a, solved, 1e-6).tolist() == [0] * 6


def test_only_what_has_a_residual_is_refined():
    field = torch.zeros(1, 8, 8, 1)
    with pytest.raises(UserError, match="do without refining"):
        Darcy(points=8, target="transient").refine(field, {"a": torch.ones(1, 8, 8)}, 1)
    with pytest.raises(UserError, match="do without refining"):
        DiffusionReaction().refine(field, {}, 1)


def test_an_impossible_medium_is_refused():
    with pytest.raises(UserError, match="positive"):
        Darcy(points=8).steady_state(torch.full((1, 8, 8), float("nan")))


def test_a_steady_equation_refuses_several_times():
    with pytest.raises(UserError, match="one frame"):
        Darcy(points=8).solve(0, [0], torch.tensor([0.0, 1.0]))


def test_the_transient_decays_as_its_slowest_modes_do():
    """With a = 1 and zero in the ghost cells, sin(πk(i + 1)/(n + 1)) are exact modes; rates 4n² Σ sin²(πk/2(n + 1))."""
    equation, n = Darcy(points=24, beta=0.0, target="transient"), 24
    i = torch.arange(1, n + 1, dtype=torch.float64)
    start = torch.sin(math.pi * i / (n + 1))[:, None] * torch.sin(2 * math.pi * i / (n + 1))
    rate = 4 * n**2 * sum(math.sin(math.pi * k / (2 * (n + 1))) ** 2 for k in (1, 2))
    decayed = equation.transient(torch.ones(1, n, n, dtype=torch.float64), start[None], 0.1)[0]
    assert (decayed - start * math.exp(-0.1 * rate)).abs().max() < 1e-13


def test_the_transient_is_what_small_implicit_steps_approach():
    """Crank-Nicolson with the rate that scores predictions, dense: its error falls fourfold, to ours."""
    equation, n = Darcy(points=8, target="transient"), 8
    a, start = equation.permeability(0, [2]), equation.start(0, [2])
    exact = equation.transient(a, start, 0.5)[0].flatten()
    eye = torch.eye(n * n, dtype=torch.float64)
    operator = equation.operator(a.expand(n * n, n, n), eye.unflatten(1, (n, n))).flatten(1).T
    errors = []
    for steps in (4000, 8000):
        dt = 0.5 / steps
        once = torch.linalg.solve(eye + dt / 2 * operator, eye - dt / 2 * operator)
        gain = torch.linalg.solve(eye + dt / 2 * operator, torch.full((n * n, 1), dt, dtype=torch.float64))[:, 0]
        u = start[0].flatten()
        for _ in range(steps):
            u = once @ u + gain
        errors.append(float((u - exact).norm() / exact.norm()))
    assert errors[0] < 1e-5 and errors[0] / errors[1] == pytest.approx(4.0, rel=0.2)


def test_what_is_left_of_the_start_is_what_was_measured_on_the_published_problem():
    """Distance to steady at t = 1.75: means of 0.30, 0.10, 0.018, 0.002 for β = 0.01 … 10, of 24 samples at 64²; a mean
    of 24 such numbers has a standard error of a fifth of itself, and 16² cells have a wider square by 1/16.
    """
    for beta, published in ((0.01, 0.30), (0.1, 0.10), (1.0, 0.018), (10.0, 0.002)):
        equation = Darcy(points=16, beta=beta, target="transient")
        batch = equation.solve(0, range(100))
        u = batch.values[:, 0, ..., 0].double()
        steady = equation.steady_state(batch.static["a"].double().round(decimals=1))
        left = ((u - steady).flatten(1).norm(dim=1) / u.flatten(1).norm(dim=1)).mean()
        assert published / 2 < float(left) < 2 * published, (beta, float(left))


def test_a_transient_sample_does_not_depend_on_its_batch_and_an_unknown_target_is_refused():
    equation = Darcy(points=16, target="transient")
    assert torch.equal(equation.solve(0, range(20)).values[13:15], equation.solve(0, [13, 14]).values)
    assert equation.times.tolist() == [1.75]
    with pytest.raises(UserError, match="steady or transient"):
        Darcy(target="moving")
