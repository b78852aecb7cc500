"""What every smooth two-dimensional equation owes: frames that depend on seed and index alone, and a fair rate."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ups.equations import DiffusionReaction, Equation, GrayScott, Incompressible, Vorticity, Wave
from ups.equations.base import balance
from ups.equations.named import EQUATIONS, named_equation
from ups.errors import UserError

SMALL: list[Equation] = [
    DiffusionReaction(points=32, frames=3, duration=0.1),
    GrayScott(points=32, frames=3, duration=20.0),
    Incompressible(points=32, frames=3, duration=0.1),
    Vorticity(points=32, frames=3, duration=1.0),
    Wave(points=32, frames=3, duration=0.1),
]
named = pytest.mark.parametrize("equation", SMALL, ids=lambda equation: equation.name)


@named
def test_a_trajectory_does_not_depend_on_its_batch(equation: Equation) -> None:
    whole, part = equation.solve(3, range(10)), equation.solve(3, [9, 2])
    assert torch.equal(whole.values[[9, 2]], part.values)
    assert all(torch.equal(whole.static[name][[9, 2]], part.static[name]) for name in equation.static)
    assert not torch.equal(whole.values[0], whole.values[1])


@named
def test_frames_are_what_the_equation_says(equation: Equation) -> None:
    batch = equation.solve(0, [0])
    assert batch.values.shape == (1, 3, 32, 32, len(equation.channels)) and batch.values.dtype == torch.float32
    assert batch.values.isfinite().all() and set(batch.static) == set(equation.static)
    assert set(batch.parameters) == set(equation.parameters)
    assert equation.task().channel_names == equation.channels
    assert all(invariant.channel in equation.channels for invariant in equation.task().invariants)
    for invariant in equation.task().invariants:
        channel = batch.values[..., equation.channels.index(invariant.channel)].double()
        means = channel.mean((2, 3))
        assert (means - means[:, :1]).abs().max() < invariant.tolerance * channel.square().mean().sqrt()


@named
def test_the_coarse_solver_of_the_same_grid_follows_the_stored_solution(equation: Equation) -> None:
    """On the stored points it differs by what those leave out; on half of them by more."""
    batch = equation.solve(0, range(2))
    same, half = (equation.coarse(batch, points) for points in (32, 16))
    assert same.shape == batch.values.shape and half.shape[2:4] == (16, 16)
    change = (batch.values[:, -1] - batch.values[:, 0]).double().norm()
    assert (same[:, -1] - batch.values[:, -1]).norm() < 0.5 * change


@pytest.mark.parametrize(
    "equation",
    [
        DiffusionReaction(points=64, frames=21, duration=0.5),
        GrayScott(points=128, frames=5, duration=4.0),
        Incompressible(points=128, frames=3, duration=0.01),
        Vorticity(points=64, nu=1e-3, frames=5, duration=1.0),
    ],
    ids=lambda equation: equation.name,
)
def test_a_true_solution_balances_and_a_frozen_one_does_not(equation: Equation) -> None:
    """Late frames, which are smooth. What does not move lacks all of the change, so a fifth of it is 20 % error."""
    batch = equation.solve(0, [0])
    late = replace(batch, values=batch.values[:, -2:], times=batch.times[:, -2:])
    frozen = replace(late, values=late.values[:, :1].expand_as(late.values))
    true, wrong = (balance(equation, b.values, b.times, b.static).square().mean().sqrt() for b in (late, frozen))
    assert true < 0.2 * wrong


def test_the_rates_of_conserved_fields_sum_to_zero() -> None:
    for equation in (Incompressible(points=32, frames=2, duration=0.1), Vorticity(points=32, frames=2, duration=1.0)):
        batch = equation.solve(0, range(2))
        rate = equation.rate(batch.values[:, 1].double(), {k: f.double() for k, f in batch.static.items()})
        conserved = [equation.channels.index(invariant.channel) for invariant in equation.task().invariants]
        assert rate.mean((1, 2))[:, conserved].abs().max() < 1e-8 * rate.abs().max()


def test_they_are_known_by_name() -> None:
    for equation in SMALL:
        assert EQUATIONS[equation.name] is type(equation)
    assert named_equation("wave", {"medium": "layer"}) == Wave(medium="layer")


@pytest.mark.parametrize("points", [float("nan"), float("inf"), 16.5, True, "16"])
def test_a_number_of_points_that_is_not_whole_is_refused(points: float | str) -> None:
    with pytest.raises(UserError, match=r"darcy: points is .*; give a whole number"):
        named_equation("darcy", {"points": points})
