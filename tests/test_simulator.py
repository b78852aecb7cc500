"""The simulator a user holds: any points, any times, differentiable, and honest about what it has not seen."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ups
from ups.cli.simulate import simulate as simulate_command
from ups.data.prepare.statistics import Scale, Statistics
from ups.equations import Advection
from ups.errors import UserError
from ups.fields import Boundary, Channel, Conditions, Grid, TaskSpec, Trajectory
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.simulator import Simulator

WAVES = TaskSpec("waves", 1, (Channel("u"),), Boundary.all("periodic", 1), 1 / 4, parameters=("beta",), dt=0.1)
FLOW = TaskSpec("flow", 2, (Channel("p"),), Boundary.all("value", 2), 1 / 4, static=("a",), steady=True)
SETTINGS = {"width": 4, "depth": 1, "modes": 2, "head": 4, "conditions": 4}


@pytest.fixture(scope="module")
def small() -> Simulator:
    """Eight points and random weights in float64: what gradcheck can afford."""
    scale = Scale(0.0, 1.3, 1.3, (0.4,))
    learned = (
        TrainedTask(
            WAVES,
            Grid.cell_centred((8,)),
            Statistics("waves", 1, 0.1, (1,), {"u": scale}),
            {"beta": (0.1, 1.0)},
            (0.1,),
        ),
        TrainedTask(
            FLOW,
            Grid.cell_centred((4, 4)),
            Statistics("flow", 1, None, (), {"p": Scale(0.1, 0.1, 0.2)}, {"a": Scale(0.5, 0.4, 0.6)}),
            {},
            (),
        ),
    )
    model = ModelSpec("spectral", SETTINGS, learned).build(0)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.3)
    return Simulator(OperatorPredictor(model.requires_grad_(False), learned)).to(torch.float64)


def test_a_rollout_is_differentiable_in_the_start_and_the_parameter(small: Simulator) -> None:
    u0 = torch.randn(2, 8, 1, dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    points = torch.tensor([[0.11], [0.64]], dtype=torch.float64)

    def values(u0: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        return small.rollout(u0, times=[0.1, 0.25], conditions={"beta": beta}, at=points).values

    assert torch.autograd.gradcheck(values, (u0, beta), atol=1e-6)


def test_a_steady_solve_is_differentiable_in_the_static_field(small: Simulator) -> None:
    a = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    points = torch.tensor([[0.3, 0.6]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a: small.rollout(conditions={"a": a}, at=points).values, (a,), atol=1e-6)


def test_a_rollout_in_inference_mode_leaves_a_simulator_that_can_be_differentiated(small: Simulator) -> None:
    tasks = tuple(small.tasks.values())
    model = ModelSpec("spectral", SETTINGS, tasks).build(0).requires_grad_(False)
    fresh = Simulator(OperatorPredictor(model, tasks)).to(torch.float64)
    with torch.inference_mode():
        fresh.rollout(torch.randn(8, 1, dtype=torch.float64), steps=1, conditions={"beta": 0.4})
    u0 = torch.randn(8, 1, dtype=torch.float64, requires_grad=True)
    fresh.rollout(u0, steps=2, conditions={"beta": 0.4}).values.sum().backward()
    assert u0.grad is not None and bool(u0.grad.any())


def test_shapes_follow_what_was_asked(small: Simulator) -> None:
    beta = {"beta": 0.4}
    assert small.rollout(torch.randn(8), steps=3, conditions=beta).values.shape == (3, 8, 1)
    assert small.rollout(torch.randn(8, 1), steps=3, conditions=beta).values.shape == (3, 8, 1)
    assert small.rollout(np.zeros((5, 8, 1)), steps=2, conditions=beta).values.shape == (5, 2, 8, 1)
    assert small.rollout(torch.randn(8), times=[0.0, 0.07], conditions=beta, at=[[0.5]]).values.shape == (2, 1, 1)
    assert small.rollout(conditions={"a": torch.rand(8, 8)}).values.shape == (1, 8, 8, 1)
    assert small.rollout(conditions={"a": torch.rand(3, 4, 4)}).values.shape == (3, 1, 4, 4, 1)


def test_steps_and_times_agree_and_time_zero_is_the_start(small: Simulator) -> None:
    u0 = torch.randn(8, 1, dtype=torch.float64)
    by_steps = small.rollout(u0, steps=3, conditions={"beta": 0.4})
    by_times = small.rollout(u0, times=[0.0, 0.1, 0.3], conditions={"beta": 0.4})
    assert torch.allclose(by_times.values[0], u0, rtol=0, atol=1e-12)
    assert torch.equal(by_times.values[1:], by_steps.values[[0, 2]])
    assert by_steps.times.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_of_a_long_rollout_only_the_times_wanted_are_kept(small: Simulator) -> None:
    u0 = torch.randn(8, 1, dtype=torch.float64)
    of = {"conditions": {"beta": 0.4}}
    assert small.question(u0, times=[2.0, 10.0], **of).states == 2
    assert small.question(u0, times=[3.33], **of).states <= 4  # those around it, which a cubic needs
    every = small.rollout(u0, steps=100, **of).values
    torch.testing.assert_close(small.rollout(u0, times=[2.0, 10.0], **of).values, every[[19, 99]], rtol=0, atol=0)


def test_grid_points_give_what_the_grid_gives(small: Simulator) -> None:
    u0 = torch.randn(8, 1, dtype=torch.float64)
    whole = small.rollout(u0, steps=4, conditions={"beta": 0.4}).values
    points = small.rollout(u0, steps=4, conditions={"beta": 0.4}, at=Grid.cell_centred((8,)).points()).values
    assert torch.allclose(points, whole, rtol=0, atol=1e-12)


def test_a_finer_start_is_stepped_on_the_trained_grid_and_read_on_its_own(small: Simulator) -> None:
    points = Grid.cell_centred((16,)).points()
    fine, coarse = (torch.sin(2 * torch.pi * p + 1) for p in (points, Grid.cell_centred((8,)).points()))
    by_fine = small.rollout(fine, times=[0.0, 0.1, 0.3], conditions={"beta": 0.4})
    by_coarse = small.rollout(coarse, times=[0.0, 0.1, 0.3], conditions={"beta": 0.4}, at=points)
    assert torch.allclose(by_fine.values[0], fine, rtol=0, atol=1e-12)
    assert torch.allclose(by_fine.values[1:], by_coarse.values[1:], rtol=0, atol=1e-12)


def test_a_solution_has_the_prescribed_values_on_walls(small: Simulator) -> None:
    walls = torch.tensor([[0.0, 0.3], [1.0, 0.7], [0.5, 0.0], [0.2, 1.0]], dtype=torch.float64)
    solved = small.rollout(conditions={"a": torch.rand(4, 4)}, at=walls).values
    assert torch.allclose(solved, torch.zeros(1, 4, 1, dtype=torch.float64), rtol=0, atol=1e-15)


def test_a_start_on_another_domain_is_refused(small: Simulator) -> None:
    elsewhere = Grid.cell_centred((8,), ((0.0, 2.0),))
    with pytest.raises(UserError, match=r"spans .* trained on"):
        small.rollout(torch.randn(8), steps=1, conditions={"beta": 0.4}, grid=elsewhere)


def test_a_time_between_steps_is_interpolated_and_said_to_be(small: Simulator) -> None:
    u0 = torch.randn(8, 1, dtype=torch.float64)
    result = small.rollout(u0, times=[0.1, 0.15], conditions={"beta": 0.4})
    steps = small.rollout(u0, steps=3, conditions={"beta": 0.4}).values
    frames = torch.cat([u0[None], steps])
    expected = (-frames[0] + 9 * frames[1] + 9 * frames[2] - frames[3]) / 16
    assert torch.allclose(result.values[1], expected, rtol=0, atol=1e-12)
    assert any("interpolated" in note for note in result.warnings)


def test_a_model_of_a_range_of_lead_times_steps_to_every_time(small: Simulator) -> None:
    tasks = tuple(replace(task, leads=(0.1, 0.4)) if task.leads else task for task in small.tasks.values())
    sim = Simulator(OperatorPredictor(small.predictor.model, tasks))  # pyright: ignore[reportAttributeAccessIssue]
    u0, beta = torch.randn(2, 8, 1, dtype=torch.float64), {"beta": 0.4}
    found = sim.rollout(u0, times=[0.0, 0.15, 0.4], conditions=beta)
    first = sim.rollout(u0, steps=1, dt=0.15, conditions=beta)
    rest = sim.rollout(first.values[:, -1], steps=2, dt=0.125, conditions=beta)
    assert torch.allclose(found.values[:, 0], u0, rtol=0, atol=1e-12)
    assert torch.allclose(found.values[:, 1:], torch.stack([first.values[:, 0], rest.values[:, 1]], 1), atol=1e-12)
    assert found.warnings == first.warnings == rest.warnings == ()
    assert not sim.rollout(u0, steps=1, dt=0.37, conditions=beta).warnings
    (note,) = sim.rollout(u0, steps=1, dt=0.45, conditions=beta).warnings
    assert note == "dt = 0.45 is outside the lead times that task 'waves' was trained on (0.1 to 0.4)"
    (note,) = sim.rollout(
        u0, times=[0.15, 0.2], conditions=beta
    ).warnings  # 0.05 from one to the other: too short a step
    assert "interpolated" in note


def test_what_was_never_seen_is_warned_of(small: Simulator) -> None:
    u0 = torch.randn(8, 1)
    assert small.rollout(u0, steps=1, conditions={"beta": 0.4}).warnings == ()
    assert any("beta = 5" in n for n in small.rollout(u0, steps=1, conditions={"beta": 5.0}).warnings)
    assert any("dt = 0.5" in n for n in small.rollout(u0, steps=1, dt=0.5, conditions={"beta": 0.4}).warnings)


def test_values_that_are_not_finite_are_warned_of(small: Simulator) -> None:
    huge = torch.full((2, 8, 1), 1.7e308, dtype=torch.float64)
    huge[1] = 0.1
    by_times = small.rollout(huge, times=[0.0, 0.1, 0.2], conditions={"beta": 0.4})
    assert bool(by_times.values[:, 0].isfinite().all()) and not bool(by_times.values[:, 1:].isfinite().all())
    assert by_times.warnings == ("step 1: u of task 'waves' has NaN or infinite values; start nearer to trained data",)
    solved = small.rollout(conditions={"a": torch.full((4, 4), 1e308, dtype=torch.float64)})
    assert "p of task 'flow' has NaN or infinite values; give conditions nearer to trained data" in solved.warnings


def test_a_rollout_can_be_transformed_by_torch_func(small: Simulator) -> None:
    u0 = torch.randn(8, 1, dtype=torch.float64)

    def end(u0: torch.Tensor) -> torch.Tensor:
        return small.rollout(u0, steps=2, conditions={"beta": 0.4}).values[-1].square().sum()

    gradient, tangent = torch.func.grad(end)(u0), torch.func.jvp(end, (u0,), (torch.ones_like(u0),))[1]
    assert torch.allclose(gradient.sum(), tangent, rtol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"steps": 2, "conditions": {"bet": 0.4}, "task": "waves"}, "did you mean 'beta'"),
        ({"steps": 2, "task": "waves"}, r"needs the condition 'beta'.* \(--set beta=VALUE\)"),
        ({"task": "flow"}, r"needs the condition 'a'.* \(an array of this name in INPUT\)"),
        ({"steps": 2, "conditions": {}}, r"pass task= \(--task NAME\)"),
        ({"steps": 2, "conditions": {"beta": 0.4}, "task": "sound"}, "no task 'sound'"),
        ({"conditions": {"beta": 0.4}}, r"either steps=N or times=.* \(--steps N or --times T,T,\.\.\.\)"),
        ({"steps": 0, "conditions": {"beta": 0.4}}, "from 1 to 10,000,000"),
        ({"times": [0.1, 1e30], "conditions": {"beta": 0.4}}, r"time 1e\+30 is 1e\+31 steps of 0.1 away"),
        ({"times": [0.2, 0.1], "conditions": {"beta": 0.4}}, "increasing"),
        ({"times": [-0.1], "conditions": {"beta": 0.4}}, "not negative"),
        ({"steps": 1, "conditions": {"beta": 0.4}, "at": [[1.2]]}, "outside the domain"),
        ({"steps": 1, "conditions": {"beta": 0.4}, "at": [[0.2, 0.3]]}, r"\(P, 1\)"),
        ({"steps": 1, "conditions": {"beta": float("nan")}}, "NaN"),
        ({"steps": 1, "conditions": {"beta": torch.rand(3)}}, "one per sample"),
        ({"steps": 1, "conditions": {"beta": "fast"}}, "give numbers"),
        ({"steps": 1.5, "conditions": {"beta": 0.4}}, "whole number"),
        ({"steps": 1, "dt": float("inf"), "conditions": {"beta": 0.4}}, "positive time"),
        ({"steps": 1, "conditions": {"beta": 0.4}, "grid": Grid.cell_centred((9,))}, "must agree"),
    ],
)
def test_mistakes_are_named(small: Simulator, arguments: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        small.rollout(torch.randn(2, 8, 1), **arguments)


def test_a_start_of_the_wrong_shape_or_with_nan_is_refused(small: Simulator) -> None:
    with pytest.raises(UserError, match="u0 has shape"):
        small.rollout(torch.randn(2, 2, 2, 8, 3), steps=1, conditions={"beta": 0.4})
    with pytest.raises(UserError, match=r"5 frames a sample; task 'waves' starts from 1.* such as u0\[:, :1\]"):
        small.rollout(torch.randn(2, 5, 8, 1), steps=1, conditions={"beta": 0.4})
    with pytest.raises(UserError, match="NaN"):
        small.rollout(torch.full((8, 1), torch.nan), steps=1, conditions={"beta": 0.4})
    with pytest.raises(UserError, match=r"needs an initial field; pass u0= \(an array of this name in INPUT\)"):
        small.rollout(steps=1, conditions={"beta": 0.4})


def test_static_fields_of_a_wrong_shape_are_refused(small: Simulator) -> None:
    with pytest.raises(UserError, match=r"'a' has 1 points along an axis; give 4 at least, on x, y"):
        small.rollout(conditions={"a": torch.ones(8, 1)})
    for field in (torch.rand(4), torch.rand(2, 4, 4, 1)):
        with pytest.raises(UserError, match="static field 'a'"):
            small.rollout(conditions={"a": field})
    with pytest.raises(UserError, match="static field 'a'"):
        small.rollout(torch.zeros(2, 4, 4, 1), conditions={"a": torch.rand(3, 4, 4)}, task="flow")


def test_a_loaded_run_takes_trajectories_and_finer_grids(finished_run: Path) -> None:
    sim = ups.load(finished_run)
    equation = Advection(points=256, beta=0.4)
    batch = equation.solve(3, [0], equation.times[:3])
    truth = Trajectory(
        batch.values[0],
        ("u",),
        equation.grid,
        batch.times[0],
        equation.boundary,
        Conditions({"beta": 0.4}),
        "advection",
    )
    result = sim.rollout(truth, steps=2)
    assert result.values.shape == (2, 256, 1)
    assert result.task == "advection"
    assert bool(torch.isfinite(result.values).all())


def simulate(run: Path, start: Path, out: Path) -> None:
    simulate_command(run, start, out, steps=3, settings=["beta=0.4"])


def test_simulate_writes_what_rollout_returns(finished_run: Path, tmp_path: Path) -> None:
    start, out = tmp_path / "start.npz", tmp_path / "result.npz"
    u0 = np.sin(2 * np.pi * (np.arange(128) + 0.5) / 128)[:, None]
    np.savez(start, u0=u0)
    simulate(finished_run, start, out)
    with np.load(out) as result:
        expected = ups.load(finished_run).rollout(u0, steps=3, conditions={"beta": 0.4}).values.numpy()
        assert np.array_equal(result["values"], expected)
    with pytest.raises(UserError, match="exists"):
        simulate(finished_run, start, out)


def test_simulate_says_what_not_to_trust(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "start.npz", u0=np.full(128, 3e38))
    simulate(finished_run, tmp_path / "start.npz", tmp_path / "result.npz")
    told = capsys.readouterr().out
    assert "warning: step 0: u = inf is outside the range that task 'advection' was trained on" in told
    assert "u of task 'advection' has NaN or infinite values" in told
    with np.load(tmp_path / "result.npz") as result:
        assert not np.isfinite(result["values"]).all() and "NaN or infinite" in result["warnings"][-1]


def test_a_full_disk_leaves_no_half_of_a_result(finished_run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "start.npz", u0=np.zeros(128))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError):
            simulate(finished_run, tmp_path / "start.npz", tmp_path / "result.npz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["start.npz"]


def test_a_start_that_is_no_npz_is_refused_with_what_makes_one(tmp_path: Path) -> None:
    text, cut = tmp_path / "text.npz", tmp_path / "cut.npz"
    text.write_text("0.1 0.2\n")
    np.savez(cut, u0=np.zeros(8))
    cut.write_bytes(cut.read_bytes()[:-30])
    for file in (text, cut):
        with pytest.raises(
            UserError, match=r"it is no archive of arrays.*\.npz with named arrays is expected; numpy.savez.* makes one"
        ):
            simulate(tmp_path, file, tmp_path / "out.npz")


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no trained model"):
        ups.load(tmp_path)
