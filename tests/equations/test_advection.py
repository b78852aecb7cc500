"""Advection is exact: the initial function, moved."""

import pytest
import torch

from ups.equations import Advection, RandomWaves
from ups.errors import UserError

HALF_ULP = 2.0**-24 * 4  # float32 storage of values up to 4


@pytest.mark.parametrize("beta", [0.1, 1.0, -0.7])
def test_the_solution_is_the_initial_function_at_x_minus_beta_t(beta):
    equation = Advection(points=64, beta=beta, frames=5, duration=2.0)
    batch = equation.solve(0, range(6))
    waves = RandomWaves.draw(0, range(6))
    for frame, t in enumerate(equation.times.tolist()):
        expected = waves(equation.grid.positions[0] - beta * t)
        assert torch.allclose(batch.values[:, frame, :, 0].double(), expected, atol=HALF_ULP, rtol=0)


def test_a_wave_comes_back_after_one_period():
    batch = Advection(points=64, beta=1.0, frames=3, duration=2.0).solve(0, range(20))
    # The window is 2e-9 high at the seam and has slope 50 elsewhere: rounding alone separates the frames.
    assert torch.allclose(batch.values[:, 0], batch.values[:, 2], atol=2 * HALF_ULP, rtol=0)


def test_the_mean_is_kept_to_the_tasks_tolerance():
    equation = Advection(points=128, beta=0.4)
    mean = equation.solve(0, range(400)).values.double().mean(2)
    tolerance = equation.task().invariants[0].tolerance * 0.79
    assert float((mean - mean[:, :1]).abs().max()) < tolerance


def test_a_batch_says_what_it_is():
    equation = Advection(points=32, beta=0.4, frames=3, duration=1.0)
    batch = equation.solve(5, [4, 2])
    assert batch.task == "advection" and batch.values.dtype == torch.float32
    assert batch.values.shape == (2, 3, 32, 1) and batch.times.tolist() == [[0.0, 0.5, 1.0]] * 2
    assert batch.parameters["beta"].tolist() == [0.4, 0.4] and batch.ids.tolist() == [4, 2]
    assert equation.published_name == "1D_Advection_Sols_beta0.4.hdf5"
    assert equation.task().dt == 0.5


def test_trajectories_do_not_depend_on_their_batch():
    equation = Advection(points=32)
    whole = equation.solve(0, range(7)).values
    assert torch.equal(whole[3:5], equation.solve(0, [3, 4]).values)


@pytest.mark.parametrize(
    "wrong",
    [{"points": 2}, {"frames": 1}, {"duration": 0.0}, {"beta": float("nan")}, {"beta": -1e6}],
)
def test_senseless_equations_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Advection(**wrong)
