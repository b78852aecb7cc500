"""What people try first either works or says in a sentence what to do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import ups
from ups.cli.data import make
from ups.cli.run import config, train
from ups.data.prepare.statistics import Scale, Statistics
from ups.distributed.launch.run_directory import claimed_run
from ups.equations.named import EQUATIONS, named_equation, settings_of
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid
from ups.models.saved import ModelSpec, TrainedTask
from ups.pipeline.config import load_run, run_config
from ups.rollout.operator import OperatorPredictor


@pytest.fixture(scope="module")
def simulator() -> ups.Simulator:
    """Two tasks that were never trained: what is asked of them is checked all the same."""
    waves = ups.TaskSpec("waves", 1, (Channel("u"),), Boundary.all("periodic", 1), dt=0.1)
    flow = ups.TaskSpec("flow", 2, (Channel("p"),), Boundary.all("value", 2), static=("a",), steady=True)
    scales = Statistics("waves", 1, 0.1, (1,), {"u": Scale(0.0, 1.0, 1.0, (0.4,), (-2.0, 2.0))})
    solved = Statistics("flow", 1, None, (), {"p": Scale(0.1, 0.1, 0.2)}, {"a": Scale(0.5, 0.4, 0.6, (), (0.1, 1.0))})
    tasks = (
        TrainedTask(waves, Grid.cell_centred((8,)), scales, {}, (0.1,)),
        TrainedTask(flow, Grid.cell_centred((4, 4)), solved, {}, ()),
    )
    settings = {"width": 4, "depth": 1, "modes": 2, "head": 4, "conditions": 4}
    return ups.Simulator(OperatorPredictor(ModelSpec("spectral", settings, tasks).build(0), tasks))


def test_an_equation_goes_by_its_name_and_its_data_by_number(tmp_path):
    made = ups.open_dataset(ups.generate("advection", 3, 0, tmp_path / "a.hdf5"))
    trajectories = list(made)
    assert len(trajectories) == 3 and torch.equal(trajectories[-1].values, made[-1].values)
    assert made[0].conditions.parameters == {"beta": made.header.parameters["beta"]}
    with pytest.raises(IndexError, match="not among the 3"):
        made[3]


def test_data_are_made_in_sight(tmp_path, capsys):
    path = ups.generate("advection", 2, 0, tmp_path / "a.hdf5")
    assert "a.hdf5: 2/2 trajectories" in capsys.readouterr().out
    ups.generate("advection", 2, 0, path, progress=lambda done, total: None)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_parameter_is_made_and_simulated_by_one_name(name):
    assert set(named_equation(name, {}).parameters) <= set(settings_of(name))


def test_a_task_is_registered_by_words_or_by_its_spec():
    spec = ups.register(name="newcomers-heat", dimension=1, channels=["T"], boundary="periodic", parameters=["nu"])
    assert isinstance(spec, ups.TaskSpec) and ups.register(spec) is spec
    with pytest.raises(UserError, match="not both"):
        ups.register(spec, dimension=1)
    with pytest.raises(UserError, match="give dimension"):
        ups.register(name="newcomers-other", channels=["T"], boundary="periodic")


def test_any_two_arrays_are_not_taken_for_permeability_and_pressure(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(20, 8, 8)), y=np.ones((20, 8, 8)))
    with pytest.raises(UserError, match="negative values, which no permeability has"):
        ups.open_dataset(tmp_path / "a.npz", convention="nodal")


@pytest.mark.parametrize("name", ["u.csv", "u.txt"])
def test_a_file_that_is_no_array_says_what_is(tmp_path, name):
    (tmp_path / name).write_text("0.1,0.2\n0.3,0.4\n")
    for act in (lambda path: ups.fit(path, runs=tmp_path / "runs"), ups.open_dataset):
        with pytest.raises(UserError, match=r"\.npy"):
            act(tmp_path / name)


def test_a_gpu_that_is_not_there_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="finds no GPU here"):
        ups.load(tmp_path, device="cuda")


def test_a_start_that_cannot_be_meant_is_refused_or_warned_of(simulator):
    for start in (torch.zeros(128, 2), torch.zeros(1, 1), torch.zeros(1)):
        with pytest.raises(UserError, match="points along an axis"):
            simulator.rollout(start, steps=1, task="waves")
    far = simulator.rollout(1e6 * torch.ones(8), steps=1, task="waves")
    assert "outside the range" in far.warnings[0]


def test_a_condition_of_another_case_is_told_its_name(simulator):
    with pytest.raises(UserError, match=r"has no condition 'A'; did you mean 'a'\?"):
        simulator.rollout(conditions={"A": torch.full((4, 4), 0.5)}, task="flow")


@pytest.mark.parametrize("value", [-1.0, 0.0, 40.0])
def test_a_coefficient_that_was_never_seen_is_warned_of(simulator, value):
    coefficient = torch.full((4, 4), 0.5)
    assert not simulator.rollout(conditions={"a": coefficient}).warnings
    coefficient[1, 2] = value
    (note,) = simulator.rollout(conditions={"a": coefficient}).warnings
    assert "leaves the range that the model was trained on (0.1 to 1)" in note


@pytest.mark.parametrize(("equation", "points"), [("burgers", 10**12), ("darcy", 10**6), ("gray_scott_3d", 10**4)])
def test_points_that_no_memory_holds_are_refused_at_once(tmp_path, equation, points):
    with pytest.raises(UserError, match=r"GB of memory to be solved, and there are .*; give fewer points \(--points\)"):
        make(equation, tmp_path, count=1, points=points)
    told = ["tasks.burgers.make.settings.points=1000000000000"]
    with pytest.raises(UserError, match="GB of memory to be solved"):
        train("quickstart", told, runs=tmp_path / "runs")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("", "training    section"),
        ("training", "learning_rate     number"),
        ("tasks", "files           section"),
        ("tasks.NAME.make", "trajectories  whole number  needed"),
        ("stages.pdet_stack", "heads"),
        ("compare.fno.training", "optimiser"),
        ("runtime", "ddp | fsdp2 | hsdp"),
    ],
)
def test_the_keys_of_a_configuration_have_a_page(section, says, capsys):
    config(section)
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("trainin", "there is no section 'trainin'; did you mean training?"),
        ("training.steps", "training.steps is a key and no section; `ups config --explain training` has it"),
        ("training.steps.more", "there is no section 'training.steps.more'; leave the end out"),
    ],
)
def test_a_page_that_is_not_there_is_said(section, says):
    with pytest.raises(UserError, match=re.escape(says)):
        config(section)


def test_a_run_that_was_renamed_goes_on(tmp_path):
    """Its folder and its name, or a folder alone."""
    before = load_run("quickstart", ["training.steps=7"], tmp_path)
    with claimed_run(tmp_path / "quickstart", before, None):
        (tmp_path / "quickstart" / "data").mkdir()
    (tmp_path / "quickstart").rename(tmp_path / "mine")
    kept = run_config(tmp_path / "mine")
    now = load_run("quickstart", ["training.steps=7", "name=mine"], tmp_path)
    with claimed_run(tmp_path / "mine", now, kept):
        assert (run_config(tmp_path / "mine").name, kept.name) == ("mine", "quickstart")


def test_nodes_without_ranks_are_refused():
    with pytest.raises(UserError, match="go with --gpus"):
        train("quickstart", nodes="2", runs=Path("nowhere"))
    with pytest.raises(UserError, match="--stage operator is trained on one machine"):
        train("quickstart", nodes="2", gpus=1, stage="operator", runs=Path("nowhere"))


def test_a_boundary_that_contradicts_the_file_is_refused(tmp_path):
    ups.generate("advection", 10, 0, tmp_path / "a.hdf5")
    (tmp_path / "mine.yaml").write_text(
        "tasks: {waves: {define: {dimension: 1, channels: [u], boundary: value}, files: {train: [a.hdf5]}}}\n"
        f"data: {{root: {tmp_path}}}\n"
    )
    with pytest.raises(UserError, match=r"its sides are periodic/periodic, those of task .waves. value/value"):
        train(str(tmp_path / "mine.yaml"), runs=tmp_path / "runs")
