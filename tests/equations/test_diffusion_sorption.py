"""Diffusion-sorption against its similarity solution, its steady state, and converged runs."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import DiffusionSorption
from ups.equations.diffusion_sorption import concentration, content

D = 5e-4


def retardation(u: float) -> float:
    """As published, written a second time."""
    return 1 + (1 - 0.29) / 0.29 * 2880 * 3.5e-4 * 0.874 * (u + 1e-6) ** (0.874 - 1)


def at(*times: float) -> torch.Tensor:
    return torch.tensor(times, dtype=torch.float64)


def orders(errors: list[float]) -> list[float]:
    return [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]


def similarity(start: float, cells: int, reach: float) -> list[float]:
    """U(η) with u(x, t) = U(x/√(Dt)): 2 U″ = −η R(U) U′, U(0) = 1, U(∞) = start, at η = i reach/cells.

    By shooting for U′(0) with the classical Runge-Kutta method: U″ shrinks with U′, so U levels out by η = 40, and the
    steeper the start the lower it ends.
    """

    def shot(slope: float) -> list[float]:
        h, u, v, found = reach / cells, 1.0, slope, [1.0]

        def change(eta: float, u: float, v: float) -> tuple[float, float]:
            return v, -0.5 * eta * retardation(max(u, 0.0)) * v

        for i in range(cells):
            eta = i * h
            a = change(eta, u, v)
            b = change(eta + h / 2, u + h / 2 * a[0], v + h / 2 * a[1])
            c = change(eta + h / 2, u + h / 2 * b[0], v + h / 2 * b[1])
            d = change(eta + h, u + h * c[0], v + h * c[1])
            u += h / 6 * (a[0] + 2 * b[0] + 2 * c[0] + d[0])
            v += h / 6 * (a[1] + 2 * b[1] + 2 * c[1] + d[1])
            found.append(u)
        return found

    steep, flat = -4.0, 0.0
    for _ in range(50):
        middle = (steep + flat) / 2
        steep, flat = (middle, flat) if shot(middle)[-1] < start else (steep, middle)
    return shot((steep + flat) / 2)


def test_the_content_and_the_concentration_are_each_others_inverse():
    u = torch.cat((torch.zeros(1), torch.logspace(-9, 0.17, 500))).double().requires_grad_()
    w = content(u)
    found, slope = concentration(w.detach())
    assert torch.allclose(found, u, atol=1e-15, rtol=1e-13)
    (derivative,) = torch.autograd.grad(w.sum(), u)
    assert torch.allclose(1 / slope, derivative, rtol=1e-9)
    assert torch.allclose(derivative, torch.tensor([retardation(x) for x in u.tolist()]).double(), rtol=1e-6)


@pytest.mark.parametrize("start", [0.02, 0.15])
def test_the_front_follows_the_similarity_solution(start):
    """While the right wall's layer is far: at t = 40 both are √(4Dt/R) ≈ 0.15 wide, 0.5 apart."""
    n, t = 512, 40.0
    u = DiffusionSorption().roll(torch.full((1, n), start, dtype=torch.float64), at(t))[0, 0, : n // 2]
    x = (torch.arange(n // 2, dtype=torch.float64) + 0.5) / n
    scale = math.sqrt(D * t)
    # Every fourth of the cells' centres, which are odd multiples of half a cell.
    reach, cells = 0.5 / scale, 1024
    exact = torch.tensor(similarity(start, cells, reach), dtype=torch.float64)[2::4]
    assert torch.allclose(x / scale, torch.arange(2, cells, 4).double() * (reach / cells), atol=1e-12)
    # Second order: dx²/12 · u'''' against u'' is (dx/width)²/12 = 1.4e-5, within a factor.
    assert float((u - exact).abs().max()) < 5e-5


def test_the_steady_state_is_the_straight_line_between_both_walls():
    """u = 1 − x/(1 + D): it meets u = 1 at x = 0 and u = −D u′ at x = 1, and finite volumes hold it exactly."""
    n = 64
    u = DiffusionSorption().roll(torch.full((1, n), 0.1, dtype=torch.float64), at(1e6))[0, 0]
    x = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    assert torch.allclose(u, 1 - x / (1 + D), atol=1e-10, rtol=0)


def test_rodas3_is_of_third_order():
    equation = DiffusionSorption()
    u0 = equation.roll(torch.full((1, 32), 0.1, dtype=torch.float64), at(10.0))[:, 0]

    def advanced(steps: int) -> torch.Tensor:
        w = content(u0)
        for _ in range(steps):
            w = equation.step(w, 10.0 / steps)
        return w

    exact = advanced(320)
    errors = [float((advanced(steps) - exact).norm()) for steps in (10, 20, 40)]
    assert min(orders(errors)) > 2.8, (orders(errors), errors)


def test_the_cells_are_of_second_order():
    equation = DiffusionSorption()

    def averaged(n: int) -> torch.Tensor:
        rolled = equation.roll(torch.full((1, n), 0.1, dtype=torch.float64), at(20.0))[0, 0]
        return rolled.unflatten(-1, (64, -1)).mean(-1)

    exact = averaged(1024)
    errors = [float((averaged(n) - exact).norm()) for n in (64, 128, 256)]
    assert min(orders(errors)) > 1.9, (orders(errors), errors)


def test_steps_that_grow_with_time_do_not_cost_accuracy():
    """Against steps a quarter as long at all times; of third order, so what is left is 1/64 of the difference."""
    equation, n = DiffusionSorption(), 64
    u0 = torch.full((2, n), 0.1, dtype=torch.float64)
    u0[1] = 1e-4
    rolled = equation.roll(u0, at(5.0, 30.0))
    layer, now, w, reference = 1 / (n**2 * D), 0.0, content(u0), []
    for end in (5.0, 30.0):
        while now < end:
            dt = min(0.025 * (now + layer), end - now)
            w, now = equation.step(w, dt), now + dt
        reference.append(concentration(w)[0])
    assert float((rolled - torch.stack(reference, 1)).abs().max()) < 1e-4


def test_what_enters_and_leaves_is_what_changes():
    """Σ R(u) ∂u/∂t dx is the flux at the left wall less that at the right, whatever the state."""
    n = 32
    state = torch.rand(3, n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u = state[..., 0]
    stored = u.clone().apply_(retardation) * DiffusionSorption().rate(state, {})[..., 0]
    entering = 2 * n * D * (1 - u[:, 0])
    wall = u[:, -1] / (1 + 1 / (2 * n * D))  # w = 2nD (u − w): the value on the wall, and the flux through it
    assert torch.allclose(stored.sum(1) / n, entering - wall, atol=1e-12, rtol=0)


def test_solutions_fall_from_the_left_wall_and_stay_between_zero_and_one():
    equation = DiffusionSorption(points=64, frames=11)
    values = equation.solve(0, range(16)).values[..., 0].double()
    assert float(values.min()) > 0 and float(values.max()) < 1
    assert (values.diff(dim=-1) <= 1e-7).all()  # rounding to float32 of values up to 1
    assert (values[:, -1, :32] > values[:, 0, :32]).all()


def test_the_start_is_uniform_between_zero_and_a_fifth():
    start = DiffusionSorption().start(0, range(20000))
    assert float(start.min()) >= 0 and float(start.max()) < 0.2
    assert float(start.mean()) == pytest.approx(0.1, rel=0.02)
    assert float(start.std()) == pytest.approx(0.2 / math.sqrt(12), rel=0.02)
    first = DiffusionSorption(points=16, frames=2, duration=1.0).solve(0, range(3)).values[:, 0, :, 0]
    assert torch.equal(first, start[:3, None].float().expand(3, 16))


def test_a_start_of_almost_nothing_is_solved():
    """There the retardation changes by a factor of 4 within 10⁻³."""
    u0 = torch.tensor([[0.0], [1e-6], [1e-4]], dtype=torch.float64).repeat(1, 128)
    rolled = DiffusionSorption().roll(u0, at(1.0, 500.0))
    assert rolled.isfinite().all() and float(rolled.min()) > -1e-9 and float(rolled.max()) < 1
    assert torch.allclose(rolled[0], rolled[1], atol=1e-5)


def test_a_trajectory_does_not_depend_on_its_batch():
    equation = DiffusionSorption(points=32, frames=2, duration=1.0)
    whole = equation.solve(0, range(5)).values
    pieces = [equation.solve(0, ids).values for ids in ([0], range(1, 3), range(3, 5))]
    assert torch.equal(whole, torch.cat(pieces))


def test_a_batch_says_what_it_is():
    equation = DiffusionSorption(points=32)
    batch = equation.solve(0, [4], equation.times[:2])
    assert batch.task == "diffusion_sorption" and batch.values.shape == (1, 2, 32, 1)
    lower, upper = batch.boundary.sides[0]
    assert (lower.kind, lower.value, upper.kind) == ("value", (1.0,), "robin")
    assert equation.published_name == "1D_diff-sorp_NA_NA.h5" and equation.task().dt == 5.0
