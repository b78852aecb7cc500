"""Fisher-KPP against its travelling wave, the logistic curve and the heat kernel."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import RandomWaves, ReactionDiffusion
from ups.errors import UserError


def cells(n: int) -> torch.Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def at(*times: float) -> torch.Tensor:
    return torch.tensor(times, dtype=torch.float64)


def fronts(x: torch.Tensor, t: float, nu: float, rho: float) -> torch.Tensor:
    """Two fronts of Ablowitz and Zeppetella, u = [1 + exp(√(ρ/6ν) (|y| − ¼ − ct))]⁻², c = 5 √(νρ/6), that run away from
    x = ½. On the whole line each is exact; here each sees the other and itself around the period.
    """
    c = 5 * math.sqrt(nu * rho / 6)
    return (1 + (math.sqrt(rho / (6 * nu)) * ((x - 0.5).abs() - 0.25 - c * t)).exp()) ** -2


NU, RHO = 2.5e-4, 10.0
SEEN = 1e-7  # the fronts are 0.25 = 20 widths from the middle and no less from the seam: both are off by e⁻²⁰ or so


def test_a_front_keeps_the_shape_and_speed_of_ablowitz_and_zeppetella():
    equation, x = ReactionDiffusion(nu=NU, rho=RHO), cells(1024)
    rolled = equation.roll(fronts(x, 0.0, NU, RHO)[None], at(0.3, 1.0))[0]
    for frame, t in zip(rolled, (0.3, 1.0), strict=True):
        # Strang's error with ρ dt ≤ 0.05, over a time ρt ≤ 10, is at most (ρ dt)²/12 · ρt = 2e-3 of the front's change.
        assert float((frame - fronts(x, t, NU, RHO)).abs().max()) < 2e-3
    assert float(rolled[1].mean() - fronts(x, 1.0, NU, RHO).mean()) == pytest.approx(0, abs=1e-4)


def test_the_splitting_is_of_second_order():
    equation, x = ReactionDiffusion(nu=NU, rho=RHO), cells(512)
    errors = []
    for steps in (8, 16, 32, 64):
        u = fronts(x, 0.0, NU, RHO)[None]
        for _ in range(steps):
            u = equation.step(u, 0.5 / steps)
        errors.append(float((u[0] - fronts(x, 0.5, NU, RHO)).norm()))
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert min(orders) > 1.9 and errors[-1] > SEEN, (orders, errors)


@pytest.mark.parametrize(("nu", "rho"), [(0.5, 1.0), (5.0, 10.0)])
def test_rough_starts_are_solved_to_the_same_as_many_tiny_steps(nu, rho):
    equation, x = ReactionDiffusion(nu=nu, rho=rho), cells(256)
    u0, end = equation.start(0, range(24), x), 0.02 / nu
    u, steps = u0, 4000
    for _ in range(steps):
        u = equation.step(u, end / steps)
    rolled = equation.roll(u0, at(end))[:, 0]
    # Steps of 5 % of the time passed: their square over 12 is 2e-4, of the ρ t ≤ 0.04 by which growth changes u.
    assert float((rolled - u).abs().max()) < 2e-4 * rho * end + 1e-9


def test_uniform_states_follow_the_logistic_curve():
    equation = ReactionDiffusion(nu=1.0, rho=5.0)
    u0 = at(0.0, 0.1, 0.5, 1.0)[:, None].repeat(1, 64)
    rolled = equation.roll(u0, at(0.3, 1.0))
    for frame, t in enumerate((0.3, 1.0)):
        exact = u0 * math.exp(5 * t) / (1 - u0 + u0 * math.exp(5 * t))
        assert torch.allclose(rolled[:, frame], exact, atol=1e-12, rtol=0)


def test_without_growth_waves_decay_as_the_heat_kernel_has_it():
    x, nu = cells(128), 0.7
    waves = torch.stack([0.5 + 0.5 * torch.cos(2 * math.pi * k * x) for k in (1, 2, 5)])
    rolled = ReactionDiffusion(nu=nu, rho=0.0).roll(waves, at(0.01))[:, 0]
    for k, frame in zip((1, 2, 5), rolled, strict=True):
        exact = 0.5 + 0.5 * math.exp(-nu * (2 * math.pi * k) ** 2 * 0.01) * torch.cos(2 * math.pi * k * x)
        assert torch.allclose(frame, exact, atol=1e-13, rtol=0)


def test_starts_are_the_random_waves_stretched_to_the_unit_interval():
    equation, x = ReactionDiffusion(), torch.arange(1024, dtype=torch.float64) / 1024
    u0, waves = equation.start(3, range(300), x), RandomWaves.draw(3, range(300))(x)
    assert float(u0.min()) == 0.0 and float(u0.max()) == 1.0
    # The extrema are on a lattice of 4096 points, of which these are every fourth: a wave of k ≤ 8 changes by at most
    # (2πk h)²/2 = 1.2e-3 of itself within h = 1/1024 of an extremum, a kink by 2πk h = 0.05, a window's edge by 0.1.
    smooth = ~(RandomWaves.draw(3, range(300)).absolute | RandomWaves.draw(3, range(300)).windowed)
    assert float(u0.amin(1)[smooth].max()) < 2.5e-3 and float(u0.amax(1)[smooth].min()) > 1 - 2.5e-3
    centred, other = u0 - u0.mean(1, keepdim=True), waves - waves.mean(1, keepdim=True)
    correlation = (centred * other).sum(1) / (centred.norm(dim=1) * other.norm(dim=1))
    assert float(correlation[smooth].min()) > 1 - 1e-6


def test_a_draw_is_the_same_function_on_every_grid():
    coarse, fine = (ReactionDiffusion(points=n, frames=2, duration=0.01).solve(0, range(20)).values for n in (32, 96))
    # The middle of three cells is the coarse cell's centre. At t = 0 the same numbers; then solved on 1024 and 1536
    # points, which differ by what a window of width 0.01 has beyond 512 waves and a kink's 1/k² does, damped by heat.
    assert torch.equal(coarse[:, 0], fine[:, 0, 1::3])
    assert torch.allclose(coarse[:, 1], fine[:, 1, 1::3], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("nu", "rho"), [(0.5, 1.0), (1e-3, 10.0)])
def test_solutions_stay_between_the_two_steady_states(nu, rho):
    values = ReactionDiffusion(points=64, nu=nu, rho=rho, frames=6).solve(1, range(40)).values
    assert float(values.min()) >= -1e-12 and float(values.max()) <= 1 + 1e-6
    assert (values.double().mean(2).diff(dim=1) > 0).all()  # 0 ≤ u ≤ 1 can only grow


def test_the_rate_is_the_solutions_own():
    equation, x = ReactionDiffusion(nu=0.5, rho=5.0), cells(256)
    u0, d = (0.5 + 0.3 * torch.sin(2 * math.pi * x) + 0.1 * torch.cos(6 * math.pi * x))[None], 1e-5
    before, now, after = equation.roll(u0, at(0.001 - d, 0.001, 0.001 + d))[0]
    rate = equation.rate(now[None, :, None], {})[0, :, 0]
    measured = (after - before) / (2 * d)
    # Central differences see k² smaller by (2πk/n)²/12: 4.5e-4 at k = 3; in time, (λd)²/6 with λ = 180: 5e-7.
    assert float((rate - measured).abs().max() / measured.abs().max()) < 6e-4


def test_a_trajectory_does_not_depend_on_its_batch():
    equation = ReactionDiffusion(points=32, frames=4, duration=0.1)
    whole = equation.solve(0, range(9)).values
    pieces = [equation.solve(0, ids).values for ids in (range(2), [2], range(3, 9))]
    assert torch.equal(whole, torch.cat(pieces))


def test_a_batch_says_what_it_is():
    equation = ReactionDiffusion(points=32, nu=2.0, rho=5.0)
    batch = equation.solve(0, [4], equation.times[:2])
    assert batch.task == "reaction_diffusion" and batch.values.shape == (1, 2, 32, 1)
    assert batch.parameters["nu"].tolist() == [2.0] and batch.parameters["rho"].tolist() == [5.0]
    assert equation.published_name == "ReacDiff_Nu2.0_Rho5.0.hdf5" and len(equation.times) == 101
    assert equation.task().parameters == ("nu", "rho") and equation.task().invariants == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nu": 0.0}, "nu is 0.0"),
        ({"rho": -1.0}, "rho is -1.0"),
        ({"rho": float("nan")}, "rho is nan"),
        ({"nu": 1e3, "rho": 5.1e4}, "more than 1,000,000 steps; give a product of at most 50000"),
        ({"nu": 1e-5, "rho": 10.0}, "too thin for 1024 points; give nu of at least 3.8e-05 or more points"),
        ({"points": 3}, "points is 3"),
    ],
)
def test_what_is_outside_the_regime_is_refused(wrong, said):
    with pytest.raises(UserError, match=said):
        ReactionDiffusion(**wrong)
