"""Compressible flow against exact Riemann solutions, travelling waves, viscous decay and its conservation laws."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from ups.equations import Compressible1D, Compressible2D
from ups.equations.base import balance
from ups.equations.schemes.euler import GAMMA, conserved
from ups.equations.schemes.muscl import heun
from ups.errors import UserError

TWO_PI = 2 * math.pi
IDEAL = {"eta": 0.0, "zeta": 0.0}
State = tuple[float, float, float]  # density, pressure, velocity


def cells(n: int) -> torch.Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def orders(errors: list[float]) -> list[float]:
    return [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]


def at(time: float) -> torch.Tensor:
    return torch.tensor([time], dtype=torch.float64)


def exact_riemann(left: State, right: State, speed: torch.Tensor) -> torch.Tensor:
    """Density, pressure and velocity along the rays x/t = speed (Toro, chapter 4), the middle pressure by bisection."""

    def curve(p: float, state: State) -> float:
        """How much the gas is accelerated when its pressure goes from the state's to p."""
        rho, p0, _ = state
        if p > p0:
            return (p - p0) * math.sqrt(2 / ((GAMMA + 1) * rho) / (p + (GAMMA - 1) / (GAMMA + 1) * p0))
        c = math.sqrt(GAMMA * p0 / rho)
        return 2 * c / (GAMMA - 1) * ((p / p0) ** ((GAMMA - 1) / (2 * GAMMA)) - 1)

    low, high = 1e-14, 10 * max(left[1], right[1]) + 10 * max(left[0], right[0]) * (right[2] - left[2]) ** 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if curve(middle, left) + curve(middle, right) + right[2] - left[2] < 0 else (low, middle)
        )
    p = (low + high) / 2
    u = (left[2] + right[2] + curve(p, right) - curve(p, left)) / 2

    def half(state: State, mirrored: torch.Tensor, flow: float) -> torch.Tensor:
        """The solution left of the contact, for a state on the left."""
        rho, p0, u0 = state
        c = math.sqrt(GAMMA * p0 / rho)
        ratio = (GAMMA - 1) / (GAMMA + 1)
        if p > p0:
            star = rho * (p / p0 + ratio) / (ratio * p / p0 + 1)
            shock = u0 - c * math.sqrt((GAMMA + 1) / (2 * GAMMA) * p / p0 + (GAMMA - 1) / (2 * GAMMA))
            behind = mirrored > shock
            values = [torch.where(behind, b, a) for a, b in ((rho, star), (p0, p), (u0, flow))]
            return torch.stack([v.double() for v in values])
        star = rho * (p / p0) ** (1 / GAMMA)
        head, tail = u0 - c, flow - math.sqrt(GAMMA * p / star)
        inside = 2 / (GAMMA + 1) + ratio / c * (u0 - mirrored)
        fan = (
            rho * inside.clamp_min(0) ** (2 / (GAMMA - 1)),
            p0 * inside.clamp_min(0) ** (2 * GAMMA / (GAMMA - 1)),
            2 / (GAMMA + 1) * (c + (GAMMA - 1) / 2 * u0 + mirrored),
        )
        ends = ((rho, star), (p0, p), (u0, flow))
        picked = [
            torch.where(mirrored < head, torch.full_like(mirrored, a), torch.where(mirrored > tail, b, f))
            for (a, b), f in zip(ends, fan, strict=True)
        ]
        return torch.stack(picked)

    on_left = half(left, speed, u)
    on_right = half((right[0], right[1], -right[2]), -speed, -u) * torch.tensor([[1.0], [1.0], [-1.0]])
    return torch.where(speed < u, on_left, on_right)


def test_the_reference_itself_keeps_the_jump_conditions():
    """Across each discontinuity of the reference, s[U] = [F]; and its rarefaction is isentropic."""
    left, right = (1.0, 1.0, 0.0), (0.125, 0.1, 0.0)
    speed = torch.linspace(-3, 3, 60001, dtype=torch.float64)
    w = exact_riemann(left, right, speed)
    jumps = (w[0].diff().abs() > 1e-2).nonzero()[:, 0].tolist()
    assert len(jumps) == 2  # contact and shock
    u = conserved(w[None])[0]
    flux = torch.stack((u[2], (u[1] + w[1]) * w[2], u[2] * w[2] + w[1]))
    for i in jumps:
        assert torch.allclose(speed[i] * (u[:, i + 1] - u[:, i]), flux[:, i + 1] - flux[:, i], atol=2e-4)
    before_contact = speed < speed[jumps[0]]
    entropy = (w[1] / w[0] ** GAMMA)[before_contact]
    assert float(entropy.max() - entropy.min()) < 1e-12


RIEMANN = {
    "sod": ((1.0, 1.0, 0.0), (0.125, 0.1, 0.0), 0.4),
    "strong": ((1.0, 1000.0, 0.0), (1.0, 0.01, 0.0), 0.02),
    "receding": ((1.0, 0.4, -0.8), (1.0, 0.4, 0.8), 0.3),
}


@pytest.mark.parametrize("problem", RIEMANN)
def test_riemann_problems_converge_to_the_exact_solution(problem):
    """A shock or contact is wrong in a few cells, so the mean error falls nearly as dx; contacts spread as dx^(2/3)."""
    left, right, t = RIEMANN[problem]
    errors = []
    for n in (100, 200, 400):
        x = 2 * cells(n) - 1
        states = torch.tensor([left, right], dtype=torch.float64)
        start = torch.where(x < 0, states[0, :, None], states[1, :, None])[None]
        equation = Compressible1D(points=n, initial="shock", boundary_kind="open", **IDEAL)
        rolled = equation.roll(start, at(t))[0, 0]
        exact = exact_riemann(left, right, x / t)
        errors.append(((rolled - exact).abs().mean(-1) / (exact.amax(-1) - exact.amin(-1))).tolist())
    for channel in range(3):
        of_channel = [e[channel] for e in errors]
        assert min(orders(of_channel)) > 2 / 3 - 0.1, (channel, errors)
        assert of_channel[-1] < 5 / 400, (channel, errors)  # of the range: five wholly wrong cells


def test_a_density_wave_travels_at_second_order():
    errors = []
    for n in (64, 128, 256):
        equation = Compressible1D(points=n, **IDEAL)

        def wave(t: float, n: int = n) -> torch.Tensor:
            """Exact averages over the cells of 1 + 0.3 sin(π(x − t)): points' values times the window's transform."""
            x = 2 * cells(n) - 1
            density = 1 + 0.3 * float(torch.sinc(torch.tensor(1 / n))) * torch.sin(math.pi * (x - t))
            return torch.stack((density, torch.ones(n).double(), torch.ones(n).double()))[None]

        errors.append(float((equation.roll(wave(0), at(0.25))[:, 0, 0] - wave(0.25)[:, 0]).abs().mean()))
    assert min(orders(errors)) > 1.9, (orders(errors), errors)


def test_a_diagonal_density_wave_travels_at_second_order():
    errors = []
    for n in (32, 64, 128):
        equation = Compressible2D(points=n, **IDEAL)

        def wave(t: float, n: int = n) -> torch.Tensor:
            x = cells(n)
            density = 1 + 0.3 * torch.sinc(torch.tensor(1 / n)).double() ** 2 * torch.sin(
                TWO_PI * (x[:, None] + x - 2 * t)
            )
            flat = torch.ones_like(density)
            return torch.stack((density, flat, flat, flat))[None]

        errors.append(float((equation.roll(wave(0), at(0.05))[:, 0, 0] - wave(0.05)[:, 0]).abs().mean()))
    assert min(orders(errors)) > 1.9, (orders(errors), errors)


def taylor_green(n: int, speed: float, mach: float) -> torch.Tensor:
    x = TWO_PI * cells(n)
    vx = speed * x.sin()[:, None] * x.cos()
    vy = -speed * x.cos()[:, None] * x.sin()
    p0 = speed**2 / (GAMMA * mach**2)
    p = p0 + speed**2 / 4 * ((2 * x).cos()[:, None] + (2 * x).cos())
    return torch.stack((torch.ones_like(p), p, vx, vy))[None]


@pytest.mark.parametrize(("eta", "t"), [(0.05, 0.1), (1.0, 0.02)])
def test_vortices_decay_by_the_shear_viscosity(eta, t):
    """Taylor and Green's vortices of a slow flow decay as exp(−2 (2π)² η t/ρ), whatever the bulk viscosity."""
    n = 32
    start = taylor_green(n, 0.1, 0.1)
    rolled = Compressible2D(points=n, eta=eta, zeta=eta).roll(start, at(t))[0, 0]
    rate = -math.log(float(rolled[2:].norm() / start[0, 2:].norm())) / t
    # The stencil sees k² smaller by (k dx)²/12 = 0.3 %; density varies by M² = 1 %; the limiter adds at extrema.
    assert rate == pytest.approx(2 * TWO_PI**2 * eta, rel=0.03)


def test_stages_of_their_own_give_what_short_steps_give():
    """The viscous terms in the flux, with steps short enough for it, against split steps twenty times as long."""
    n, eta, t = 32, 0.2, 0.02
    equation = Compressible2D(points=n, eta=eta, zeta=0.1)
    start = taylor_green(n, 1.0, 0.5)
    start[:, 0] += 0.3 * (TWO_PI * cells(n)).sin()
    gas, u = equation.gas((n, n)), conserved(start)
    steps = math.ceil(t / float(0.45 / gas.fastest_decay(u)))
    assert steps > 5 * t / float(gas.longest(u))
    short = torch.tensor([t / steps], dtype=torch.float64)
    for _ in range(steps):
        u = gas.step(u, short)
    split = conserved(equation.roll(start, at(t))[:, 0])
    # two splittings differ by dt² of the long steps, of which there are about ten: (1/10)² of the change at most
    assert float((split - u).norm() / (u - conserved(start)).norm()) < 0.01


def test_sound_decays_by_both_viscosities():
    """A standing wave of sound of wave number k decays as exp(−½ (4η/3 + ζ) k² t/ρ): no heat is conducted."""
    n, eta, zeta, k = 96, 0.02, 0.05, math.pi
    c = math.sqrt(GAMMA)
    equation = Compressible1D(points=n, eta=eta, zeta=zeta)
    x = 2 * cells(n) - 1
    start = torch.stack((torch.ones(n).double(), torch.ones(n).double(), 1e-3 * torch.sin(k * x)))[None]
    damping = (4 / 3 * eta + zeta) * k**2 / 2
    frequency = math.sqrt((c * k) ** 2 - damping**2)
    t = TWO_PI / frequency
    rolled = equation.roll(start, at(t))[0, 0, 2]
    amplitude = float((rolled * torch.sin(k * x)).mean() * 2 / 1e-3)
    assert -math.log(amplitude) / t == pytest.approx(damping, rel=0.02)


def test_viscosity_heats_what_it_slows():
    """Without a boundary, the energy of the motion becomes heat: the total is kept, and pressure rises by ⅔ of it."""
    n = 32
    equation = Compressible2D(points=n, eta=0.5, zeta=0.1)
    start = taylor_green(n, 0.5, 0.3)
    rolled = equation.roll(start, at(0.1))[:, 0]
    motion = [float((w[:, :1] * w[:, 2:].square()).sum(1).mean() / 2) for w in (start, rolled)]
    heat = float(rolled[:, 1].mean() - start[:, 1].mean())
    assert motion[1] < 0.01 * motion[0]
    assert heat == pytest.approx((GAMMA - 1) * (motion[0] - motion[1]), rel=1e-9)


@pytest.mark.parametrize(
    "equation",
    [
        Compressible1D(points=64, eta=1e-8, zeta=1e-8),
        Compressible1D(points=64, eta=0.1, zeta=0.1),
        Compressible2D(points=16, M=1.0),
        Compressible2D(points=16, M=1.0, eta=0.1, zeta=0.1),
    ],
)
def test_mass_momentum_and_energy_are_conserved(equation):
    start = equation.start(0, range(4))
    before, after = (conserved(w) for w in (start, equation.roll(start, at(0.1))[:, 0]))
    drift = (after - before).flatten(2).mean(-1).abs()
    size = conserved(start).abs().flatten(2).mean(-1)
    assert (drift <= 1e-12 * size.amax(1, keepdim=True)).all()  # 10⁴ roundings that mostly cancel
    task = equation.task()
    assert [i.channel for i in task.invariants] == ["density"] and task.channels[0].transform == "log"


@pytest.mark.parametrize(
    "equation",
    [
        Compressible1D(points=33, eta=1e-8, zeta=1e-8, frames=3, duration=0.1),
        Compressible1D(points=33, initial="shock", boundary_kind="open", eta=0.1, frames=3, duration=0.1),
        Compressible2D(points=15, M=1.0, eta=0.05, frames=3, duration=0.05),
        Compressible2D(points=15, initial="turbulent", frames=3, duration=0.05),
    ],
)
def test_trajectories_do_not_depend_on_their_batch(equation):
    whole = equation.solve(3, range(7)).values
    pieces = [equation.solve(3, ids).values for ids in ([0], range(1, 3), range(3, 7))]
    assert torch.equal(whole, torch.cat(pieces))
    assert whole.shape == (7, 3, *equation.grid.shape, len(equation.channels))
    assert (whole[..., :2] > 0).all()


def test_a_step_that_would_empty_a_cell_is_taken_at_first_order():
    """Gas torn apart to the verge of vacuum: the full step fails here, the mended one conserves and stays positive."""
    n = 64
    equation = Compressible1D(points=n, **IDEAL)
    x = cells(n)
    start = torch.stack((1 + 0.9 * (8 * math.pi * x).sin().sign(), torch.full_like(x, 1e-6), (TWO_PI * x).sin() * 3))
    start[1, ::7] = 10.0
    gas, u = equation.gas((n,)), conserved(start[None])
    dt = torch.tensor([2.0 * float(gas.longest(u))], dtype=torch.float64)
    assert not gas.admissible(u + dt * gas.rate(u, None)).all()
    stepped = heun(gas, u, dt)
    assert gas.admissible(stepped).all()
    assert torch.allclose(stepped.sum(-1), u.sum(-1), rtol=1e-13, atol=1e-11)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("channel", range(4))
def test_only_finite_positive_states_are_admissible(channel: int, bad: float):
    gas = Compressible2D(points=8).gas((8, 8))
    u = conserved(torch.ones(1, 4, 8, 8, dtype=torch.float64))
    assert gas.admissible(u).all()
    u[0, channel, 3, 4] = bad
    moving = channel >= 2 and math.isfinite(bad)  # momentum may be anything that is finite
    assert bool(gas.admissible(u)[0, 3, 4]) == moving and gas.admissible(u).sum() == 63 + moving


def test_a_step_beyond_the_method_is_refused():
    equation = Compressible1D(points=32, **IDEAL)
    gas, u = equation.gas((32,)), conserved(equation.start(0, [0])[:, :, :32])
    with pytest.raises(UserError, match="first order"):
        heun(gas, u, 1000 * gas.longest(u))
    with pytest.raises(UserError, match="positive"):
        equation.roll(-equation.start(0, [0]), at(0.1))


def test_a_drawn_shock_problem_meets_its_exact_solution():
    equation = Compressible1D(points=400, initial="shock", boundary_kind="open", frames=2, duration=0.04, **IDEAL)
    batch = equation.solve(0, range(3))
    first, last = batch.values[:, 0].double(), batch.values[:, 1].double()
    x = equation.grid.positions[0]
    for row in range(3):
        left, right = (tuple(first[row, i].tolist()) for i in (0, -1))
        between = (first[row, :, 0] - right[0]) / (left[0] - right[0])
        edge = -1 + float(between.sum()) * 2 / 400
        exact = exact_riemann(left, right, (x - edge) / 0.04).T
        error = (last[row] - exact).abs().mean(0) / (exact.amax(0) - exact.amin(0))
        assert float(error.max()) < 5 / 400


def spectral(field: torch.Tensor, dim: int, length: float) -> torch.Tensor:
    n = field.shape[dim]
    wave = 2j * math.pi / length * torch.fft.fftfreq(n, 1 / n).double()
    shape = [1] * field.dim()
    shape[dim] = n
    return torch.fft.ifft(wave.reshape(shape) * torch.fft.fft(field, dim=dim), dim=dim).real


def exact_rate(w: torch.Tensor, eta: float, zeta: float, length: float) -> torch.Tensor:
    """The equations in their primitive, not conservative form, differentiated in Fourier space. w: (B, C, *space)."""
    dims = list(range(1, w.dim() - 1))
    rho, p, v = w[:, 0], w[:, 1], [w[:, 2 + i] for i in range(len(dims))]
    grad = [[spectral(vi, d, length) for d in dims] for vi in v]
    div = sum(grad[i][i] for i in range(len(dims)))
    rates = [-rho * div - sum(vi * spectral(rho, d, length) for vi, d in zip(v, dims, strict=True))]
    heating = torch.zeros_like(rho)
    for i in range(len(dims)):
        for j in range(len(dims)):
            stress = eta * (grad[i][j] + grad[j][i]) + (i == j) * (zeta - 2 / 3 * eta) * div
            heating = heating + stress * grad[i][j]
    convected = sum(vi * spectral(p, d, length) for vi, d in zip(v, dims, strict=True))
    rates.append(-convected - GAMMA * p * div + (GAMMA - 1) * heating)
    for i, d in enumerate(dims):
        laplacian = sum(spectral(spectral(v[i], e, length), e, length) for e in dims)
        force = -spectral(p, d, length) + eta * laplacian + (zeta + eta / 3) * spectral(div, d, length)
        rates.append(force / rho - sum(vj * g for vj, g in zip(v, grad[i], strict=True)))
    return torch.stack(rates, 1)


@pytest.mark.parametrize("kind", [Compressible1D, Compressible2D])
def test_the_rate_is_that_of_the_equations_at_second_order(kind):
    errors = []
    for n in (32, 64, 128):
        equation = kind(points=n, eta=0.3, zeta=0.2)
        x, dimension = TWO_PI * cells(n), len(equation.extent)
        a, b = (x, 2 * x + 1) if dimension == 1 else (x[:, None] + 0 * x, x + 0 * x[:, None])
        fields = [1 + 0.3 * (a + b).sin(), 2 + 0.5 * (a - b).cos(), (a + 1).sin() * b.cos(), (b + 2).sin() + a.cos()]
        w = torch.stack(fields[: 2 + dimension])[None]
        low, high = equation.extent[0]
        exact = exact_rate(w, 0.3, 0.2, high - low)
        rate = equation.rate(w.movedim(1, -1), {}).movedim(-1, 1)
        errors.append(float((rate - exact).norm() / exact.norm()))
        assert abs(float(rate[:, 0].sum())) < 1e-10 * float(rate[:, 0].abs().sum())
    assert min(orders(errors)) > 1.9 and errors[-1] < 5e-3, errors


def test_a_true_solution_balances_and_a_mirrored_one_does_not():
    equation = Compressible2D(points=32, frames=11, duration=0.02, eta=0.05, zeta=0.05, initial="turbulent", M=0.5)
    batch = equation.solve(0, range(2))
    wrong = replace(batch, values=batch.values.flip(2))
    true, false = (
        balance(equation, b.values, b.times, b.static).square().mean((1, 2, 3)).sqrt() for b in (batch, wrong)
    )
    assert (false[:, 2:] > 5 * true[:, 2:]).all()


def test_a_coarse_solution_starts_from_conserved_means():
    equation = Compressible1D(points=64, frames=3, duration=0.05)
    batch = equation.solve(0, range(2))
    coarse = equation.coarse(batch, 16)
    assert coarse.shape == (2, 3, 16, 3)
    fine, few = (conserved(v[:, 0].double().movedim(-1, 1)).mean(-1) for v in (batch.values, coarse))
    assert torch.allclose(fine, few, rtol=1e-6)
    assert torch.allclose(equation.coarse(batch, 64)[:, 1:].float(), batch.values[:, 1:], rtol=1e-4, atol=1e-4)
    with pytest.raises(UserError, match="divide"):
        equation.coarse(batch, 24)


def test_names_are_the_published_ones():
    assert Compressible1D(eta=1e-8, zeta=1e-8).published_name == "1D_CFD_Rand_Eta1.e-8_Zeta1.e-8_periodic_Train.hdf5"
    shock = Compressible1D(eta=0.1, zeta=0.1, initial="shock", boundary_kind="open")
    assert shock.published_name == "1D_CFD_Shock_Eta0.1_Zeta0.1_trans_Train.hdf5"
    assert Compressible2D().published_name == "2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_128_Train.hdf5"
    turbulent = Compressible2D(points=512, eta=1e-8, zeta=1e-8, M=1.0, initial="turbulent")
    assert turbulent.published_name == "2D_CFD_Turb_M1.0_Eta1e-08_Zeta1e-08_periodic_512_Train.hdf5"


@pytest.mark.parametrize(
    "wrong",
    [
        {"eta": -1.0},
        {"zeta": math.nan},
        {"eta": 100.0},
        {"M": 0.001},
        {"M": math.inf},
        {"initial": "shock"},
        {"boundary_kind": "wall"},
        {"points": 2},
        {"duration": 0.0},
    ],
)
def test_senseless_equations_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Compressible2D(**wrong)


def test_a_periodic_shock_is_refused():
    with pytest.raises(UserError, match="boundary_kind='open'"):
        Compressible1D(initial="shock")


def test_times_must_increase():
    with pytest.raises(UserError, match="increasing"):
        Compressible1D(points=16).solve(0, [0], torch.tensor([0.01, 0.005], dtype=torch.float64))
