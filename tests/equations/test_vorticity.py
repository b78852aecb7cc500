"""Periodic flow against exact solutions, smaller steps and finer grids."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import Vorticity, vorticity
from ups.equations.schemes.periodic import cell_averages
from ups.errors import UserError


def angles(n: int) -> torch.Tensor:
    return 2 * math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_taylor_green_vortices_decay_exactly():
    """ω = 2 cos 2πx cos 2πy is steady for inviscid flow, so viscosity alone acts: e^(−8π²νt)."""
    x = angles(32)
    w = 2 * torch.cos(x)[:, None] * torch.cos(x)
    end = Vorticity(nu=1e-2).roll(w[None], times(0.7, 2.0), force=torch.zeros_like(w))[0]
    for frame, t in enumerate((0.7, 2.0)):
        assert (end[frame] - w * math.exp(-8 * math.pi**2 * 1e-2 * t)).abs().max() < 1e-12


def test_the_forced_shear_reaches_its_exact_size():
    """The force drives a shear that does not convect itself: f (1 − e^(−8π²νt))/(8π²ν)."""
    equation = Vorticity(nu=1e-3)
    force = equation.force(64)
    end = equation.roll(torch.zeros(1, 64, 64, dtype=torch.float64), times(5.0))[0, 0]
    decay = 8 * math.pi**2 * 1e-3
    assert (end - force * (1 - math.exp(-decay * 5)) / decay).abs().max() < 1e-12


def test_inviscid_flow_keeps_energy_and_enstrophy():
    """De-aliased convection conserves both exactly; what is left is the time step's error and a ν of 1e-9."""
    w = Vorticity().start(0, [0], 64)
    rolled = vorticity.step(w * 4, torch.zeros(64, 64, dtype=torch.float64), 1e-9, 0.01, 200)
    before, after = (vorticity.step(v, 0 * v[0], 1e-9, 1e-9, 1) for v in (w * 4, rolled))
    for quantity in (
        lambda v: v.square().mean(),
        lambda v: vorticity.velocities(torch.fft.rfft2(v), 64).square().mean(),
    ):
        assert float(quantity(after)) == pytest.approx(float(quantity(before)), rel=1e-6)


def test_steps_are_of_fourth_order():
    w, force = 8 * Vorticity().start(1, [0], 64), Vorticity().force(64)
    reference = vorticity.step(w, force, 1e-3, 1 / 800, 800)
    errors = [(vorticity.step(w, force, 1e-3, 1 / steps, steps) - reference).norm() for steps in (50, 100, 200)]
    orders = [math.log2(float(a / b)) for a, b in pairwise(errors)]
    assert min(orders) > 3.7, orders


def test_the_chosen_grid_resolves_the_flow():
    """64 points at ν = 10⁻³ against 128: the stored averages agree to a thousandth after five time units."""
    equation = Vorticity(nu=1e-3)
    assert equation.refinement == 1 and Vorticity(nu=1e-4).refinement == 2 and Vorticity(nu=1e-5).refinement == 8
    coarse, fine = (cell_averages(equation.roll(equation.start(0, [0], n), times(5.0)), 32)[0, 0] for n in (64, 128))
    assert (coarse - fine).norm() < 1e-3 * fine.norm()


def test_the_start_has_the_stated_variance():
    """Σ over all waves of 2·7³(4π²k² + 49)^(−5/2) = 0.0675 up to wave 20, sampled over 200 fields."""
    k = torch.arange(-20, 21, dtype=torch.float64)
    density = 2 * 343 * (4 * math.pi**2 * (k[:, None] ** 2 + k**2) + 49) ** -2.5
    expected = float(density.sum() - density[20, 20])
    w = Vorticity().start(0, range(200), 48)
    assert float(w.square().mean()) == pytest.approx(expected, rel=0.1)
    assert float(w.mean((1, 2)).abs().max()) < 1e-12


@pytest.mark.parametrize("nu", [1e-3, 1e-4, 1.5e-3, 0.00123456789])
def test_a_name_says_the_viscosity(nu: float):
    name = Vorticity(nu=nu).published_name
    assert float(name.removeprefix("ns_V").removesuffix("_T50.hdf5")) == nu
    assert Vorticity().published_name == "ns_V1e-3_T50.hdf5"


def test_a_viscosity_that_no_grid_resolves_is_refused():
    for wrong in (1e-8, 0.0, -1.0, math.nan):
        with pytest.raises(UserError, match=r"nu is .*; give"):
            Vorticity(nu=wrong)


def test_what_flows_into_a_cell_flows_out():
    w = Vorticity().start(0, range(2), 64)
    x_face, y_face = vorticity.face_velocities(torch.fft.rfft2(w), 64)
    divergence = x_face - x_face.roll(1, -2) + y_face - y_face.roll(1, -1)
    assert divergence.abs().max() < 1e-13
    centre = vorticity.velocities(torch.fft.rfft2(w), 64)[:, 0]
    assert ((x_face + x_face.roll(1, -2)) / 2 - centre).norm() < 0.01 * centre.norm()  # the right way around
