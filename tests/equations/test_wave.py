"""Waves against exact solutions, their energy, and leapfrog."""

import math

import pytest
import torch

from ups.equations import Wave, chebyshev
from ups.errors import UserError


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def plane_wave(n: int, k: int, m: int) -> torch.Tensor:
    x = 2 * math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n
    return torch.cos(k * x[:, None] + m * x)[None]


@pytest.mark.parametrize("speed", [0.1, 0.8, 2.5])
def test_in_an_even_medium_every_wave_is_exact(speed):
    """cos(k·x) cos(c|k|t) at any time and whatever the interval, up to the grid's finest waves."""
    for k, m in ((0, 1), (3, 4), (15, 15)):
        u = plane_wave(32, k, m)
        end = Wave().roll(u, torch.full_like(u, speed), times(0.05, 0.31, 2.0))[0]
        frequency = 2 * math.pi * speed * math.hypot(k, m)
        for frame, t in enumerate((0.05, 0.31, 2.0)):
            assert (end[frame, ..., 0] - u[0] * math.cos(frequency * t)).abs().max() < 1e-9
            assert (end[frame, ..., 1] + u[0] * frequency * math.sin(frequency * t)).abs().max() < 1e-9 * frequency


@pytest.mark.parametrize("medium", ["gauss", "layer"])
def test_the_energy_is_kept_to_rounding(medium):
    """½∫((∂u/∂t)²/c² + |∇u|²), the gradient spectral."""
    equation = Wave(points=48, medium=medium)
    u, c = equation.start(0, range(2)), equation.speed(0, range(2))
    rolled = equation.roll(u, c, times(0.0, 0.3, 1.0))
    k = 2 * math.pi * torch.fft.fftfreq(48, 1 / 48, dtype=torch.float64)
    square = k[:, None] ** 2 + k**2
    potential = (square * torch.fft.fft2(rolled[..., 0]).abs().square()).mean((2, 3)) / 48**2
    energy = (rolled[..., 1] / c[:, None]).square().mean((2, 3)) + potential
    assert ((energy - energy[:, :1]).abs() < 1e-10 * energy[:, :1]).all()


def test_a_smooth_medium_bends_waves_as_leapfrog_does():
    """Leapfrog with the same Laplacian is of second order in time: its distance to ours falls fourfold."""
    equation, n = Wave(points=32), 32
    u, c = equation.start(1, [0]), equation.speed(1, [0])
    end = equation.roll(u, c, times(0.5))[0, 0, ..., 0]
    k = 2 * math.pi * torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    square = k[:, None] ** 2 + k**2

    def leapfrog(steps: int) -> torch.Tensor:
        dt = 0.5 / steps

        def acceleration(u: torch.Tensor) -> torch.Tensor:
            return -c.square() * torch.fft.ifft2(square * torch.fft.fft2(u)).real

        before, now = u, u + dt**2 / 2 * acceleration(u)
        for _ in range(steps - 1):
            before, now = now, 2 * now - before + dt**2 * acceleration(now)
        return now[0]

    coarse, fine = ((leapfrog(steps) - end).norm() for steps in (200, 400))
    assert float(coarse / fine) == pytest.approx(4.0, rel=0.05)
    assert fine < 1e-3 * end.norm()


def test_frames_obey_the_acceleration_they_are_scored_by():
    """Second differences in time against c²∇²u of the stencil: both of second order, so a few percent at 64 points."""
    equation = Wave(points=64, frames=5, duration=0.04)
    batch = equation.solve(0, range(2))
    u, c = batch.values[..., 0].double(), batch.static["c"].double()
    second = (u[:, 2:] - 2 * u[:, 1:-1] + u[:, :-2]) / 0.01**2
    given = torch.stack([equation.acceleration(u[:, t], c) for t in (1, 2, 3)], 1)
    assert (second - given).norm() < 0.05 * given.norm()
    with pytest.raises(UserError, match="second differences"):
        equation.rate(batch.values[:, 0], batch.static)


def test_media_have_the_stated_ranges():
    gauss, layer = (Wave(points=32, medium=m).speed(0, range(200)) for m in ("gauss", "layer"))
    assert gauss.min() >= 0.3 and gauss.max() <= 2.5 and 0.45 < float(gauss.mean()) < 0.65
    assert layer.min() >= 0.4 and layer.max() <= 1.0
    assert {len(c.unique()) for c in layer} <= {1, 2, 3, 4, 5, 6}


def test_the_series_of_a_function_is_exact_to_rounding():
    series = chebyshev.coefficients(lambda value: torch.exp(-3 * value), 50.0)
    values = torch.linspace(0, 50, 101, dtype=torch.float64)
    (applied,) = chebyshev.apply((series,), lambda v: values * v, 50.0, torch.ones_like(values))
    assert (applied - torch.exp(-3 * values)).abs().max() < 1e-12


def test_impossible_media_and_moving_starts_are_refused():
    with pytest.raises(UserError, match="gauss, layer"):
        Wave(medium="fog")
    with pytest.raises(UserError, match="at least 32"):
        Wave(points=16)
    with pytest.raises(UserError, match="above 0"):
        Wave().roll(plane_wave(32, 1, 1), torch.zeros(1, 32, 32), times(1.0))
    batch = Wave(points=32).solve(0, [0], times(0.1, 0.2))
    with pytest.raises(UserError, match="at rest"):
        Wave(points=32).coarse(batch, 32)
