"""What outsiders add is used like our own: a stage, an architecture, a metric, an equation and a predictor, each in one
file of `examples/` that a configuration names.
"""

from __future__ import annotations

import html
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ups
from ups import pipeline
from ups.data import tasks
from ups.equations import named
from ups.errors import Stopped, UserError
from ups.pipeline.config import load_run
from ups.pipeline.trainings import check_trained
from ups.training.restore import restored
from ups.training.trainer import Trainer

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALLER = [
    "training.steps=40",
    "training.validate_every=20",
    "training.checkpoint_every=20",
    "stages.bias.training.steps=20",
]


pytestmark = pytest.mark.usefixtures("plugins_are_forgotten")


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as it stands, made smaller."""
    runs = tmp_path_factory.mktemp("toys")
    pipeline.run(str(EXAMPLES / "toys.yaml"), SMALLER, runs)
    return runs / "toys"


@pytest.fixture
def copied(toy_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(toy_run, tmp_path / "toys")


def train_again(directory: Path, *overrides: str) -> None:
    """The stages alone: a report takes longer than they do."""
    pipeline.train(str(EXAMPLES / "toys.yaml"), [*SMALLER, *overrides], directory.parent)


def metrics_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "metrics.json").read_text())


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights_of(directory: Path, stage: str) -> dict[str, torch.Tensor]:
    return restored(directory / "stages" / stage).trainable().state_dict()


def test_all_that_was_added_stands_in_the_metrics(toy_run: Path) -> None:
    metrics = metrics_of(toy_run)
    assert metrics["state"] == "finished" and metrics["model"] == "bias"
    shown = [(entry["name"], entry["kind"]) for entry in metrics["predictors"]]
    assert shown == [
        ("operator", "stage"),
        ("bias", "stage"),
        ("toy", "compared"),
        ("heat_kernel", "compared"),
        ("persistence", "baseline"),
    ]
    for measured in metrics["tasks"]["heat"].values():
        for name in ("nrmse", "peak_error"):
            assert {who for who, _ in shown} | {"model", "ci95", "ci95_of", "ratio95_of"} == set(measured[name])
            assert measured[name]["model"] == measured[name]["bias"] > 0
        assert measured["nrmse"]["heat_kernel"] < 1e-5 < measured["nrmse"]["toy"]  # float32 of the exact solution
    assert metrics["training"]["operator"]["step"] == 40 and metrics["training"]["bias"]["step"] == 20
    assert metrics["training"]["toy_all"]["step"] >= 50


def test_what_needs_no_training_has_no_seconds_of_it(toy_run: Path) -> None:
    metrics = metrics_of(toy_run)
    assert "toy" in metrics["seconds"] and "heat_kernel" not in metrics["seconds"]
    assert not [name for name in metrics["training"] if name.startswith("heat_kernel")]
    notes = json.loads((toy_run / "evaluation" / "details.json").read_text())["notes"]
    used, given = (metrics["training"][name]["device_seconds"] for name in ("toy_all", "operator"))
    given += metrics["training"]["bias"]["device_seconds"]  # which stands on the operator
    assert f"toy had {used:.0f} device-seconds of training for the model's {given:.0f}" in notes[-1]


def test_all_that_was_added_stands_in_the_report(toy_run: Path) -> None:
    page = html.unescape((toy_run / "report.html").read_text())
    assert "<h2>Heat</h2>" in page and "∂u/∂t = ν ∂²u/∂x², periodic" in page
    assert all(word in page for word in ("bias", "toy", "heat_kernel", "peak error"))


def test_a_report_that_is_written_again_knows_the_equation(toy_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a new process, which has loaded no plugin yet."""
    monkeypatch.setattr(named, "EQUATIONS", {k: v for k, v in named.EQUATIONS.items() if k != "heat"})
    tasks._known.cache_clear()
    monkeypatch.delitem(sys.modules, "ups_plugin_toy_equation")
    assert "<h2>Heat</h2>" in pipeline.report(toy_run).read_text()


def test_worker_processes_know_an_equation_of_the_users_own(toy_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "heat.hdf5"
    ups.generate(named.named_equation("heat", {"points": 8, "frames": 2}), 65, 0, path, workers=2)
    assert len(ups.open_dataset(path, "heat")) == 65


def test_a_simulator_takes_the_steps_of_the_added_stage(toy_run: Path) -> None:
    u0 = torch.sin(2 * torch.pi * (torch.arange(32) + 0.5) / 32)[:, None]
    ours = ups.load(toy_run).rollout(u0, steps=2, conditions={"nu": 0.002}).values
    alone = ups.load(toy_run / "stages" / "operator")
    corrected, before = [], u0
    gain, bias = (weights_of(toy_run, "bias")[f"{name}.heat"] for name in ("gain", "bias"))
    unit = alone.tasks["heat"].normaliser
    for _ in range(2):
        old = unit.normalise(before[None])
        new = unit.normalise(alone.rollout(before, steps=1, conditions={"nu": 0.002}).values)
        before = unit.physical(new + gain * (new - old) + bias)[0]
        corrected.append(before)
    torch.testing.assert_close(ours, torch.stack(corrected))
    assert not torch.equal(ours, alone.rollout(u0, steps=2, conditions={"nu": 0.002}).values)


def test_an_added_stage_that_was_interrupted_goes_on_to_the_same_digits(
    toy_run: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(copied / "stages" / "bias")
    step = Trainer.step

    def interrupted(trainer: Trainer) -> Any:
        if trainer.stage.name == "bias" and trainer.state.step == 6:
            signal.raise_signal(signal.SIGINT)
        return step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        with pytest.raises(Stopped, match=r"step 7 of 20 is saved"):
            train_again(copied)
    train_again(copied)
    ours, theirs = pipeline.evaluate(copied)["tasks"]["heat"], metrics_of(toy_run)["tasks"]["heat"]
    for view, measured in theirs.items():
        for name, entry in measured.items():
            assert ours[view][name]["bias"] == entry["bias"], (view, name)
    whole = weights_of(toy_run, "bias")
    assert all(torch.equal(tensor, whole[name]) for name, tensor in weights_of(copied, "bias").items())
    assert all(tensor.abs().max() > 0 for tensor in whole.values())


def test_a_stage_that_is_added_to_a_trained_run_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    config = yaml.safe_load((EXAMPLES / "toys.yaml").read_text())
    config["plugins"] = [str(EXAMPLES / plugin) for plugin in config["plugins"]]
    del config["stages"]["bias"], config["compare"]
    path = tmp_path / "toys.yaml"
    path.write_text(yaml.safe_dump(config))
    pipeline.train(str(path), SMALLER[:3], tmp_path / "runs")
    run = tmp_path / "runs" / "toys"
    before = files_of(run / "stages" / "operator")
    train_again(run)
    assert files_of(run / "stages" / "operator") == before
    assert weights_of(run, "bias").keys() == {"bias.heat", "gain.heat"}


def test_an_operator_killed_before_its_first_checkpoint_does_not_block_the_stage_on_it(copied: Path) -> None:
    shutil.rmtree(copied / "stages" / "operator" / "checkpoints")
    shutil.rmtree(copied / "stages" / "bias")
    check_trained(load_run(EXAMPLES / "toys.yaml", SMALLER), copied)


def test_another_width_of_a_trained_operator_is_refused(copied: Path) -> None:
    before = files_of(copied)
    with pytest.raises(UserError, match=r"stages/operator belongs to another configuration \(settings.width differs\)"):
        pipeline.run(str(EXAMPLES / "toys.yaml"), [*SMALLER, "stages.operator.width=8"], copied.parent)
    assert files_of(copied) == before


def test_more_steps_go_on_from_the_end_and_say_what_the_schedule_does(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(copied / "stages" / "operator")
    train_again(copied, "stages.bias.training.steps=30")
    assert (
        "note: training.steps was 20 and is 30: training bias goes on from step 20; the learning rate, at 0 in the old "
        "schedule, goes on at 0.0025 and down to zero again" in capsys.readouterr().out
    )
    assert pipeline.evaluate(copied)["training"]["bias"]["step"] == 30
    assert files_of(copied / "stages" / "operator") == before


@pytest.mark.parametrize(
    "neutral", ["data.workers=2", "evaluation.pictures=1", "runtime.threads=2", "training.checkpoint_every=7"]
)
def test_what_does_not_change_the_numbers_is_no_other_configuration(
    toy_run: Path, neutral: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.run(str(EXAMPLES / "toys.yaml"), [*SMALLER, neutral], toy_run.parent)
    assert "nothing to do" in capsys.readouterr().out


def test_a_warm_start_lists_what_it_lacks_and_what_it_leaves(
    toy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another task, one hidden layer less and a shorter stencil."""
    source = toy_run / "stages" / "operator"
    advection = "{equation: advection, trajectories: 10, settings: {points: 32, frames: 9, duration: 0.8}}"
    changes = [f"stages.operator.start={source}", "stages.operator.depth=1", "stages.operator.reach=1"]
    train_again(tmp_path / "toys", f"tasks.advection.make={advection}", *changes)
    note = f"""starting from {source}: 4 tensors are taken by name
  not there: network.first.advection.weight, network.first.advection.bias, network.last.advection.weight
  not used: network.inner.1.bias, network.inner.1.weight
  reshaped: network.first.heat.weight
"""
    assert note in capsys.readouterr().out
    metrics = pipeline.evaluate(tmp_path / "toys")["tasks"]
    assert "heat_kernel" in metrics["heat"]["rollout"]["nrmse"]
    assert "heat_kernel" not in metrics["advection"]["rollout"]["nrmse"]  # which it does not know
