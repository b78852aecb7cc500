"""States recovered from sensors: the known optimum where all is linear, and what a user may get wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ups.data.prepare.statistics import Scale, Statistics
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, TaskSpec
from ups.models.predictor import Persistence
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.descent import least
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator

GRID = Grid.cell_centred((16,))
CHANNELS = (Channel("u"), Channel("v"))
SPEC = TaskSpec("waves", 1, CHANNELS, Boundary.all("periodic", 1), 1 / 4, parameters=("beta",), dt=0.1)
SCALES = {"u": Scale(0.0, 1.0, 1.0, (0.2,)), "v": Scale(0.0, 2.0, 2.0, (0.4,))}
LEARNED = TrainedTask(SPEC, GRID, Statistics("waves", 1, 0.1, (1,), SCALES), {"beta": (0.1, 1.0)}, (0.1,))
BETA = {"beta": 0.4}
POINTS = GRID.points()[[1, 6, 12]]


@pytest.fixture(scope="module")
def still() -> Simulator:
    """Nothing moves: the states are linear in the start."""
    return Simulator(Persistence((LEARNED,))).to(torch.float64)


@pytest.fixture(scope="module")
def moving() -> Simulator:
    settings = {"width": 4, "depth": 1, "modes": 2, "head": 4, "conditions": 4}
    model = ModelSpec("spectral", settings, (LEARNED,)).build(0)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.3)
    return Simulator(OperatorPredictor(model.requires_grad_(False), (LEARNED,))).to(torch.float64)


def smooth(count: int, seed: int) -> Tensor:
    """Three waves of random size in each channel."""
    k, x = torch.arange(1, 4), GRID.points()[:, 0]
    waves = torch.cat([(2 * torch.pi * k[:, None] * x).sin(), (2 * torch.pi * k[:, None] * x).cos()])
    sizes = torch.randn(count, 2, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.einsum("ncw,wx->nxc", sizes, waves.double()) * torch.tensor([0.5, 1.0])


def test_each_function_of_a_batch_finds_its_own_least_value_whatever_stands_beside_it() -> None:
    def rosenbrock(x: Tensor) -> Tensor:
        return 100 * (x[:, 1] - x[:, 0] ** 2) ** 2 + (1 - x[:, 0]) ** 2 + 1e-3

    starts = torch.tensor([[-1.2, 1.0], [2.0, -3.0], [0.0, 0.0]], dtype=torch.float64)
    found = least(rosenbrock, starts, 150)
    assert torch.allclose(found, torch.ones_like(found), atol=1e-4)
    for start, end in zip(starts, found, strict=True):
        assert torch.allclose(least(rosenbrock, start[None], 150)[0], end, atol=1e-4)


def posterior(states: Tensor, read: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the state by Kalman's formula, from T frames (T, P, C) of what never moves."""
    apart = (states - states.mean(0)).flatten(1) / (len(states) - 1) ** 0.5
    covariance = apart.T @ apart
    places = [2 * i + c for i in (1, 6, 12) for c in range(2)]
    own, error = covariance[:, places], torch.diag((noise**2).repeat(3)) / len(read)
    gain = own @ torch.linalg.inv(own[places] + error)
    mean = states.mean(0).flatten()
    return mean + gain @ (read.mean(0).flatten() - mean[places]), covariance - gain @ own.T


def test_where_all_is_linear_the_state_is_kalmans_and_members_have_its_spread(still: Simulator) -> None:
    states, truth, noise = smooth(40, 0), smooth(1, 1)[0], torch.tensor([0.1, 0.3], dtype=torch.float64)
    read = truth[[1, 6, 12]] + noise * torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(2)).double()
    mean, covariance = posterior(states, read, noise)
    known: dict[str, Any] = {"conditions": BETA, "noise": noise, "states": states}
    times = [0.0, 0.1, 0.2, 0.5]
    one = still.assimilate(read, POINTS, times, **known)
    assert one.values.shape == (4, 16, 2) and one.times.tolist() == times and one.misfit.shape == ()
    assert torch.allclose(one.values[0].flatten(), mean, atol=1e-6)
    many = still.assimilate(read, POINTS, times, members=400, **known)
    spread = covariance.diagonal().sqrt()
    assert bool(((many.mean[0].flatten() - mean).abs() < 4 * spread / 400**0.5).all())
    assert bool(((many.spread[0].flatten() / spread - 1).abs() < 4 / 800**0.5).all())


def test_what_moves_past_five_sensors_tells_six_waves_and_a_batch_is_as_each_alone(
    moving: Simulator, still: Simulator
) -> None:
    truth, points = smooth(2, 3), torch.tensor([[0.03], [0.21], [0.44], [0.61], [0.78]])  # between the grid's
    times = [0.1 * step for step in range(6)]
    right = moving.rollout(truth, times=times, conditions=BETA).values
    read = moving.rollout(truth, times=times, conditions=BETA, at=points).values
    known: dict[str, Any] = {"conditions": BETA, "states": smooth(40, 0), "noise": 0.01}

    both, unmoved = (sim.assimilate(read, points, times, **known) for sim in (moving, still))
    missing, without = (float((found.values - right)[:, 0].norm() / right[:, 0].norm()) for found in (both, unmoved))
    assert missing < 0.02 and without > 0.2
    assert both.values.shape == right.shape and both.misfit.shape == (2,) and float(both.misfit.max()) < 1
    one = moving.assimilate(read[1], points, times, **known)
    torch.testing.assert_close(one.values, both.values[1], atol=1e-3, rtol=0)


def test_sensors_may_see_some_channels_and_the_rest_follows_from_what_states_are_like(still: Simulator) -> None:
    states = smooth(40, 0)
    states[..., 1] = 3 * states[..., 0]  # v tells nothing that u does not
    found = still.assimilate(
        states[7][[1, 6, 12]][None, :, 0], POINTS, [0.0], BETA, channels=["u"], states=states, noise=1e-3
    )
    assert torch.allclose(found.values[..., 1], 3 * found.values[..., 0], atol=1e-8)
    assert torch.allclose(found.values[0, [1, 6, 12], 1], states[7][[1, 6, 12], 1], atol=0.05)


def test_sensors_that_no_state_agrees_with_are_warned_of(still: Simulator) -> None:
    read = torch.randn(3, 3, 2, generator=torch.Generator().manual_seed(0)).double()
    found = still.assimilate(read, POINTS, [0.0, 0.1, 0.2], BETA, states=smooth(9, 0), noise=1e-3)
    assert any("times their noise" in note for note in found.warnings)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"points": [[0.1], [0.5], [1.2]]}, "point 2 has x = 1.2, outside the domain"),
        ({"points": torch.zeros(0, 1)}, "there are no sensors"),
        ({"times": []}, "no times at which they read"),
        ({"times": [0.0, 0.15]}, "time 0.15 lies between frames"),
        ({"times": [0.1, 0.0]}, "times must be increasing"),
        ({"observations": torch.full((2, 3, 2), torch.nan)}, "NaN or infinite"),
        ({"observations": torch.zeros(2, 3, 1)}, "give \\(2, 3, 2\\)"),
        ({"channels": ["w"]}, "no channel 'w'; it has u, v"),
        ({"channels": []}, "name each channel"),
        ({"noise": 0.0}, "give the rms error of sensors"),
        ({"states": None}, "no training data of task 'waves'"),
        ({"states": smooth(1, 0)}, "two at least"),
        ({"members": 0}, "members is 0"),
        ({"conditions": {}}, "needs the condition 'beta'"),
    ],
)
def test_what_cannot_be_assimilated_is_refused_in_a_sentence(still: Simulator, changed: Any, told: str) -> None:
    given: dict[str, Any] = {
        "observations": torch.zeros(2, 3, 2),
        "points": POINTS,
        "times": [0.0, 0.1],
        "conditions": BETA,
        "states": smooth(5, 0),
    }
    with pytest.raises(UserError, match=told):
        still.assimilate(**{**given, **changed})
