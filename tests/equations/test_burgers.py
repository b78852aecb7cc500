"""Burgers against the Cole-Hopf solution, its conservation law, and what a shock must do."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import Burgers, RandomWaves
from ups.equations.schemes import finite_volume
from ups.equations.schemes.finite_volume import _March, arrivals
from ups.equations.schemes.repeated import repeat
from ups.errors import UserError

TWO_PI = 2 * math.pi


def cells(n: int) -> torch.Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def orders(errors: list[float]) -> list[float]:
    return [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]


def start(x: torch.Tensor) -> torch.Tensor:
    """Two waves on a mean of 0.3."""
    return 0.3 + torch.sin(TWO_PI * x) + 0.5 * torch.cos(2 * TWO_PI * x)


def cole_hopf(x: torch.Tensor, t: float, nu: float) -> torch.Tensor:
    """The exact solution started from `start`, by quadrature.

    In the frame moving with the mean, v(x, t) = ∫ v₀(y) w dy / ∫ w dy with w = exp(−[Ψ(y) + (x − y)²/2t]/2κ), Ψ the
    integral of v₀ and κ = ν/π. All weight lies where |x − y| < t max|v₀| and some widths √(2κt) more; the trapezoidal
    rule converges exponentially there, and softmax shifts the exponent so that nothing under- or overflows.
    """
    mean, kappa = 0.3, nu / math.pi
    reach = 1.5 * t + 10 * math.sqrt(2 * kappa * t)
    offset = torch.linspace(-reach, reach, 8193, dtype=torch.float64)
    y = (x - mean * t)[:, None] + offset
    potential = -torch.cos(TWO_PI * y) / TWO_PI + 0.5 * torch.sin(2 * TWO_PI * y) / (2 * TWO_PI)
    weight = torch.softmax(-(potential + offset**2 / (2 * t)) / (2 * kappa), -1)
    return mean + (weight * (start(y) - mean)).sum(-1)


def averages(function, n: int) -> torch.Tensor:
    """Cell averages by Gauss's two points, exact to O(dx⁴)."""
    shift = 1 / (2 * math.sqrt(3) * n)
    return (function(cells(n) - shift) + function(cells(n) + shift)) / 2


def test_the_reference_itself_has_the_linear_limit():
    """With very strong diffusion Burgers is the heat equation; the quadrature must show it."""
    nu, t = 50.0, 2e-4
    x = cells(32)
    decay = nu / math.pi * TWO_PI**2 * t
    linear = (
        0.3
        + math.exp(-decay) * torch.sin(TWO_PI * (x - 0.3 * t))
        + 0.5 * math.exp(-4 * decay) * torch.cos(2 * TWO_PI * (x - 0.3 * t))
    )
    assert torch.allclose(cole_hopf(x, t, nu), linear, atol=3 * t * 2 * TWO_PI)  # the product u u_x acts for a time t


@pytest.mark.parametrize(("nu", "n"), [(0.01, 1024), (0.02, 512), (0.1, 128)])
def test_the_spectral_method_meets_the_exact_solution(nu, n):
    equation, x = Burgers(points=128, nu=nu), cells(n)
    assert equation.resolved_on(n)
    times = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
    rolled = equation.roll(start(x)[None], times)[0]
    for frame, t in zip(rolled, times.tolist(), strict=True):
        # The 2/3 rule cuts the shock's spectrum 1/sinh(πkδ/2), δ = 4ν/(πΔu), at k = 2πn/3: below e⁻⁹ for Δu ≤ 2.4.
        assert float((frame - cole_hopf(x, t, nu)).abs().max()) < math.exp(-9)


def test_stored_values_are_exact_cell_averages():
    equation = Burgers(points=64, nu=0.02, frames=2, duration=0.5)
    stored = equation.solve(0, range(2)).values[:, 1, :, 0].double()
    n = 4096
    fine = equation.roll(RandomWaves.draw(0, range(2))(cells(n)), torch.tensor([0.5], dtype=torch.float64))[:, 0]
    # Averages of 64 point values miss the cell's integral by O(dx²): |u''| ≤ 1e4 at these shocks, over 24 · 4096².
    assert torch.allclose(stored, fine.unflatten(-1, (64, 64)).mean(-1), atol=5e-5)


def test_exponential_differencing_is_of_fourth_order():
    equation, u0 = Burgers(points=256, nu=0.05), start(cells(256))[None]
    errors = []
    exact = equation.step(u0, 0.2 / 640, 640)
    for steps in (20, 40, 80):
        errors.append(float((equation.step(u0, 0.2 / steps, steps) - exact).norm()))
    assert min(orders(errors)) > 3.7, orders(errors)


def test_finite_volumes_are_of_second_order_before_the_shock():
    """In the mean norm: the limiter costs accuracy at extrema only. At t = 0.03; the shock forms at about 0.09."""
    nu, t, errors = 0.001, 0.03, []
    for n in (64, 128, 256):
        exact = averages(lambda x: cole_hopf(x, t, nu), n)
        rolled = Burgers(points=n, nu=nu).roll(averages(start, n)[None], torch.tensor([t], dtype=torch.float64))[0, 0]
        errors.append(float((rolled - exact).abs().mean()))
    assert min(orders(errors)) > 1.7, (orders(errors), errors)


def test_finite_volumes_find_the_shock_at_low_viscosity():
    """A captured shock is spread over two or three cells: an error of at most half its jump of 1.5 in two of them."""
    nu, t, n = 0.001, 0.5, 256
    exact = averages(lambda x: cole_hopf(x, t, nu), n)
    rolled = Burgers(points=n, nu=nu).roll(averages(start, n)[None], torch.tensor([t], dtype=torch.float64))[0, 0]
    assert float((rolled - exact).abs().mean()) < 1.5 / n


def test_a_shock_keeps_its_speed():
    """Between states 1 and 0 a shock runs at (1 + 0)/2, and an expansion fan opens behind: from x = 0.5 to 0.7."""
    n = 512
    x = cells(n)
    block = ((x > 0.1) & (x < 0.5)).double()[None]
    frame = Burgers(points=n, nu=0.001).roll(block, torch.tensor([0.4], dtype=torch.float64))[0, 0]
    behind = int((frame > 0.5).nonzero().max())
    crossing = x[behind] + (frame[behind] - 0.5) / (frame[behind] - frame[behind + 1]) / n
    assert float(crossing) == pytest.approx(0.7, abs=1 / n)
    # u = (x − x₀)/t without an expansion shock. The fan's edge is known to a cell, so u to dx/t; viscosity κ = ν/π adds
    # about 2κ/(x − x₀) at the foot and takes as much at the head, which is less than that in the middle.
    fan = (x > 0.25) & (x < 0.35)
    assert torch.allclose(frame[fan], (x[fan] - 0.1) / 0.4, atol=1 / (0.4 * n), rtol=0)


def test_thin_shocks_make_no_new_extrema():
    equation = Burgers(points=256, nu=0.001)
    u0 = RandomWaves.draw(0, range(16))(cells(256))
    rolled = equation.roll(u0, torch.linspace(0, 0.6, 7, dtype=torch.float64))
    rounding = 1e-13  # some thousand steps of values up to 4
    assert (rolled.amax(-1) <= u0.amax(-1, keepdim=True) + rounding).all()
    assert (rolled.amin(-1) >= u0.amin(-1, keepdim=True) - rounding).all()
    variation = rolled.diff(dim=-1, append=rolled[..., :1]).abs().sum(-1)
    assert (variation.diff(dim=1) <= 256 * rounding).all()


@pytest.mark.parametrize("nu", [0.001, 0.02])
def test_the_mean_is_conserved(nu):
    equation = Burgers(points=64, nu=nu, frames=4, duration=0.3)
    mean = equation.solve(0, range(12)).values.double().mean(2)
    assert equation.task().invariants[0].tolerance == 1e-5
    assert float((mean - mean[:, :1]).abs().max()) < 2.0**-22  # float32 rounding of values up to 4, averaged


def test_the_viscosity_is_nu_over_pi():
    nu, x, t = 0.2, cells(64), 0.3
    for equation, n in ((Burgers(points=64, nu=nu), 64), (Burgers(points=32, nu=nu), 32)):
        wave = 1e-6 * torch.sin(TWO_PI * cells(n))[None]
        rolled = equation.roll(wave, torch.tensor([t], dtype=torch.float64))[0, 0]
        rate = -math.log(float(rolled.norm() / wave.norm())) / t
        # Central differences on 32 cells see the wave's k² smaller by (k dx)²/12 = 0.3 %.
        assert rate == pytest.approx(nu / math.pi * TWO_PI**2, rel=0.005)
    assert len(x) * nu >= 10


def test_a_moving_frame_changes_nothing_else():
    """Galilean invariance: adding a constant c to u₀ shifts the solution by ct."""
    equation, x = Burgers(points=256, nu=0.05), cells(256)
    times = torch.tensor([0.5], dtype=torch.float64)
    still = equation.roll(start(x)[None], times)[0, 0]
    moving = equation.roll(start(x)[None] + 1.0, times)[0, 0]  # c t = 1/2 = 128 cells
    assert torch.allclose(moving - 1, still.roll(128), atol=1e-12)


def test_the_method_follows_the_resolution():
    assert "spectral" in Burgers(points=128, nu=0.01).solver and Burgers(points=128, nu=0.01).refinement == 8
    assert Burgers(points=128, nu=0.02).refinement == 4 and Burgers(points=128, nu=1.0).refinement == 1
    assert "finite volume" in Burgers(points=128, nu=0.001).solver and Burgers(points=128, nu=0.001).refinement == 8
    assert Burgers(points=2048, nu=0.001).refinement == 1


@pytest.mark.parametrize("nu", [0.001, 0.05])
def test_trajectories_do_not_depend_on_their_batch(nu):
    equation = Burgers(points=32, nu=nu, frames=3, duration=0.1)
    whole = equation.solve(0, range(9)).values
    pieces = [equation.solve(0, ids).values for ids in (range(2), [2], range(3, 9))]
    assert torch.equal(whole, torch.cat(pieces))


@pytest.mark.parametrize(
    "wrong", [{"nu": 0.0}, {"nu": 9e-6}, {"nu": float("inf")}, {"nu": float("nan")}, {"points": 1}]
)
def test_senseless_equations_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Burgers(**wrong)


def test_times_must_increase():
    with pytest.raises(UserError, match="increasing"):
        Burgers(points=32, nu=1.0).solve(0, [0], torch.tensor([1.0, 0.5], dtype=torch.float64))


def test_rows_that_are_through_leave_the_blocks_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop on a CPU stands in for what a GPU records: which rows are in which block is the same."""
    moved: list[int] = []

    def loop(step, state, times, key):
        moved.extend([len(state[0])] * times)
        return repeat(step, state, times, key)

    monkeypatch.setattr(finite_volume, "repeat", loop)
    monkeypatch.setattr(finite_volume, "_GPU_BLOCKS", (8, 4, 2))
    assert arrivals(torch.tensor([9, 9, 6, 6, 2])) == [(2, 4, 5), (6, 2, 4), (9, 0, 2)]
    u = 0.05 * RandomWaves.draw(3, range(7))(torch.arange(64, dtype=torch.float64) / 64)
    diffusion = torch.linspace(0.05, 0.2, 7, dtype=torch.float64)[:, None]
    for counts in ([9, 6, 6, 4, 4, 4, 2], [5, 5, 5, 3, 3, 3, 1]):
        stops = arrivals(torch.tensor(counts))
        assert torch.equal(finite_volume._on_gpu(u, diffusion, stops), _March(u, diffusion).run(stops))
    assert moved == [8] * 4 + [4] * 2 + [2] * 3 + [8] * 3 + [4] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_takes_the_same_steps_as_a_cpu() -> None:
    """More trajectories than one recorded block holds, of several speeds; only the powers' rounding may differ."""
    burgers = Burgers(points=256, nu=0.001, frames=5, duration=0.2)
    cpu, gpu = (burgers.solve(0, range(1100), device=device).values.cpu() for device in ("cpu", "cuda"))
    assert (cpu - gpu).abs().max() < 1e-6 * cpu.abs().max()
