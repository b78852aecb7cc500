"""Waves against exact solutions, their energy, and a spectral method."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import Wave
from ups.equations.schemes import chebyshev
from ups.errors import UserError


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def cells(n: int) -> torch.Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def pulse(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-((x - 0.8) ** 2) / (2 * 0.039**2))


def energy(rolled: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """∫((∂u/∂t)²/c² + |∇u|²) of cells and the faces between them, slopes of fourth order where there are neighbours."""
    u, w = rolled.unbind(-1)
    total = (w / c[:, None]).square().sum((2, 3)) / u.shape[-1] ** 2
    for v in (u, u.mT):
        slope = v.diff(dim=-1)
        slope[..., 1:-1] = (27 * slope[..., 1:-1] - (v[..., 3:] - v[..., :-3])) / 24
        total = total + slope.square().sum((2, 3))
    return total


def test_before_it_meets_a_side_a_pulse_is_d_alemberts_and_then_it_leaves():
    """Two halves at x ± ct; the right one has gone through its side at ct = 0.4, and none of it comes back.

    Looked at in the middle of the square, which the sides beside the pulse, half a square away, cannot have reached.
    """
    errors, reflected = [], []
    for n in (64, 128, 256):
        x, speed = cells(n), 0.8
        u = pulse(x)[None, :, None].expand(1, n, n)
        before, after = Wave().roll_in(u, torch.full_like(u, speed), times(0.05 / speed, 0.4 / speed))[
            0, ..., n // 2, 0
        ]
        errors.append(float((before - (pulse(x - 0.05) + pulse(x + 0.05)) / 2).abs().max()))
        errors[-1] = max(errors[-1], float((after - pulse(x + 0.4) / 2)[x < 0.6].abs().max()))
        reflected.append(float(after[x > 0.62].abs().max() / 0.5))
    assert reflected[0] < 0.02 and reflected[-1] < 1e-3
    assert min(math.log2(a / b) for seen in (errors, reflected) for a, b in pairwise(seen)) > 1.8, (errors, reflected)


def test_a_slanting_wave_is_sent_back_by_as_much_as_the_condition_says():
    """A plane wave at an angle θ to the side x = 1 returns (cos θ − 1)/(cos θ + 1) of itself: a sixth at 45°.

    A packet of waves along the diagonal parts into two. One meets that side, and what is in the upper right quarter is
    known from the waves it is made of: they themselves and their images. The other one leaves downwards.
    """
    errors = []
    for n in (128, 256):
        x = 2 * cells(2 * n)  # the square and as much again around it
        across, along = x[:, None] - 0.7, x - 0.2
        wave = torch.cos(2 * math.pi * 14 * (across + along) / math.sqrt(2))
        u = torch.exp(-(across**2 + along**2) / (2 * 0.07**2)) * wave
        k = math.pi * torch.fft.fftfreq(2 * n, 1 / (2 * n), dtype=torch.float64)
        length = (k[:, None] ** 2 + k**2).sqrt().clamp_min(1e-9)
        cosine = k[:, None].abs() / length
        to_the_side = torch.exp(-1j * k.sign()[:, None] * length * 0.75) / 2
        spectrum = torch.fft.fft2(u)
        free = torch.fft.ifft2(spectrum * torch.cos(length * 0.75)).real
        sent = torch.fft.ifft2(spectrum * to_the_side * (cosine - 1) / (cosine + 1)).real
        exact = free[n // 2 : n, n // 2 : n] + sent[n : 3 * n // 2, n // 2 : n].flip(0)
        part = u[None, :n, :n]
        end = Wave().roll_in(part, torch.ones_like(part), times(0.75))[0, 0, n // 2 :, n // 2 :, 0]
        errors.append(float((end - exact).norm() / exact.norm()))
    assert errors[0] < 0.05 and errors[1] < 0.02, errors


@pytest.mark.parametrize("medium", ["gauss", "layer"])
def test_the_energy_never_grows_and_all_of_it_leaves(medium):
    equation, n = Wave(medium=medium), 64
    u, c = equation.start(0, range(3), n), equation.speed(0, range(3), n)
    seen = energy(equation.roll_in(u, c, torch.arange(101, dtype=torch.float64) / 10), c)
    assert (seen.diff(dim=1) < 1e-6 * seen[:, :1]).all()  # once it is small it swings by what differences leave out
    assert (seen[:, -1] < 1e-4 * seen[:, 0]).all()


def test_a_smooth_medium_bends_waves_as_a_spectral_method_has_it():
    """Before they meet a side, against leapfrog with an exact Laplacian on 128 periodic points: of fourth order."""
    size = 128

    def start(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = cells(n)
        u = torch.exp(-((x[:, None] - 0.45) ** 2 + (x - 0.5) ** 2) / (2 * 0.06**2))[None]
        return u, (0.5 + 0.2 * torch.sin(2 * math.pi * x)[:, None] * torch.cos(2 * math.pi * x))[None]

    u, c = start(size)
    k = 2 * math.pi * torch.fft.fftfreq(size, 1 / size, dtype=torch.float64)
    square, dt = k[:, None] ** 2 + k**2, 0.35 / 700

    def acceleration(u: torch.Tensor) -> torch.Tensor:
        return -c.square() * torch.fft.ifft2(square * torch.fft.fft2(u)).real

    before, now = u, u + dt**2 / 2 * acceleration(u)
    for _ in range(699):
        before, now = now, 2 * now - before + dt**2 * acceleration(now)
    change = (now - before) / dt + dt / 2 * acceleration(now)
    spectrum = torch.fft.fft2(torch.stack((now, change), -1), dim=(1, 2))
    errors = []
    for n in (32, 64, 128):
        ours = Wave().roll_in(*start(n), times(0.35))[:, 0]
        # The spectral solution at our own cells' centres: shifted by the difference of half cells, every so many.
        shift = torch.exp(1j * k * (0.5 / n - 0.5 / size))[:, None]
        whole = torch.fft.ifft2(spectrum * shift[:, None] * shift, dim=(1, 2)).real
        theirs = whole[:, :: size // n, :: size // n]
        errors.append(float((ours - theirs).norm() / theirs.norm()))
    assert errors[-1] < 1e-3
    assert min(math.log2(a / b) for a, b in pairwise(errors)) > 3.5, errors


def test_the_chosen_grid_resolves_the_waves():
    """256 cells against 128: of second order at least, so a third of the difference is more than what is left."""
    equation = Wave(points=64)
    assert equation.refinement == 4 and Wave(points=512).refinement == 1
    ends = []
    for n in (128, 256):
        end = equation.roll_in(equation.start(0, [0], n), equation.speed(0, [0], n), times(0.7))[0, 0, ..., 0]
        ends.append(end.unflatten(0, (64, -1)).unflatten(2, (64, -1)).mean((1, 3)))
    assert (ends[0] - ends[1]).norm() / 3 < 5e-4 * ends[1].norm()


def test_frames_obey_the_acceleration_they_are_scored_by():
    """Second differences in time against c²∇²u of the stencil: both of second order, so a few percent at 64 points.

    Beside the sides the stencil guesses what has left, and it is not looked at there.
    """
    equation = Wave(points=64, frames=5, duration=0.04)
    batch = equation.solve(0, range(2))
    u, c = batch.values[..., 0].double(), batch.static["c"].double()
    second = (u[:, 2:] - 2 * u[:, 1:-1] + u[:, :-2]) / 0.01**2
    given = torch.stack([equation.acceleration(u[:, t], c) for t in (1, 2, 3)], 1)
    inside = (..., slice(2, -2), slice(2, -2))
    assert (second - given)[inside].norm() < 0.05 * given[inside].norm()
    with pytest.raises(UserError, match="second differences"):
        equation.rate(batch.values[:, 0], batch.static)


def test_media_have_the_stated_ranges():
    gauss, layer = (Wave(medium=m).speed(0, range(200), 32) for m in ("gauss", "layer"))
    assert gauss.min() >= 0.3 and gauss.max() <= 2.5 and 0.45 < float(gauss.mean()) < 0.65
    assert layer.min() >= 0.4 and layer.max() <= 1.0
    numbers = [len(c.unique()) for c in layer]
    assert set(numbers) <= {1, 2, 3, 4, 5, 6} and max(numbers) == 6


def test_the_series_of_a_function_is_exact_to_rounding():
    series = chebyshev.coefficients(lambda value: torch.exp(-3 * value), 50.0)
    values = torch.linspace(0, 50, 101, dtype=torch.float64)
    applied = chebyshev.apply(series, lambda v: values * v, 50.0, torch.ones_like(values))
    assert (applied - torch.exp(-3 * values)).abs().max() < 1e-12


def test_impossible_media_and_moving_starts_are_refused():
    with pytest.raises(UserError, match="gauss, layer"):
        Wave(medium="fog")
    with pytest.raises(UserError, match="at least 32"):
        Wave(points=16)
    with pytest.raises(UserError, match="above 0"):
        Wave().roll_in(torch.ones(1, 32, 32, dtype=torch.float64), torch.zeros(1, 32, 32), times(1.0))
    batch = Wave(points=32).solve(0, [0], times(0.001, 0.002))
    with pytest.raises(UserError, match="at rest"):
        Wave(points=32).coarse(batch, 32)
