"""`ups run generative`, made small: every stage stands on those before it, and an ensemble is judged as one."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import signal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from small import GENERATIVE

import ups
from ups import pipeline
from ups.errors import Stopped, UserError
from ups.models.predictor import State
from ups.pipeline.again import set_aside
from ups.pipeline.config import load_run, run_config
from ups.rollout import question
from ups.rollout.chosen import Chosen
from ups.rollout.corrected import CorrectedPredictor
from ups.training.restore import load_model, restored
from ups.training.trainer import Trainer

TASK = "kuramoto_sivashinsky"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("generative")
    pipeline.run("generative", GENERATIVE, runs)
    return runs / "generative"


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "generative")


def train_again(directory: Path, *overrides: str) -> None:
    pipeline.train("generative", [*GENERATIVE, *overrides], directory.parent)


def weights_of(directory: Path, stage: str) -> dict[str, Any]:
    return restored(directory / "stages" / stage).trainable().state_dict()


def written(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in (directory / "stages").rglob("*.safetensors")}


def u0(count: int = 1) -> torch.Tensor:
    x = 2 * math.pi * (torch.arange(32) + 0.5) / 32
    return torch.stack([torch.sin((i + 1) * x) for i in range(count)])[..., None]


def test_every_predictor_stands_in_the_metrics_under_its_own_name_beside_cheap_ensembles(whole: Path) -> None:
    metrics = json.loads((whole / "metrics.json").read_text())
    assert metrics["state"] == "finished" and metrics["model"] == "distilled"
    rollout = metrics["tasks"][TASK]["rollout"]
    everybody = {"operator", "corrector", "distilled", "persistence"}
    for name in ("crps", "energy_score", "mean_nrmse", "coverage_50", "coverage_90", "spread_skill"):
        found = rollout[name]
        assert {*everybody, "dressed", "perturbed"} <= found.keys() and found["model"] == found["distilled"]
        assert found["ci95"][0] <= found["model"] <= found["ci95"][1]
    assert everybody <= rollout["nrmse"].keys() and "dressed" not in rollout["nrmse"]
    assert rollout["energy_score"]["operator"] == pytest.approx(rollout["nrmse"]["operator"])  # one member
    assert rollout["spread_skill"]["operator"] == rollout["coverage_90"]["operator"] == 0
    assert rollout["spread_skill"]["distilled"] > 0 and rollout["crps"]["corrector"] != rollout["crps"]["distilled"]
    assert "codec" not in [shown["name"] for shown in metrics["predictors"]]


def test_the_codecs_floor_is_told_beside_principal_components(whole: Path) -> None:
    floor = json.loads((whole / "metrics.json").read_text())["reconstruction"]["codec"][TASK]
    assert floor["of"] == 32 and floor["numbers"] == 4
    assert 0 < floor["nrmse"]["pca"] < 1 and floor["nrmse"]["codec"] > 0 and "spectral_low" in floor


def test_how_often_the_equation_tells_the_truth_is_measured_and_asked_before_choosing(whole: Path) -> None:
    sim = ups.load(whole)
    assert 0 < sim.truth_first[TASK] <= 1
    low = Chosen(sim.predictor, {TASK: 0.5})
    with pytest.raises(UserError, match="in 50% of cases"):
        ups.Simulator(low).rollout(u0(), steps=2)
    result = ups.Simulator(Chosen(sim.predictor, {TASK: 0.95}, budget=8)).rollout(u0(), steps=2)
    assert bool(result.values.isfinite().all())


def test_the_report_draws_ensembles(whole: Path) -> None:
    page = html.unescape((whole / "report.html").read_text())
    assert "<h3>Ensembles</h3>" in page and "CRPS" in page and "principal components" in page
    players = [json.loads(text) for text in re.findall(r'-members-data">(.*?)</script>', page)]
    assert [pen["name"] for pen in players[0]["predictors"]] == ["truth", "member 1", "member 2", "member 3"]
    fields, errors = players[0]["sequences"][0]["fields"], players[0]["sequences"][0]["nrmse"]
    assert fields["member 1"] != fields["member 2"] and errors["member 1"][0] == [0] and errors["member 1"][-1] > [0]


def test_members_come_in_one_batch_and_differ_and_a_seed_gives_them_again(whole: Path) -> None:
    sim = ups.load(whole)
    result = sim.rollout(u0(2), steps=3, members=5, seed=1)
    assert result.values.shape == (5, 2, 3, 32, 1) and result.members is result.values
    assert float(result.values.std(0).mean()) > 0
    assert torch.equal(result.values, sim.rollout(u0(2), steps=3, members=5, seed=1).values)
    assert not torch.equal(result.values, sim.rollout(u0(2), steps=3, members=5, seed=2).values)
    torch.testing.assert_close(result.mean, result.values.mean(0))
    torch.testing.assert_close(result.quantile(0.5), result.values.median(0).values)
    torch.testing.assert_close(result.values.mean(-2), torch.zeros(5, 2, 3, 1), atol=1e-5, rtol=0)  # conserved


def test_a_rollout_of_one_leaves_chance_out(whole: Path) -> None:
    sim = ups.load(whole)
    one = sim.rollout(u0(), steps=3)
    assert torch.equal(one.values, sim.rollout(u0(), steps=3, seed=7).values)
    assert one.members.shape == (1, *one.values.shape) and torch.equal(one.mean, one.values)


def test_sensors_guide_a_corrector_to_the_error_that_an_operator_alone_cannot_explain(whole: Path) -> None:
    sim, operator = ups.load(whole), ups.load(whole / "stages" / "operator")
    points, times = torch.tensor([[1.0], [9.0], [20.0]]), [0.0, 2.0, 4.0]
    read = sim.rollout(u0()[0], times=times, members=8, seed=3, at=points).values[5]
    alone, guided = (each.assimilate(read, points, times, noise=0.02) for each in (operator, sim))
    assert guided.values.shape == alone.values.shape == (3, 32, 1)
    assert float(guided.misfit) < 0.7 * float(alone.misfit)
    several = sim.assimilate(read[:1], points, times[:1], members=3)
    assert several.values.shape == (3, 1, 32, 1) and float(several.spread.mean()) > 0


def test_members_that_are_too_many_for_one_batch_come_in_pieces_with_the_same_values(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = ups.load(whole)
    together = sim.rollout(u0(2), steps=3, members=5, seed=1).values
    warned = sim.rollout(30 * u0(2), steps=3, members=5, seed=1).warnings
    sizes: list[int] = []
    sample = CorrectedPredictor.sample

    def noted(self: CorrectedPredictor, state: State, lead: Any, seed: int, members: int) -> State:
        sizes.append(members)
        return sample(self, state, lead, seed, members)

    monkeypatch.setattr(CorrectedPredictor, "sample", noted)
    monkeypatch.setattr(question, "POINTS", 2 * 2 * 32)  # two members of two samples
    pieces = sim.rollout(u0(2), steps=3, members=5, seed=1).values
    assert sizes == [2] * 6 + [1] * 3
    torch.testing.assert_close(pieces, together)
    again = sim.rollout(30 * u0(2), steps=3, members=5, seed=1).warnings
    assert again == warned and "outside the range" in " ".join(warned)


def test_members_whose_states_fit_nowhere_are_refused(whole: Path) -> None:
    with pytest.raises(UserError, match=r"1,000,000 states of 4,096 members need 1,049 GB, and .* ask for fewer"):
        ups.load(whole).rollout(u0(), steps=10**6, members=4096)


def test_a_whole_number_of_any_kind_says_how_many_members_and_steps(whole: Path) -> None:
    two, three = cast(Any, np.int32(2)), cast(Any, np.int64(3))
    assert ups.load(whole).rollout(u0()[0], steps=two, members=three).values.shape == (3, 2, 32, 1)


@pytest.mark.parametrize("members", [0, 10**6, 2.5, True, np.array([2, 3])])
def test_a_number_of_members_that_makes_no_sense_is_refused(whole: Path, members: Any) -> None:
    with pytest.raises(UserError, match="members is"):
        ups.load(whole).rollout(u0(), steps=1, members=members)


def test_what_is_finished_is_skipped(copied: Path) -> None:
    before = written(copied)
    train_again(copied)
    assert written(copied) == before


def state_of(directory: Path) -> str:
    return json.loads((directory / "metrics.json").read_text())["state"]


def test_a_stage_is_trained_again_alone_and_what_stands_on_it_by_the_next_run(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, kept = written(copied), weights_of(copied, "corrector")
    trained: list[str] = []
    step = Trainer.step

    def noted(trainer: Trainer) -> Any:
        trained.append(trainer.stage.name)
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", noted)
    pipeline.run("generative", GENERATIVE, copied.parent, stage="corrector")
    assert set(trained) == {"corrector"} and len(trained) == 10 and state_of(copied) == "evaluated"
    again = weights_of(copied, "corrector")
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    assert sorted(path.name for path in (copied / "before").iterdir()) == ["distilled"]
    with pytest.raises(UserError, match="no trained model"):
        ups.load(copied)
    trained.clear()
    pipeline.run("generative", GENERATIVE, copied.parent)
    assert set(trained) == {"distilled"} and state_of(copied) == "finished"
    ups.load(copied)
    after = written(copied)
    same = {path for path in before if path.split("stages/")[1].startswith(("operator", "codec"))}
    assert same and all(after[path] == before[path] for path in same) and not list((copied / "before").iterdir())
    trained.clear()
    pipeline.run("generative", GENERATIVE, copied.parent)
    assert not trained


def test_a_stage_that_is_being_trained_again_goes_on_or_gives_way_to_what_was(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, step = weights_of(copied, "corrector"), Trainer.step

    def interrupted(trainer: Trainer) -> Any:
        if trainer.state.step == 6:
            signal.raise_signal(signal.SIGINT)
        return step(trainer)

    def other(stage: str) -> None:
        pipeline.train("generative", [*GENERATIVE, "stages.corrector.width=4"], copied.parent, stage=stage)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        with pytest.raises(Stopped, match="step 7 of 10 is saved"):
            other("corrector")
    with pytest.raises(UserError, match=r"stands on corrector, which is trained to step 7 of 10; finish that first"):
        other("distilled")
    elsewhere = shutil.copytree(copied, copied.parent / "elsewhere" / "generative")
    set_aside(run_config(elsewhere), elsewhere, "codec")  # with all that stands on it, but not the half that is there
    for stage in ("codec", "corrector"):
        (elsewhere / "before" / stage).rename(elsewhere / "stages" / stage)
    waited = weights_of(elsewhere, "corrector")
    assert all(torch.equal(kept[name], waited[name]) for name in kept)
    restored_run = shutil.copytree(copied, copied.parent / "other" / "generative")
    shutil.rmtree(restored_run / "stages" / "corrector")
    for path in (restored_run / "before").iterdir():
        path.rename(restored_run / "stages" / path.name)
    again = weights_of(restored_run, "corrector")
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    ups.load(restored_run)
    other("corrector")
    assert not torch.equal(next(iter(weights_of(copied, "corrector").values())), next(iter(kept.values())))
    assert not (copied / "before" / "corrector").exists()


def test_a_stage_that_a_run_does_not_have_is_refused_and_nothing_moves(copied: Path) -> None:
    before = written(copied)
    with pytest.raises(UserError, match="--stage correctr: the run's stages are operator, codec, corrector, distilled"):
        pipeline.run("generative", GENERATIVE, copied.parent, stage="correctr")
    assert written(copied) == before


def test_a_stage_that_was_stopped_goes_on_as_if_it_had_not_been(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {stage: weights_of(copied, stage) for stage in ("corrector", "distilled")}
    for stage in wanted:
        shutil.rmtree(copied / "stages" / stage)
    step = Trainer.step

    def interrupted(trainer: Trainer) -> Any:
        if trainer.stage.name == "corrector" and trainer.state.step == 6:
            signal.raise_signal(signal.SIGINT)
        return step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        with pytest.raises(Stopped, match=r"step 7 of 10 is saved"):
            train_again(copied)
    train_again(copied)
    for stage, weights in wanted.items():
        again = weights_of(copied, stage)
        assert all(torch.equal(weights[name], again[name]) for name in weights), stage


def test_an_operator_trained_further_after_its_corrector_is_refused(copied: Path) -> None:
    with pytest.raises(UserError, match="stands on operator as it is now"):
        train_again(copied, "stages.operator.training={steps: 25}")


def test_a_stage_that_stands_on_others_is_no_model_to_be_exported(whole: Path) -> None:
    with pytest.raises(
        UserError, match=r"distilled holds a distilled, and this takes an operator; name one: .*stages/operator$"
    ):
        load_model(whole)


def test_a_codec_of_another_run_is_refused(copied: Path) -> None:
    shutil.rmtree(copied / "stages" / "codec")
    shutil.copytree(copied / "stages" / "operator", copied / "stages" / "codec")
    with pytest.raises(UserError, match="another codec than the one in"):
        ups.load(copied)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["stages.corrector.on=[operator]"], "kind corrector needs 2 in `on`"),
        (["stages.distilled.on=[operator]"], "distils one corrector"),
    ],
)
def test_what_a_stage_cannot_stand_on_is_refused(whole: Path, tmp_path: Path, overrides: list[str], told: str) -> None:
    directory = shutil.copytree(whole, tmp_path / "generative")
    for stage in ("corrector", "distilled"):
        if any(stage in override for override in overrides):
            shutil.rmtree(directory / "stages" / stage)
    with pytest.raises(UserError, match=told):
        train_again(directory, *overrides)


@pytest.mark.parametrize(
    ("override", "told"),
    [("codec.compression=1e9", "at most 8 times"), ("distilled.steps=3", r"distilled\.steps .*1, 2 or 4")],
)
def test_settings_that_no_stage_can_serve_are_refused_before_data_are_made(
    tmp_path: Path, override: str, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        pipeline.run("generative", [*GENERATIVE, f"stages.{override}"], tmp_path)
    assert not (tmp_path / "generative" / "data").exists()


def test_a_horizon_longer_than_the_trajectories_is_refused_before_data_are_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has 7 frames, too few for 50 steps of 1; shorten .* its horizon"):
        pipeline.run("generative", [*GENERATIVE, "stages.corrector.horizon=50"], tmp_path)
    assert not (tmp_path / "generative" / "data").exists()


def test_a_run_whose_last_stage_predicts_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "alone.yaml"
    path.write_text("tasks: {advection: {make: {equation: advection, trajectories: 20}}}\nstages: {codec: {}}\n")
    with pytest.raises(UserError, match="predicts nothing"):
        load_run(path, [])
