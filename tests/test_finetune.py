"""A trained model adapted to a new system: what it takes over, what it trains, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import ups
from ups import pipeline
from ups.checkpoint import hub
from ups.cli.finetune import _counts, _definition, _sorted
from ups.cli.main import app
from ups.config.text import parse_yaml
from ups.data.agreement import task_of
from ups.data.generate.make import generate
from ups.data.settings import TaskConfig
from ups.data.sources import open_files
from ups.equations import Advection, Burgers, Equation
from ups.errors import Stopped, UserError
from ups.fields import Boundary, Channel, Grid, Side, TaskSpec
from ups.models.geometry import Frame
from ups.models.operator.inherit import bank_sizes, inherit, nearest
from ups.models.operator.model import OperatorModel
from ups.pipeline.export import export
from ups.training.restore import averaged_weights
from ups.training.trainer import Trainer

QUICK = ["runtime.threads=1", "runtime.device=cpu", "data.workers=1", "evaluation.resamples=100", "evaluation.solved=0"]
QUICK += ["evaluation.pictures=1", "training.batch_size=8"]


def made(folder: Path, equation: Equation, count: int, seed: int) -> Path:
    path = folder / equation.published_name
    generate(equation, count, seed, path, workers=1)
    return path


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Advection and Burgers in one small model, whose tasks mix two experts."""
    runs = tmp_path_factory.mktemp("parent")
    settings = "settings: {points: 64, frames: 11, duration: 0.5}"
    (runs / "parent.yaml").write_text(
        f"""tasks:
  advection: {{make: {{equation: advection, trajectories: 40, values: {{beta: [0.2, 0.7]}}, {settings}}}}}
  burgers: {{make: {{equation: burgers, trajectories: 40, values: {{nu: [0.005, 0.02]}}, {settings}}}}}
training: {{steps: 300, warmup: 20, batch_size: 16, validate_every: 300}}
stages: {{operator: {{width: 8, depth: 2, modes: 12, head: 8, conditions: 16, experts: 2}}}}
"""
    )
    pipeline.train(str(runs / "parent.yaml"), [word for word in QUICK if "batch" not in word], runs)
    return runs / "parent"


@pytest.fixture(scope="module")
def viscous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Burgers at a viscosity that no training saw."""
    folder = tmp_path_factory.mktemp("data")
    return made(folder, Burgers(points=64, nu=0.01, frames=11, duration=0.5), 40, seed=5)


@pytest.fixture(scope="module")
def done(parent: Path, viscous: Path, tmp_path_factory: pytest.TempPathFactory):
    """The whole command once, with a curve."""
    runs = tmp_path_factory.mktemp("runs")
    return ups.finetune(parent, viscous, steps=80, curve=[8], runs=runs, overrides=QUICK)


def weights_of(run: Path) -> dict[str, Tensor]:
    return averaged_weights(run / "stages" / "operator")[0]


def test_fine_tuning_on_few_trajectories_beats_training_from_nothing_at_equal_steps(done) -> None:
    few = done.directory / "curve" / "burgers-8"
    tuned = json.loads((few / "metrics.json").read_text())["tasks"]["burgers"]["rollout"]["nrmse"]
    nothing = ["stages.operator.start=null", "stages.operator.experts=null", "stages.operator.training=null"]
    nothing += ["name=nothing", "compare={}"]
    pipeline.run(str(few / "config.yaml"), nothing, done.directory.parent)
    fresh = json.loads((done.directory.parent / "nothing" / "metrics.json").read_text())
    assert tuned["model"] < 0.7 * fresh["tasks"]["burgers"]["rollout"]["nrmse"]["model"]  # about a half here
    assert fresh["training"]["operator"]["step"] == 80


def test_the_curve_is_a_table_a_picture_and_a_section_of_the_report(done) -> None:
    curve = json.loads((done.directory / "curve.json").read_text())
    assert curve == done.curve
    assert [point["trajectories"] for point in curve["points"]] == [8, 32]  # of 40, four to test and four to choose
    for point in curve["points"]:
        low, high = point["ci95"]["finetuned"]
        assert low <= point["finetuned"] <= high and point["from_nothing"] > 0
    table = (done.directory / "curve.md").read_text()
    assert "| trajectories | fine-tuned | from nothing |" in table and re.search(r"^\| 8 \|", table, re.MULTILINE)
    assert (done.directory / "curve.svg").read_text().startswith("<?xml")
    assert "Error against data" in (done.directory / "report.html").read_text()


def test_a_finished_fine_tuning_is_a_run_like_any_other(done) -> None:
    assert done.notes == ()
    assert done.metrics["state"] == "finished" and list(done.metrics["tasks"]) == ["burgers"]
    metrics = pipeline.evaluate(done.directory)
    assert metrics["tasks"] == done.metrics["tasks"]
    start = torch.sin(2 * torch.pi * (torch.arange(64) + 0.5) / 64)[:, None]
    assert done.load().rollout(start, steps=3, conditions={"nu": 0.01}).values.shape == (3, 64, 1)


def test_the_command_says_what_is_done_as_json(done, parent: Path, viscous: Path) -> None:
    words = ["finetune", str(parent), "--data", str(viscous), "--steps", "80", "--curve", "8", *QUICK, "--json"]
    result = CliRunner().invoke(app, [*words, "--runs", str(done.directory.parent)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["task"] == "burgers" and found["curve"] == done.curve and found["run"] == str(done.directory)


OWN = r"\.gates\.|stem\.rows|stem\.positions|head\.(place|local|outer)|conditions\.rows|modulation\."


@pytest.mark.parametrize(
    ("mode", "trained"), [("experts", OWN), ("adapters", OWN + r"|\.down\.|\.up\."), ("all", r".*")]
)
def test_a_mode_trains_what_it_says_and_nothing_else(
    mode: str, trained: str, parent: Path, viscous: Path, tmp_path: Path
) -> None:
    """As a task of another name, so that its gates are new and the rest is the parent's, by name."""
    config = ups.finetune(parent, viscous, task="viscous", mode=mode, steps=6, runs=tmp_path, overrides=QUICK)
    before, after = weights_of(parent), weights_of(config.directory)
    kept = {name for name in after if name in before and torch.equal(before[name], after[name])}
    assert kept == {name for name in after if not re.search(trained, name)}
    fresh = {name for name in after if name not in before}
    assert all("task_viscous" in name for name in fresh) and any(".gates." in name for name in fresh)
    assert bool([name for name in fresh if ".up." in name]) == (mode == "adapters")
    assert not [name for name in after if "task_burgers" in name or "beta" in name]  # old tasks stay out
    # Nobody defined it: the file says what it holds.
    defined = parse_yaml((config.directory / "config.yaml").read_text())["tasks"]["viscous"]["define"]
    assert defined["channels"] == ["u"] and defined["parameters"] == ["nu"] and defined["dimension"] == 1


def test_an_interrupted_fine_tuning_goes_on_to_the_same_weights(
    parent: Path, viscous: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def adapted(runs: Path) -> dict[str, Tensor]:
        done = ups.finetune(parent, viscous, mode="experts", task="viscous", steps=16, runs=runs, overrides=QUICK)
        return weights_of(done.directory)

    step = Trainer.step

    def stopping(trainer: Trainer):
        if trainer.state.step == 11:
            raise Stopped("asked to")
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", stopping)
    with pytest.raises(Stopped):
        adapted(tmp_path / "interrupted")
    monkeypatch.setattr(Trainer, "step", step)
    again, whole = adapted(tmp_path / "interrupted"), adapted(tmp_path / "whole")
    assert again.keys() == whole.keys() and all(torch.equal(again[name], whole[name]) for name in whole)


PERIODIC = Boundary(((Side("periodic"), Side("periodic")),))
WALLS = Boundary(((Side("flux"), Side("flux")),))
HEAT = TaskSpec("heat", 1, (Channel("t"),), PERIODIC, parameters=("kappa",), dt=0.1)
FLOW = TaskSpec("flow", 1, (Channel("u"),), PERIODIC, parameters=("nu",), dt=0.1)
ROOM = TaskSpec("room", 1, (Channel("p"), Channel("q")), WALLS, dt=0.1)
SHEET = TaskSpec("sheet", 2, (Channel("u"),), Boundary(PERIODIC.sides * 2), parameters=("nu",), dt=0.1)


def network(*tasks: TaskSpec, points: int = 16, **settings) -> OperatorModel:
    frames = {t.name: Frame(Grid.cell_centred((points,) * t.dimension), t.boundary, (1,) * t.dimension) for t in tasks}
    torch.manual_seed(len(tasks))
    return OperatorModel(list(tasks), frames, width=4, depth=1, head=4, conditions=4, modes=8, **settings)


def test_the_most_similar_task_is_of_the_same_space_and_sides_before_it_is_of_the_same_fields() -> None:
    assert nearest(replace(HEAT, name="new"), [SHEET, ROOM, FLOW]) == ["flow", "room", "sheet"]
    assert nearest(replace(ROOM, name="new"), [SHEET, FLOW, ROOM])[0] == "room"
    assert nearest(replace(SHEET, name="flow"), [SHEET, FLOW])[0] == "flow"  # what has its name comes first


def test_a_new_task_begins_as_the_most_similar_one_and_a_new_condition_without_effect() -> None:
    old = network(FLOW, ROOM, SHEET, replace(HEAT, name="other", channels=(Channel("w"),)))
    new = network(replace(HEAT, parameters=("alpha",)), experts=bank_sizes(old))
    assert bank_sizes(old)["inner"] == 2 and bank_sizes(new)["inner"] == 2 and bank_sizes(new)["x_periodic"] == 1
    filled = inherit(new, old, like="flow")
    with torch.no_grad():
        assert torch.equal(new.blocks[0].inner.gates["task_heat"], old.blocks[0].inner.gates["task_flow"])
        assert torch.equal(new.stem.rows["field_t_1x1"], old.stem.rows["field_u_1x1"])
        assert torch.equal(new.head.local["field_t"], old.head.local["field_u"])
        assert not new.conditions.rows["parameter_alpha"].any()
    assert filled["blocks.0.inner.gates.task_heat"] == "those of flow"
    assert filled["conditions.rows.parameter_alpha"] == "zero"
    with pytest.raises(UserError, match="like is 'flwo', which is no task of the model to start from: flow, room"):
        inherit(new, old, like="flwo")


@pytest.mark.parametrize(("before", "after"), [(8, 16), (16, 8)])
def test_a_bank_for_another_number_of_modes_begins_as_the_known_one(before: int, after: int) -> None:
    tasks = [replace(FLOW, name=name) for name in ("a", "b", "c", "d")]
    old = network(*tasks, points=before)
    new = network(FLOW, points=after, experts=bank_sizes(old))
    inherit(new, old)
    theirs, ours = old.blocks[0].spectral["x_periodic"], new.blocks[0].spectral["x_periodic"]
    both = min(theirs.stack, ours.stack)
    assert theirs.stack != ours.stack
    assert torch.allclose(ours("flow", both), theirs("a", both))
    assert not ours("flow")[both:].any()


def test_fewer_trajectories_leave_the_test_set_whole_and_shrink_the_others(viscous: Path) -> None:
    whole, few = (
        open_files(task_of("burgers", config), config, Path())
        for config in (
            TaskConfig.model_validate({"files": {"train": [str(viscous)], "trajectories": count}})
            for count in (None, 8)
        )
    )
    assert (len(whole.train), len(whole.validation)) == (32, 4) and (len(few.train), len(few.validation)) == (8, 1)
    assert len(few.tests["burgers"]) == len(whole.tests["burgers"])


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that is begun only, a run of an FNO and one of a transformer."""
    runs = tmp_path_factory.mktemp("others")
    task = "{make: {equation: advection, trajectories: 10, values: {beta: [0.4]}, settings: {points: 32, frames: 5}}}"
    found = {}
    for name, stage in (
        ("fno", "{architecture: fno, width: 4, modes: 4}"),
        ("pdet_stack", "{architecture: pdet_stack, width: 8}"),
    ):
        text = f"tasks: {{advection: {task}}}\ntraining: {{steps: 2, batch_size: 2}}\nstages: {{operator: {stage}}}\n"
        (runs / f"{name}.yaml").write_text(text)
        pipeline.train(str(runs / f"{name}.yaml"), ["runtime.threads=1", "data.workers=1"], runs)
        found[name] = runs / name
    found["begun"] = runs / "begun"
    shutil.copytree(runs / "fno", found["begun"], ignore=shutil.ignore_patterns("checkpoints"))
    return found


def test_what_cannot_be_fine_tuned_is_refused_in_a_sentence(
    parent: Path, others: dict[str, Path], viscous: Path, tmp_path: Path
) -> None:
    def refused(run: Path, sentence: str, **options) -> None:
        with pytest.raises(UserError, match=sentence):
            ups.finetune(run, options.pop("data", viscous), runs=tmp_path / "runs", overrides=QUICK, **options)
        assert not (tmp_path / "runs").exists()

    refused(tmp_path / "nothing", "there is no .*nothing; name a run")
    refused(others["begun"], "holds no trained model .*train it with `ups run`")
    refused(others["fno"], "architecture 'fno', which has no rows by field name to add to")
    refused(others["pdet_stack"], "adapters are for the spectral architecture", mode="adapters")
    refused(parent, "33 trajectories are asked for, but its files hold 32", curve=[4, 33])
    refused(parent, "mode is 'some'; use one of all, adapters, experts", mode="some")
    refused(parent, "like is 'waves', which .* does not know; it knows advection, burgers", like="waves")
    refused(parent, "either steps or seconds", steps=3, seconds=1.0)
    refused(parent, "the definition has no name", define={"dimension": 1})
    refused(parent, "give the files of the new system", data=[])
    with pytest.raises(UserError, match=r"training.stepps is not a known key"):
        ups.finetune(parent, viscous, runs=tmp_path / "runs", overrides=["training.stepps=3"])


def test_a_model_on_hugging_face_is_started_from_at_the_revision_that_was_fetched(
    parent: Path, viscous: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "0123abc"
    export(parent, snapshot)
    asked: list[str] = []
    monkeypatch.setattr(hub, "fetch", lambda address: asked.append(str(address)) or snapshot)
    done = ups.finetune("hf://someone/waves@refs/pr/1", viscous, steps=2, runs=tmp_path, overrides=QUICK)
    assert done.directory.name == "waves-burgers" and asked[0].endswith("waves@refs/pr/1")
    started = parse_yaml((done.directory / "config.yaml").read_text())["stages"]["operator"]["start"]
    assert started == "hf://someone/waves@0123abc" and asked[-1].endswith("waves@0123abc")


def test_a_transformer_s_blocks_stay_as_they_are_while_its_rows_are_trained(
    others: dict[str, Path], viscous: Path, tmp_path: Path
) -> None:
    done = ups.finetune(others["pdet_stack"], viscous, mode="experts", steps=4, runs=tmp_path, overrides=QUICK)
    before, after = weights_of(others["pdet_stack"]), weights_of(done.directory)
    blocks = [name for name in after if ".blocks." in name]
    assert blocks and all(torch.equal(before[name], after[name]) for name in blocks)
    assert not torch.equal(before["network.stem.rows.field_u_1x1"], after["network.stem.rows.field_u_1x1"])


def test_a_file_with_fewer_channels_than_its_task_is_refused_in_a_sentence(parent: Path, tmp_path: Path) -> None:
    path = tmp_path / "1D_CFD_Rand_Eta0.01_Zeta0.01_periodic_Train.hdf5"
    with h5py.File(path, "w") as file:
        for name in ("density", "pressure"):
            file[name] = torch.ones(4, 5, 16).numpy()
    with pytest.raises(UserError, match="holds density, pressure, but not Vx, which compressible_1d has too; add it"):
        ups.finetune(parent, path, runs=tmp_path / "runs", overrides=QUICK)
    flow = made(tmp_path, Advection(points=32, frames=5), 10, seed=0)
    defined = {"name": "flow", "dimension": 1, "channels": ["h", "v"], "boundary": "periodic"}
    with pytest.raises(UserError, match="1 field"):
        ups.finetune(parent, flow, define=defined, runs=tmp_path / "runs", overrides=QUICK)
    assert not (tmp_path / "runs").exists()


def test_other_units_and_time_steps_are_said_and_allowed(parent: Path, tmp_path: Path, viscous: Path) -> None:
    scaled = tmp_path / "scaled.hdf5"
    shutil.copy(viscous, scaled)
    with h5py.File(scaled, "r+") as file:
        file["tensor"][...] *= 1000.0
    done = ups.finetune(parent, scaled, steps=2, runs=tmp_path, overrides=QUICK)
    assert len(done.notes) == 1 and re.match(r"u has an rms of [\d.e+]+, where the model was trained on", done.notes[0])
    fast = made(tmp_path, Advection(points=32, beta=0.4, frames=6, duration=0.001), 10, seed=0)
    done = ups.finetune(parent, fast, steps=2, runs=tmp_path, overrides=QUICK)
    assert len(done.notes) == 1 and done.notes[0].startswith("frames are 0.0002 apart, where the model was trained on")


def test_the_words_of_the_command_are_files_overrides_definitions_and_counts(tmp_path: Path) -> None:
    odd = tmp_path / "nu=1.hdf5"
    odd.write_text("")
    assert _sorted(["a.hdf5", "seed=3", str(odd)]) == (["a.hdf5", str(odd)], ["seed=3"])
    written = tmp_path / "heat.yaml"
    written.write_text("{name: heat, dimension: 1}")
    assert _definition(str(written)) == _definition("{name: heat, dimension: 1}") == {"name": "heat", "dimension": 1}
    assert _counts("4, 16") == [4, 16] and _counts(None) == []
    with pytest.raises(UserError, match="there is no such file"):
        _definition("heat.yml")
    with pytest.raises(UserError, match="give numbers of trajectories, such as --curve 4,16,64"):
        _counts("4,many")
