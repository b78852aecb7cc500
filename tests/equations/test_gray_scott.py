"""Gray-Scott against its ordinary differential equation, its linearised modes, smaller steps and finer grids."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import GrayScott, GrayScott3D
from ups.equations.schemes.periodic import cell_averages, random_fields
from ups.errors import UserError

PUBLISHED = [(0.014, 0.054), (0.098, 0.057), (0.029, 0.057), (0.058, 0.065), (0.018, 0.051), (0.03, 0.062)]


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def averages(state: torch.Tensor, cells: int) -> torch.Tensor:
    return cell_averages(state.movedim(-1, 1), cells)


@pytest.mark.parametrize(("k", "m"), [(1, 0), (3, 5)])
def test_a_small_mode_of_the_empty_state_decays_at_its_own_rate(k, m):
    """Around A = 1, B = 0 the system is linear and diagonal: rates −F − δ_A κ² and −F − k − δ_B κ²."""
    equation, n, size = GrayScott(), 32, 1e-9
    x = 2 * math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n
    mode = torch.cos(k * x)[:, None] * torch.cos(m * x)
    end = equation.roll(torch.stack((1 + size * mode, size * mode), -1)[None], times(30.0))[0, 0]
    wave = math.pi**2 * (k**2 + m**2)
    a, b = -equation.F - 2e-5 * wave, -equation.F - equation.k - 1e-5 * wave
    assert ((end[..., 0] - 1) / size - mode * math.exp(30 * a)).abs().max() < 1e-6
    assert (end[..., 1] / size - mode * math.exp(30 * b)).abs().max() < 1e-6


def test_an_even_state_reacts_as_its_ordinary_differential_equation():
    """Without gradients A and B follow two ODEs: here solved by 40,000 Heun steps (error below 1e-8)."""
    equation = GrayScott(F=0.03, k=0.062)
    a, b, dt = 0.5, 0.4, 100 / 40000

    def rate(a: float, b: float) -> tuple[float, float]:
        return -a * b * b + 0.03 * (1 - a), a * b * b - 0.092 * b

    for _ in range(40000):
        (p, q) = rate(a, b)
        (r, s) = rate(a + dt * p, b + dt * q)
        a, b = a + dt * (p + r) / 2, b + dt * (q + s) / 2
    start = torch.tensor([0.5, 0.4], dtype=torch.float64).expand(1, 8, 8, 2)
    end = equation.roll(start, times(100.0))[0, 0]
    assert (end - torch.tensor([a, b], dtype=torch.float64)).abs().max() < 1e-5  # ETDRK4 with dt = 2


def test_steps_are_of_fourth_order():
    equation = GrayScott()
    start = equation.start(0, [0], 64)
    reference = equation.step(start, 1 / 8, 320)
    errors = [(equation.step(start, 40 / steps, steps) - reference).norm() for steps in (10, 20, 40)]
    orders = [math.log2(float(a / b)) for a, b in pairwise(errors)]
    assert min(orders) > 3.5, orders


def test_the_internal_grid_is_as_good_as_the_docstring_says():
    """On 128 points the waves that are missing cost less than 1e-3 of the solution, the aliased product included."""
    equation = GrayScott(F=0.018, k=0.051)
    coarse, fine = (averages(equation.roll(equation.start(1, [0], n), times(40.0))[:, 0], 32) for n in (128, 192))
    assert (coarse - fine).norm() < 1e-3 * fine.norm()


def test_both_kinds_of_start_occur_and_stay_within_bounds():
    start = GrayScott().start(0, range(40), 32)
    assert start[..., 0].min() >= 0.5 and start[..., 0].max() <= 1.0
    assert start[..., 1].min() >= 0.0 and start[..., 1].max() <= 0.5
    # tanh(2f − 2.4) is never quite −1, bumps far away are 0
    clustered = start[..., 1].amin((1, 2)) < 1e-8
    assert 10 <= int(clustered.sum()) <= 30


def test_a_start_is_one_function_on_every_grid():
    coarse, fine = (GrayScott().start(2, range(4), n) for n in (32, 96))
    assert torch.allclose(fine[:, 1::3, 1::3], coarse, atol=1e-12)


def test_random_fields_have_the_variance_of_their_amplitudes():
    fields = random_fields(0, range(400), 1, 3, lambda k: torch.ones_like(k), 16)
    assert float(fields.var()) == pytest.approx((7 * 7 - 1) / 2, rel=0.05)  # one for each pair of waves ±k


def test_cell_averages_keep_the_mean_and_are_averages():
    fine = random_fields(0, range(2), 1, 7, lambda k: torch.ones_like(k), 96)
    averaged = cell_averages(fine, 16)
    blocks = random_fields(0, range(2), 1, 7, lambda k: torch.ones_like(k), 16 * 32)
    blocks = blocks.unflatten(-1, (16, -1)).unflatten(-3, (16, -1)).mean((-3, -1))
    # blocks of 32² samples are averages to (π 7/512)²/6 = 3e-4 in each direction
    assert (averaged - blocks).norm() < 1e-3 * blocks.norm()
    assert (averaged.mean((-2, -1)) - fine.mean((-2, -1))).abs().max() < 1e-14


@pytest.mark.parametrize(("feed", "kill"), PUBLISHED)
def test_every_start_lives_on_under_the_published_rates(feed, kill):
    equation = GrayScott(F=feed, k=kill)
    end = equation.roll(equation.start(0, range(4), 64), times(400.0))[:, 0, ..., 1]
    assert (end.amax((1, 2)) > 0.1).all()


def test_in_three_dimensions_a_small_mode_of_the_empty_state_decays_at_its_own_rate():
    equation, n, size = GrayScott3D(), 16, 1e-9
    x = 2 * math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n
    mode = torch.cos(3 * x)[:, None, None] * torch.cos(2 * x)[:, None] * torch.cos(x)
    end = equation.roll(torch.stack((1 + size * mode, size * mode), -1)[None], times(30.0))[0, 0]
    wave = 4 * math.pi**2 * (3**2 + 2**2 + 1**2)
    a, b = -equation.F - 2e-5 * wave, -equation.F - equation.k - 1e-5 * wave
    assert ((end[..., 0] - 1) / size - mode * math.exp(30 * a)).abs().max() < 1e-6
    assert (end[..., 1] / size - mode * math.exp(30 * b)).abs().max() < 1e-6


def test_a_solution_of_the_cube_that_is_even_along_an_axis_is_that_of_a_square():
    """The cube has half the square's side: the same state stands twice along each axis of the square."""
    cube, square = GrayScott3D(), GrayScott()
    start = square.start(3, [0, 1], 32)
    start = start[:, :16, :16]  # any periodic state will do, and this one is, if it is said to be
    flat = square.roll(start.repeat(1, 2, 2, 1), times(20.0))[:, 0, :16, :16]
    for axis in (1, 2, 3):
        shape = [-1] * 5
        shape[axis] = 16
        even = start.unsqueeze(axis).expand(shape)
        end = cube.roll(even, times(20.0))[:, 0]
        assert (end - flat.unsqueeze(axis)).abs().max() < 1e-12


def test_steps_in_three_dimensions_are_of_fourth_order():
    equation = GrayScott3D()
    start = equation.start(0, [0], 24)
    reference = equation.step(start, 1 / 4, 160)
    errors = [(equation.step(start, 40 / steps, steps) - reference).norm() for steps in (10, 20)]
    assert math.log2(float(errors[0] / errors[1])) > 3.5


def test_starts_of_a_cube_are_of_both_kinds_the_same_on_every_grid_and_live_on():
    equation = GrayScott3D()
    start = equation.start(0, range(12), 16)
    assert torch.equal(start[[7]], equation.start(0, [7], 16))
    assert torch.allclose(equation.start(0, range(2), 48)[:, 1::3, 1::3, 1::3], start[:2], atol=1e-12)
    assert start[..., 0].min() >= 0.5 and start[..., 0].max() <= 1 and start[..., 1].min() >= 0
    assert 2 <= int((start[..., 1].amin((1, 2, 3)) < 1e-6).sum()) <= 10  # bumps far away are 0
    assert (equation.roll(start[:4], times(200.0))[:, 0, ..., 1].amax((1, 2, 3)) > 0.1).all()


def test_rates_without_patterns_are_refused():
    for wrong in ({"F": 0.0}, {"F": 0.2}, {"k": -0.05}, {"k": math.nan}):
        with pytest.raises(UserError, match="give a rate above 0 and at most"):
            GrayScott(**wrong)
