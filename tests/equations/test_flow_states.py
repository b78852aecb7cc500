"""Initial states of compressible flow against the distributions they are said to have."""

from __future__ import annotations

import math

import pytest
import torch

from ups.equations import Compressible1D, Compressible2D
from ups.equations.schemes.euler import GAMMA


def test_the_random_planes_have_the_stated_distributions():
    count, n, mach = 400, 32, 0.5
    w = Compressible2D(points=n, M=mach).start(0, range(count))
    box_free = (w[:, 2:, 0, 0].abs() > 1e-3).all(1)  # the corner is outside every box
    assert float(box_free.double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(count))
    free = w[box_free]
    density0 = free[:, 0].flatten(1).mean(1)  # no mode is constant, so the mean is ρ₀
    temperature = free[:, 1].flatten(1).mean(1) / density0
    for drawn in (density0, temperature):
        error = 9.9 / math.sqrt(12 * len(free))
        assert float(drawn.mean()) == pytest.approx(5.05, abs=4 * error)
        assert 0.1 < float(drawn.min()) < 0.5 and 9.5 < float(drawn.max()) < 10
    speed = free[:, 2:].square().sum(1).sqrt().flatten(1).mean(1) / (GAMMA * temperature).sqrt()
    assert torch.allclose(speed, torch.full_like(speed, mach), rtol=0.01)  # two quadratures of |v|, kinks and all
    for channel in (0, 1):
        field = free[:, channel] / free[:, channel].flatten(1).mean(1)[:, None, None] - 1
        contrast = field.abs().flatten(1).mean(1)
        assert float(contrast.min()) > 0.0099 and float(contrast.max()) < 0.202
        assert float(contrast.mean()) == pytest.approx(0.105, abs=4 * 0.19 / math.sqrt(12 * len(free)) + 0.002)
    assert (w[:, :2] > 0).all()


def test_modes_have_the_stated_weights():
    """The power of mode (i, j) falls as 1/|k|, and there is none on the axes."""
    w = Compressible2D(points=16, initial="random").start(1, range(300))
    field = w[:, 0] / w[:, 0].flatten(1).mean(1)[:, None, None] - 1
    free = w[:, 2, 0, 0].abs() > 1e-4
    field = field[free] / field[free].flatten(1).norm(dim=1)[:, None, None]
    power = torch.fft.fft2(field).abs().square()
    k = torch.fft.fftfreq(16, 1 / 16)
    # (i, j) and (−i, −j) are one wave whose power is that of two random phases, 1 ± 1: four of them, 4 sigma.
    mean_power = power.mean(0)
    for i, j in ((1, 2), (2, 2), (3, 4), (4, 4)):
        expected = math.sqrt(2) / math.hypot(i, j)
        measured = float((mean_power[i, j] + mean_power[i, -j]) / (mean_power[1, 1] + mean_power[1, -1]))
        assert measured == pytest.approx(expected, rel=4 * 2 / math.sqrt(2 * len(field)))
    assert float(mean_power[(k == 0)[:, None] | (k == 0) | (k.abs()[:, None] > 4)].max()) < 1e-20


def test_turbulent_planes_are_solenoidal():
    n, mach = 32, 0.1
    w = Compressible2D(points=n, initial="turbulent", M=mach).start(0, range(6))
    wave = 2j * math.pi * torch.fft.fftfreq(n, 1 / n).double()
    vx, vy = torch.fft.fft2(w[:, 2]), torch.fft.fft2(w[:, 3])
    divergence = wave[:, None] * vx + wave * vy
    assert float(divergence.abs().max()) < 1e-10 * float((wave[:, None] * vx).abs().max())
    assert torch.allclose(w[:, 2:].square().sum(1).sqrt().mean((1, 2)), torch.ones(6).double(), rtol=0.01)
    sound = (GAMMA * w[:, 1] / w[:, 0]).sqrt()
    assert torch.allclose(sound, torch.full_like(sound, 1 / mach))


def test_the_random_lines_have_the_stated_ranges():
    count = 500
    w = Compressible1D(points=256).start(0, range(count))
    for channel, low in ((0, 1.0), (1, 10.0)):
        assert (w[:, channel] >= low).all() and (w[:, channel] <= 10 * low).all()
        # the two bounds are log-uniform: their mean logarithms are a third and two thirds of the decade
        for end, third in ((w[:, channel].amin(1), 1 / 3), (w[:, channel].amax(1), 2 / 3)):
            mean = float((end / low).log10().mean())
            assert mean == pytest.approx(third, abs=4 * math.sqrt(1 / 18 / count) + 1e-3)
    middle = [(w[:, c].amin(1) * w[:, c].amax(1)).sqrt() for c in (0, 1)]
    mach = w[:, 2].abs().amax(1) / (GAMMA * middle[1] / middle[0]).sqrt()
    assert float(mach.mean()) == pytest.approx(0.5, abs=4 / math.sqrt(12 * count)) and float(mach.max()) <= 1.0


@pytest.mark.parametrize("initial", ["random", "turbulent"])
def test_a_draw_is_the_same_flow_on_every_grid(initial):
    """Cells of 16² have their centres where those of 48² have every third."""
    coarse, fine = (Compressible2D(points=n, initial=initial).start(5, range(3)) for n in (16, 48))
    assert torch.allclose(coarse, fine[..., 1::3, 1::3], rtol=1e-12, atol=1e-12)
