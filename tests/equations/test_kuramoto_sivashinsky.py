"""Kuramoto-Sivashinsky: linear growth, symmetry, order, conservation, and the way to the attractor."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import KuramotoSivashinsky
from ups.equations.base import balance
from ups.errors import UserError


def at(*times: float) -> torch.Tensor:
    return torch.tensor(times, dtype=torch.float64)


def points(n: int, length: float = 64.0) -> torch.Tensor:
    return length * (torch.arange(n, dtype=torch.float64) + 0.5) / n


def developed(n: int = 256, count: int = 4) -> torch.Tensor:
    """States on the way to the attractor, with waves of all lengths."""
    equation = KuramotoSivashinsky()
    return equation.roll(equation.start(0, range(count), points(n)), at(30.0))[:, 0]


def test_small_waves_grow_and_decay_at_their_linear_rates():
    equation, x = KuramotoSivashinsky(), points(128)
    orders = (1, 3, 7, 10, 12, 15)
    waves = torch.stack([2 * math.pi * m / 64 * x for m in orders]).sin() * 1e-9
    rolled = equation.roll(waves, at(2.0))[:, 0]
    for m, before, after in zip(orders, waves, rolled, strict=True):
        k = 2 * math.pi * m / 64
        # The product u u_x is 1e-9 of u times a rate of order 1.
        assert torch.allclose(after, before * math.exp(2 * (k**2 - k**4)), atol=1e-16, rtol=0)


def test_a_moving_observer_sees_the_same():
    """Adding a constant c shifts the solution by ct: here by 2 · 8 = 16 = 64 points."""
    equation, u0 = KuramotoSivashinsky(), developed()
    still = equation.roll(u0, at(8.0))[:, 0]
    moving = equation.roll(u0 + 2.0, at(8.0))[:, 0]
    # Faster waves make the steps' own error larger; both are below what halving them shows in the next test.
    assert float((moving - 2 - still.roll(64, 1)).abs().max()) < 1e-2


def test_exponential_differencing_is_of_fourth_order():
    equation, u0 = KuramotoSivashinsky(), developed(192, 2)
    exact = equation.step(u0, 1.0 / 640, 640)
    errors = [float((equation.step(u0, 1.0 / steps, steps) - exact).norm()) for steps in (20, 40, 80, 160)]
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert orders[-1] > 3.7 and min(orders) > 3.2, (orders, errors)
    # The solver's own step, 1/20 here: relative to |u| and before chaos multiplies it.
    assert errors[0] / float(exact.norm()) < 1e-5


def test_a_draw_is_the_same_solution_on_every_grid():
    """At 3 points a unit length the waves cut off are below 10⁻⁸ of the largest; until t = 20 little has grown."""
    coarse, fine = (KuramotoSivashinsky(points=n, warm_up=15.0).solve(0, range(4), at(0.0, 5.0)) for n in (128, 384))
    assert torch.allclose(coarse.values, fine.values[:, :, 1::3], atol=1e-5, rtol=0)


def test_energy_changes_by_what_long_waves_give_and_short_ones_take():
    """d/dt ½⟨u²⟩ = ⟨u_x²⟩ − ⟨u_xx²⟩, and the mean of the rate is zero: the convection moves energy but makes none."""
    u = developed()
    rate = KuramotoSivashinsky().rate(u[..., None], {})[..., 0]
    k = 2 * math.pi / 64 * torch.arange(129, dtype=torch.float64)
    slope, curvature = (torch.fft.irfft(torch.fft.rfft(u) * factor, n=256) for factor in (1j * k, -(k**2)))
    produced = (slope.square() - curvature.square()).mean(1)
    assert torch.allclose((u * rate).mean(1), produced, atol=1e-10, rtol=0)
    assert float(rate.mean(1).abs().max()) < 1e-12


def test_the_mean_is_conserved():
    equation = KuramotoSivashinsky(points=64, frames=3, duration=5.0, warm_up=30.0)
    mean = equation.solve(0, range(4)).values.double().mean(2)
    assert float(mean.abs().max()) < 2.0**-22  # float32 rounding of values up to 4, averaged
    assert equation.task().invariants[0].tolerance == 1e-5


def test_after_the_warm_up_the_attractor_is_reached():
    """Growth saturates: the rms of 24 states after the warm-up and 50 later differ by chance alone."""
    values = KuramotoSivashinsky(points=128).solve(0, range(24), at(0.0, 50.0)).values.double()
    rms = values.square().mean((2, 3)).sqrt()
    error = rms.std(0).norm() / math.sqrt(24)
    assert abs(float(rms[:, 0].mean() - rms[:, 1].mean())) < 3 * float(error)
    assert float(values.abs().max()) < 4 and float(rms.min()) > 1
    # No solution repeats itself within the domain: a start without the longest wave could, for ever.
    halves = values[:, 1].unflatten(1, (2, 64))
    assert float((halves[:, 0] - halves[:, 1]).square().mean((1, 2)).sqrt().min()) > 0.1


def test_a_true_solution_balances_and_a_mirrored_one_does_not():
    equation = KuramotoSivashinsky(frames=6, duration=0.25, warm_up=40.0)
    batch = equation.solve(0, range(4))
    true = balance(equation, batch.values, batch.times, batch.static).square().mean().sqrt()
    mirrored = equation.solve(0, range(4))
    mirrored.values.copy_(batch.values.flip(2))  # the mirror image of a solution is one with −u
    assert float(
        balance(equation, mirrored.values, mirrored.times, mirrored.static).square().mean().sqrt()
    ) > 30 * float(true)


def test_a_coarse_grid_never_runs_away():
    equation = KuramotoSivashinsky(frames=5, duration=10.0, warm_up=50.0)
    batch = equation.solve(0, range(3))
    for n in (128, 32, 8):
        solved = equation.coarse(batch, n)
        assert solved.shape == (3, 5, n, 1) and float(solved.abs().max()) < 10
    difference = equation.coarse(batch, 128)[:, 1] - batch.values[:, 1]
    assert float(difference.norm() / batch.values[:, 1].norm()) < 1e-2


def test_a_trajectory_does_not_depend_on_its_batch():
    equation = KuramotoSivashinsky(points=64, frames=3, duration=2.0, warm_up=40.0)
    whole = equation.solve(0, range(5)).values
    pieces = [equation.solve(0, ids).values for ids in ([0], range(1, 3), range(3, 5))]
    assert torch.equal(whole, torch.cat(pieces))


def test_a_batch_says_what_it_is():
    equation = KuramotoSivashinsky(points=32, length=22.0, warm_up=0.0)
    batch = equation.solve(0, [4], equation.times[:2])
    assert batch.task == "kuramoto_sivashinsky" and batch.values.shape == (1, 2, 32, 1)
    assert batch.grid.extent == ((0.0, 22.0),) and batch.boundary.periodic == (True,)
    assert "0.0 time units" in equation.solver and equation.layout == "well"
    assert torch.allclose(batch.values[0, 0, :, 0].double(), equation.start(0, [4], equation.grid.positions[0])[0])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"length": 6.0}, "every wave decays"), ({"length": 1e5}, "at most 1024"), ({"warm_up": -1.0}, "warm_up is -1.0")],
)
def test_what_is_outside_the_regime_is_refused(wrong, said):
    with pytest.raises(UserError, match=said):
        KuramotoSivashinsky(**wrong)
