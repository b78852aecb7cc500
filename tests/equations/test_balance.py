"""The balance that predictions are scored by: small for true solutions, large for wrong ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ups.equations import Advection, Burgers, Darcy, Equation
from ups.equations.base import balance


@pytest.mark.parametrize("equation", [Advection(points=256, frames=81), Burgers(points=256, nu=0.1, frames=81)])
def test_a_true_solution_balances_and_a_mirrored_one_does_not(equation: Equation) -> None:
    batch = equation.solve(0, range(8))
    wrong = replace(batch, values=batch.values.flip(2))
    true, false = (
        balance(equation, b.values, b.times, b.static).square().mean(tuple(range(1, 4))).sqrt() for b in (batch, wrong)
    )
    smooth = true < 1e-2
    assert smooth.sum() >= 5  # windows and kinks are not resolved by any stencil
    assert (false > 5 * true)[smooth].all()


@pytest.mark.parametrize("equation", [Advection(points=64, frames=5), Burgers(points=64, nu=0.1, frames=5)])
def test_a_rate_of_a_conserved_field_sums_to_zero(equation: Equation) -> None:
    state = equation.solve(0, range(4)).values[:, 1].double()
    rate = equation.rate(state, {})
    assert rate.sum(1).abs().max() < 1e-10 * rate.abs().max()


def test_the_residual_of_a_steady_solution_is_what_the_solver_allows() -> None:
    darcy = Darcy(points=32)
    batch = darcy.solve(0, range(4))
    scale = darcy.operator(batch.static["a"].double(), batch.values[:, 0, ..., 0].double()).abs().max()
    # stored in float32: each value is off by 6e-8 of itself, and the stencil takes differences of 4 n² of them
    assert (
        balance(darcy, batch.values, batch.times, batch.static).abs().max()
        < 8 * 32**2 * 6e-8 * batch.values.abs().max() * 2 + 1e-6 * scale
    )
