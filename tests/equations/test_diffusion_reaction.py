"""Diffusion-reaction against its linearised modes, its own ordinary differential equation, and smaller steps."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import DiffusionReaction
from ups.errors import UserError


def cosine_mode(n: int, k: int, m: int) -> torch.Tensor:
    x = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return torch.cos(math.pi * k * x)[:, None] * torch.cos(math.pi * m * x)


@pytest.mark.parametrize(("k", "m"), [(0, 1), (3, 2), (7, 5)])
def test_a_small_mode_grows_as_the_linearised_system_says(k, m):
    """Around u = v = −k^⅓ the rates are J − λD, λ the five-point eigenvalue; squares of 1e-7 are left out."""
    equation, n, size = DiffusionReaction(points=48), 48, 1e-7
    rest = -(equation.k ** (1 / 3))
    laplacian = -(n**2) * (math.sin(math.pi * k / (2 * n)) ** 2 + math.sin(math.pi * m / (2 * n)) ** 2)
    jacobian = torch.tensor([[1 - 3 * rest**2, -1.0], [1.0, -1.0]], dtype=torch.float64)
    jacobian += laplacian * torch.diag(torch.tensor([1e-3, 5e-3], dtype=torch.float64))
    shape = torch.tensor([1.0, 0.5], dtype=torch.float64)
    start = rest + size * cosine_mode(n, k, m)[None, ..., None] * shape
    end = equation.roll(start, torch.tensor([2.0], dtype=torch.float64))[0, 0]
    expected = cosine_mode(n, k, m)[..., None] * (torch.linalg.matrix_exp(2 * jacobian) @ shape)
    assert ((end - rest) / size - expected).abs().max() < 1e-5 * expected.abs().max()


def runge_kutta(equation: DiffusionReaction, state: torch.Tensor, time: float, steps: int) -> torch.Tensor:
    """The classical method on the finite-volume rate: another integrator of the same cells."""
    dt = time / steps
    for _ in range(steps):
        a = equation.rate(state, {})
        b = equation.rate(state + dt / 2 * a, {})
        c = equation.rate(state + dt / 2 * b, {})
        state = state + dt / 6 * (a + 2 * b + 2 * c + equation.rate(state + dt * c, {}))
    return state


def test_noise_evolves_as_under_explicit_steps_of_the_finite_volume_rate():
    """The transforms and the stencil are two ways to the same cells. Explicit steps of 1/2000
    err by less than the 1e-6 that ours do."""
    equation = DiffusionReaction(points=32)
    start = equation.noise(0, range(2))
    ours = equation.roll(start, torch.tensor([0.05, 1.0], dtype=torch.float64))
    for frame, (time, steps) in enumerate(((0.05, 400), (1.0, 2000))):
        reference = runge_kutta(equation, start, time, steps)
        assert (ours[:, frame] - reference).norm() < 5e-6 * reference.norm()


def test_steps_are_of_fourth_order():
    equation = DiffusionReaction(points=32)
    start = 1 + 0.5 * cosine_mode(32, 2, 1)[None, ..., None] * torch.tensor([1.0, -1.0], dtype=torch.float64)
    reference = equation.step(start, 1 / 512, 512)
    errors = [(equation.step(start, 1 / steps, steps) - reference).norm() for steps in (8, 16, 32)]
    orders = [math.log2(float(a / b)) for a, b in pairwise(errors)]
    assert min(orders) > 3.7, orders


def test_the_scheme_is_of_second_order_in_space():
    """A smooth start: cell values converge as dx²."""
    times = torch.tensor([0.5], dtype=torch.float64)

    def solved(n: int) -> torch.Tensor:
        start = cosine_mode(n, 2, 1)[None, ..., None] * torch.tensor([1.0, 0.3], dtype=torch.float64)
        factor = math.sin(math.pi * 2 / (2 * n)) * math.sin(math.pi / (2 * n)) * (2 * n / math.pi) ** 2 / 2
        end = DiffusionReaction(points=max(n, 32)).roll(start * factor, times)[0, 0]  # averages of the cells
        return end.unflatten(1, (16, -1)).unflatten(0, (16, -1)).mean((1, 3))

    reference = solved(128)
    coarse, fine = ((solved(n) - reference).norm() for n in (16, 32))
    assert math.log2(float(coarse / fine)) > 1.8


def test_noise_is_white_with_variance_one():
    """2 · 20 · 32² numbers: mean 0 ± 3/√40960, variance 1 ± 3 √(2/40960)."""
    noise = DiffusionReaction(points=32).noise(0, range(20))
    assert abs(float(noise.mean())) < 0.015
    assert float(noise.var()) == pytest.approx(1.0, abs=0.021)
    neighbours = (noise[:, 1:] * noise[:, :-1]).mean()
    assert abs(float(neighbours)) < 0.015


def test_thin_layers_and_impossible_rates_are_refused():
    with pytest.raises(UserError, match="at least 32 points"):
        DiffusionReaction(points=16)
    with pytest.raises(UserError, match="positive"):
        DiffusionReaction(Dv=0.0)
    with pytest.raises(UserError, match="k is 2"):
        DiffusionReaction(k=2.0)
