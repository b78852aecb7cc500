"""Incompressible flow against exact solutions, smaller steps and finer grids."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import Incompressible, Vorticity, vorticity
from ups.equations.incompressible import _transport
from ups.equations.periodic import cell_averages
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
        with pytest.raises(UserError, match=r"nu is .*; give"):
            Incompressible(nu=wrong)


def test_particles_move_with_the_flow_and_keep_their_number_and_bounds():
    """V = (1, 0) has no vorticity on a periodic square, so faces are set by hand: once around is where it was."""
    errors = []
    for n in (32, 64, 128):
        x = angles(n)
        m = start = (2 + torch.sin(x)[:, None] * torch.cos(x)).expand(1, n, n)
        ones, zeros = torch.ones(1, n, n, dtype=torch.float64), torch.zeros(1, n, n, dtype=torch.float64)
        for _ in range(4 * n):
            euler = m + _transport(m, ones, zeros) / (4 * n)
            m = 0.5 * (m + euler + _transport(euler, ones, zeros) / (4 * n))
        errors.append(float((m - start).abs().mean()))
        assert float(m.mean()) == pytest.approx(2.0, abs=1e-12)
        assert m.min() >= start.min() - 1e-12 and m.max() <= start.max() + 1e-12
    assert min(math.log2(a / b) for a, b in pairwise(errors)) > 1.8, errors


def test_particles_keep_their_bounds_under_a_strong_force_and_few_frames():
    """Five times the drawn force moves a flow at rest several cells a step, were its speed looked at once a frame."""
    equation = Incompressible(points=64)
    start = equation.start(0, [0], 64)
    start[:, 0] = 0.0
    end = equation.roll(start, 5 * equation.force(0, [0], 64), times(1.0, 2.0))
    particles = start[:, 1]
    assert end[..., 2].min() >= particles.min() - 1e-12 and end[..., 2].max() <= particles.max() + 1e-12
    assert end[..., :2].abs().max() > 1.0  # it does move


def test_what_flows_into_a_cell_flows_out():
    w = Vorticity().start(0, range(2), 64)
    x_face, y_face = vorticity.face_velocities(torch.fft.rfft2(w), 64)
    divergence = x_face - x_face.roll(1, -2) + y_face - y_face.roll(1, -1)
    assert divergence.abs().max() < 1e-13
    centre = vorticity.velocities(torch.fft.rfft2(w), 64)[:, 0]
    assert ((x_face + x_face.roll(1, -2)) / 2 - centre).norm() < 0.01 * centre.norm()  # the right way around


def test_force_and_start_have_the_stated_sizes():
    """0.4 and 0.15 for each component; the standard error over 100 samples is about 2 %."""
    equation = Incompressible(points=32)
    assert float(equation.force(0, range(100), 48).std()) == pytest.approx(0.4, rel=0.05)
    w = equation.start(0, range(100), 64)[:, 0]
    assert float(vorticity.velocities(torch.fft.rfft2(w), 64).std()) == pytest.approx(0.15, rel=0.1)


def test_a_balanced_force_holds_a_vortex_where_it_is():
    """f = 8π²ν V makes Taylor-Green's vortices V steady."""
    x = angles(64)
    w = -4 * math.pi * torch.cos(x)[:, None] * torch.cos(x)
    v = torch.stack((torch.cos(x)[:, None] * torch.sin(x), -torch.sin(x)[:, None] * torch.cos(x)))[None]
    start = torch.stack((w, torch.ones_like(w)))[None]
    end = Incompressible().roll(start, 8 * math.pi**2 * 0.01 * v, times(0.5))[0, 0]
    assert (end[..., :2].movedim(-1, 0) - v[0]).abs().max() < 1e-10
    assert (end[..., 2] - 1).abs().max() < 1e-12
