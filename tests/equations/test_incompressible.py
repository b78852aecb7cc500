"""Flow between walls against benchmarks of others, exact solutions, smaller steps and finer grids."""

import math
from itertools import pairwise

import pytest
import torch

from ups.equations import Incompressible
from ups.equations.incompressible import _transport
from ups.equations.schemes import staggered
from ups.errors import UserError

STOKES = 52.34469  # first eigenvalue of Stokes' operator on the unit square: that of a clamped plate's buckling


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def last(v: torch.Tensor, force: torch.Tensor, nu: float, dt: float, steps: int) -> torch.Tensor:
    return list(staggered.march(v, force, nu, dt, steps))[-1]


def vortex(n: int) -> torch.Tensor:
    """Of ψ = sin²πx sin²πy/π at the corners: at rest on the walls."""
    square = torch.sin(math.pi * torch.arange(1, n + 1, dtype=torch.float64) / n).square()
    psi = square[:, None] * square / math.pi
    return n * torch.stack((psi - psi.roll(1, -1), psi.roll(1, -2) - psi))[None]


def holding_force(n: int, nu: float) -> torch.Tensor:
    """V·∇V − ν∇²V of that vortex on the faces, by hand: it holds the vortex where it is."""

    def force(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (a, a1, a2, a3), (b, b1, b2, b3) = (
            (
                torch.sin(math.pi * s) ** 2,
                math.pi * torch.sin(2 * math.pi * s),
                2 * math.pi**2 * torch.cos(2 * math.pi * s),
                -4 * math.pi**3 * torch.sin(2 * math.pi * s),
            )
            for s in (x, y)
        )
        convected_x = (a * b1 * a1 * b1 - a1 * b * a * b2) / math.pi**2
        convected_y = (-a * b1 * a2 * b + a1 * b * a1 * b1) / math.pi**2
        return convected_x - nu * (a2 * b1 + a * b3) / math.pi, convected_y + nu * (a3 * b + a1 * b2) / math.pi

    face = torch.arange(1, n + 1, dtype=torch.float64) / n
    centre = face - 0.5 / n
    both = torch.stack((force(face[:, None], centre)[0], force(centre[:, None], face)[1]))[None]
    both[:, 0, -1], both[:, 1, :, -1] = 0.0, 0.0
    return both


def cavity(n: int) -> tuple[list[float], list[float]]:
    """u on x = ½ and v on y = ½ at ¼, ½, ¾ in a cavity whose lid moves at speed 1, ν = 0.01, at rest in its frame.

    A lid is a force on the row below it: it drags the fluid half a cell away, 2ν/h² of its speed.
    """
    lid = torch.zeros(1, 2, n, n, dtype=torch.float64)
    lid[:, 0, :-1, -1] = 2 * 0.01 * n**2
    v = last(torch.zeros_like(lid), lid, 0.01, 0.4 / n, 50 * n)[0]

    def at(line: torch.Tensor, place: float) -> float:
        """Between the two centres on either side, by the cubic through four."""
        first = round(place * n) - 2
        return float((line[first : first + 4] * line.new_tensor([-1, 9, 9, -1])).sum() / 16)

    return (
        [at(v[0, n // 2 - 1], place) for place in (0.25, 0.5, 0.75)],
        [at(v[1, :, n // 2 - 1], place) for place in (0.25, 0.5, 0.75)],
    )


def test_a_lid_driven_cavity_is_that_of_others():
    """Re = 100. Marchi, Suero and Araki (2009) extrapolated from 1024² cells; Ghia, Ghia and Shin (1982) are 2 % off.

    Errors of second order fall fourfold from 16 to 32 cells, and what is extrapolated from both is off by a sixteenth.
    """
    marchi = torch.tensor([[-0.141930, -0.209149, 0.027874], [0.179243, 0.057537, -0.227827]])
    coarse, fine = torch.tensor(cavity(16)), torch.tensor(cavity(32))
    away = [(one - marchi).norm() for one in (coarse, fine)]
    assert 3.5 < float(away[0] / away[1]) < 4.5
    assert ((4 * fine - coarse) / 3 - marchi).abs().max() < float(away[1]) / 8
    assert abs(float(fine[0, 1]) + 0.20581) < 0.01  # Ghia's centre


def test_slow_flow_decays_at_stokes_rate():
    """Once the other modes (the next is at 92 or beyond) have died, |V| falls as e^(−52.34 νt)."""
    errors = []
    for n in (16, 32, 64):
        states = list(staggered.march(1e-6 * vortex(n), torch.zeros(1, 2, n, n), 0.1, 0.5 / n, 2 * n))
        rate = math.log(float(states[n].norm() / states[-1].norm())) / (0.1 * 0.5 * (n - 1) / n)
        errors.append(abs(rate - STOKES))
    assert errors[-1] < 1e-3 * STOKES
    assert min(math.log2(a / b) for a, b in pairwise(errors)) > 1.9, errors


def test_a_force_holds_a_vortex_where_it_is_to_second_order():
    errors = []
    for n in (16, 32, 64):
        v = vortex(n)
        errors.append(float((last(v, holding_force(n, 0.01), 0.01, 0.25 / n, 4 * n) - v).norm() / v.norm()))
    assert errors[-1] < 1e-3
    assert min(math.log2(a / b) for a, b in pairwise(errors)) > 1.9, errors


def test_steps_are_of_second_order():
    equation = Incompressible(points=32)
    v, force = 3 * equation.start(0, [0], 32)[:, :2], staggered.at_faces(equation.force(0, [0], 32))
    reference = last(v, force, 0.01, 0.5 / 640, 640)
    errors = [float((last(v, force, 0.01, 0.5 / steps, steps) - reference).norm()) for steps in (20, 40, 80)]
    assert min(math.log2(a / b) for a, b in pairwise(errors)) > 1.9, errors


def test_without_a_force_the_energy_falls_step_by_step_and_what_flows_in_flows_out():
    v = Incompressible(points=32).start(0, range(2), 32)[:, :2]
    energy = v.square().sum((1, 2, 3))
    for moved in staggered.march(v, torch.zeros_like(v), 0.01, 0.02, 50):
        assert staggered.divergence(moved).abs().max() < 1e-12  # velocities of 0.3 over 1/32, to rounding
        assert moved[:, 0, -1].abs().max() == 0 and moved[:, 1, :, -1].abs().max() == 0
        before, energy = energy, moved.square().sum((1, 2, 3))
        assert (energy < before).all()


def test_convection_moves_energy_and_makes_none():
    v = staggered.projected(staggered.at_faces(Incompressible(points=32).force(0, range(2), 32)))[0]
    work = v * staggered.convection(v)
    assert float(work.sum().abs()) < 1e-13 * float(work.abs().sum())


def test_starts_rest_on_the_walls():
    """The faces half a cell from a wall move ever slower as cells shrink, as (d/layer)² across and d/layer along it."""
    along, across = [], []
    for n in (64, 128):
        v = Incompressible(points=n).start(0, range(4), n)[:, :2]
        assert staggered.divergence(v).abs().max() < 1e-11
        along.append(float(v[:, 0, :, [0, -1]].norm() / v[:, 0].norm() * n**0.5))
        across.append(float(v[:, 0, [0, -2]].norm() / v[:, 0].norm() * n**0.5))
    assert 1.7 < along[0] / along[1] < 2.3 and 3.0 < across[0] / across[1] < 5.0


def test_force_and_start_have_the_stated_sizes():
    """0.4 for each component of the force; of the 0.15 drawn for V a third of the energy is left by the walls."""
    equation = Incompressible(points=64)
    assert float(equation.force(0, range(100), 48).std()) == pytest.approx(0.4, rel=0.05)
    energy = equation.start(0, range(100), 64)[:, :2].square().mean()
    assert float(energy) / 0.15**2 == pytest.approx(0.35, rel=0.2)


def test_particles_turn_with_a_vortex_and_keep_their_number_and_bounds():
    """Around ψ = sin πx sin πy/π and back, by turning the flow around half way: of second order where m is smooth."""
    errors = []
    for n in (32, 64, 128):
        sine = torch.sin(math.pi * torch.arange(1, n + 1, dtype=torch.float64) / n)
        sine[-1] = 0.0
        psi = sine[:, None] * sine / math.pi
        v = n * torch.stack((psi - psi.roll(1, -1), psi.roll(1, -2) - psi))[None]
        x = (torch.arange(n, dtype=torch.float64) + 0.5) / n
        m = start = (2 + torch.sin(math.pi * x)[:, None] * torch.cos(math.pi * x)).expand(1, n, n)
        for step in range(2 * n):
            flow = v if step < n else -v
            euler = m + _transport(m, flow) / (4 * n)
            m = 0.5 * (m + euler + _transport(euler, flow) / (4 * n))
        errors.append(float((m - start).abs().mean()))
        assert float(m.mean()) == pytest.approx(float(start.mean()), abs=1e-13)
        assert m.min() >= start.min() - 1e-12 and m.max() <= start.max() + 1e-12
    assert min(math.log2(a / b) for a, b in pairwise(errors)) > 1.7, errors


def test_particles_keep_their_bounds_under_a_strong_force_and_few_frames():
    """Ten times the drawn force moves a flow at rest several cells a step, were its speed looked at once a frame."""
    equation = Incompressible(points=64)
    start = equation.start(0, [0], 64)
    start[:, :2] = 0.0
    end = equation.roll_under(start, 10 * equation.force(0, [0], 64), times(0.5, 1.0))
    particles = start[:, 2]
    assert end[..., 2].min() >= particles.min() - 1e-12 and end[..., 2].max() <= particles.max() + 1e-12
    assert (end[..., 2].mean((2, 3)) - particles.mean()).abs().max() < 1e-13
    assert end[..., :2].abs().max() > 0.5  # it does move


def test_a_viscosity_that_no_grid_resolves_is_refused():
    assert Incompressible(nu=0.01).refinement == 1 and Incompressible(points=32).refinement == 2
    for wrong in (1e-8, 0.0, -1.0, math.nan):
        with pytest.raises(UserError, match=r"nu is .*; give"):
            Incompressible(nu=wrong)
