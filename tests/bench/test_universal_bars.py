"""What is measured beside `ups bench --universal`, at toy size: the programs of benchmarks/universal_bars.py."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_universal import DATA, HASTE, SECONDS, TASKS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import unseen
from solved import judged_on, splits
from universal_bars import beside, main

from ups.bench.ratios import ratio
from ups.data.open import open_dataset
from ups.data.settings import MakeConfig
from ups.errors import UserError
from ups.models.export import export_model
from ups.pipeline.bench import known
from ups.pipeline.config import run_config
from ups.rollout.predict import read_all
from ups.training.restore import load_model

NAME = f"{SECONDS:g}s-seed0"
CPU = torch.device("cpu")


@pytest.fixture
def run(universal_bench: Path) -> Path:
    return universal_bench / NAME


def rollouts(run: Path) -> dict[str, float]:
    tasks = json.loads((run / "metrics.json").read_text())["tasks"]
    return {task: views["rollout"]["nrmse"]["model"] for task, views in tasks.items()}


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_solved_test_trajectories_are_those_of_the_run_s_files(universal_bench: Path) -> None:
    make = MakeConfig(
        equation="burgers",
        trajectories=10,
        values={"nu": [0.001, 0.01, 0.1]},
        settings={"points": 16, "frames": 4, "duration": 0.1},
    )
    solved = judged_on(splits("burgers", make, 0, CPU))
    assert len(solved) == 3
    for row, nu in enumerate(("0.001", "0.01", "0.1")):
        made = open_dataset(universal_bench / "data" / "seed0" / f"1D_Burgers_Sols_Nu{nu}.hdf5", "burgers")
        torch.testing.assert_close(solved.read([row], slice(None)).values, made.read([0], slice(None)).values)


def test_a_value_that_was_not_trained_is_set_beside_those_that_were(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["held_out", str(run), "--out", str(tmp_path)]) == 0
    found = read(tmp_path / f"{NAME}-held_out.json")["burgers"]["nu=0.003"]
    trained = list(found["trained"].values())
    assert len(trained) == 3 and sum(trained) / 3 == pytest.approx(rollouts(run)["burgers"], rel=1e-4)
    assert found["ratio"][0] == pytest.approx(found["held out"] / (sum(trained) / 3))
    assert "| burgers, nu=0.003 | no |" in capsys.readouterr().out
    assert main(["held_out", str(run), "--value", "nu=0.01", "--out", str(tmp_path)]) == 2
    assert "give a value that is not there" in capsys.readouterr().err


def test_a_finer_grid_is_asked_for_the_same_trajectories(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["resolution", str(run), "--points", "64", "--out", str(tmp_path)]) == 0
    found = read(tmp_path / f"{NAME}-resolution.json")["tasks"]
    for task, error in rollouts(run).items():
        assert found[task]["trained grid"] == pytest.approx(error, rel=1e-4)
        assert 0 < found[task]["floor"] < 1
        larger = max(found[task]["trained grid"], found[task]["floor"])
        assert found[task]["ratio"][0] == pytest.approx(found[task]["finer grid"] / larger)
    # What 32 points resolve is on 64 what it was; a truth of other starts would be wrong by more than its own size.
    assert found["kuramoto_sivashinsky"]["floor"] < 0.02
    assert "| kuramoto_sivashinsky | 32 → 64 |" in capsys.readouterr().out


def test_rollouts_go_on_for_four_times_the_trained_horizon(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["horizon", str(run), "--out", str(tmp_path)]) == 0
    found = read(tmp_path / f"{NAME}-horizon.json")["tasks"]
    assert {task: entry["steps"] for task, entry in found.items()} == {"burgers": 12, "kuramoto_sivashinsky": 12}
    assert all(entry["not finite"] == 0 and entry["first step"] is None for entry in found.values())
    bands = found["kuramoto_sivashinsky"]["octaves"]
    assert [band["first"] for band in bands] == [1, 2, 4, 8][: len(bands)] and "octaves" not in found["burgers"]
    assert sum(band["share"] for band in bands) == pytest.approx(1, abs=1e-3)
    for task, error in rollouts(run).items():
        entry = found[task]
        assert 0 < entry["error"]["1"] < 4 * error and entry["error"]["4"] < 2 * entry["persistence"]
        assert 0 <= entry["clamped"] < 1
    assert "| burgers | 12 | " in (table := capsys.readouterr().out) and " % | 0 of 3 | – |" in table


def test_a_model_that_leaves_the_numbers_is_found_out(run: Path) -> None:
    with unseen.loaded(run, None, None) as model:
        for parameter in model.predictor.model.parameters():  # pyright: ignore[reportAttributeAccessIssue]
            parameter.data.fill_(math.nan)
        found = unseen.horizon(model, ["burgers"], 2, [])["burgers"]
    assert (found["not finite"], found["first step"], found["steps"]) == (3, 1, 6)


def test_values_that_guards_cut_off_are_counted(run: Path) -> None:
    with unseen.loaded(run, None, None) as model:
        guards = model.predictor.model.get_submodule("guards_burgers")
        free = unseen.horizon(model, ["burgers"], 2, [])["burgers"]["clamped"]
        ends = [guards.get_buffer(name) for name in ("lower", "upper")]
        for end in ends:  # a range of nothing: only that of the field that a step starts from is left
            end.copy_(torch.stack(ends).mean(0))
        tight = unseen.horizon(model, ["burgers"], 2, [])["burgers"]["clamped"]
    assert 0 <= free < tight < 1


def test_parameters_of_one_task_alone_are_not_counted_as_serving_several(run: Path) -> None:
    with unseen.loaded(run, None, None) as model:
        network = model.predictor.model
        found = unseen.serving_several(model)
        own = [n for n, _ in network.named_parameters() if "task_" in n or "nu" in n.split(".") or "position" in n]
        alone = sum(p.numel() for n, p in network.named_parameters() if n in own)
    assert found["parameters"] == sum(p.numel() for p in network.parameters())
    assert alone > 0 and found["serving several"] <= found["parameters"] - alone
    assert 0.5 < found["share"] == found["serving several"] / found["parameters"] < 1


def test_all_that_needs_no_more_training_is_one_file_named_after_the_model(run: Path, tmp_path: Path, capsys) -> None:
    command = ["after", str(run), "--points", "64", "--out", str(tmp_path)]
    assert main(command) == 0
    found = read(tmp_path / f"{NAME}-after.json")
    assert list(found) == ["parameters", "held_out", "resolution", "horizon"]
    assert "% of " in (table := capsys.readouterr().out) and "| kuramoto_sivashinsky | 32 → 64 |" in table
    assert main(command) == 0 and not capsys.readouterr().out  # nothing was left to do
    assert read(tmp_path / f"{NAME}-after.json") == found


def test_what_was_trained_apart_makes_the_table_of_what_is_trained_together(run: Path, tmp_path: Path, capsys) -> None:
    names = [word for task in TASKS for word in ("--task", task)]
    where = ["--out", str(tmp_path)]
    assert main(["ratios", "--seconds", str(SECONDS), *where]) == 2
    assert "train one with `joint` first" in capsys.readouterr().err
    for seed in ("0", "1"):
        command = ["joint", "--seconds", str(SECONDS), "--seed", seed, *names, *where]
        assert main([*command, *DATA, *HASTE]) == 0
    assert main(["after", str(tmp_path / f"joint-{SECONDS:g}s-seed0"), "--points", "64", *where]) == 0
    assert main(["ratios", "--seconds", str(SECONDS), *where]) == 2
    assert f"has no {SECONDS / 2:g}s-burgers-seed0.json" in capsys.readouterr().err
    sizes = ["compare.fno.width=4", "compare.fno.modes=4", "compare.fno.depth=1", "compare.fno.training.batch_size=2"]
    own = ["specialists", "--seconds", str(SECONDS / 2), *where, *DATA, *HASTE, *sizes]
    assert main([*own, "--task", "burgers"]) == 0
    shutil.rmtree(tmp_path / "data")
    capsys.readouterr()
    assert main(["ratios", "--seconds", str(SECONDS), *where]) == 0
    told = capsys.readouterr().out
    assert "specialists of 0.025 s of kuramoto_sivashinsky" in told and "parameters serve several tasks" in told
    assert main([*own, "--task", "kuramoto_sivashinsky"]) == 0
    assert main(["ratios", "--seconds", str(SECONDS), *where]) == 0
    found = read(tmp_path / f"ratios-{SECONDS:g}s.json")
    own = known(tmp_path / f"{SECONDS / 2:g}s-burgers-seed0.json")
    for seed in (0, 1):
        joint = known(tmp_path / f"joint-{SECONDS:g}s-seed{seed}.json")
        told = found["tasks"]["burgers"]["rollout"]["ratios"]
        ours, theirs = (result.errors["burgers"]["rollout"] for result in (joint, own))
        assert told["specialist"][seed] == list(ratio(ours["model"], theirs["model"], seed))
        assert told["fno"][seed] == list(ratio(ours["model"], theirs["fno"], seed))
    assert set(found["counts"]) == {"specialist", "fno"} and list(found["parameters"]) == [f"joint-{SECONDS:g}s-seed0"]
    other = replace(own, errors={"burgers": {"rollout": {w: [1.0, 2.0, 3.0] for w in ("model", "persistence")}}})
    with pytest.raises(UserError, match="were tested on other trajectories"):
        beside(joint, {"burgers": other})


def test_an_export_is_as_good_as_its_run(run: Path, tmp_path: Path, capsys) -> None:
    export_model(*load_model(run), tmp_path / "model")
    assert main(["horizon", str(tmp_path / "model"), "--out", str(tmp_path)]) == 2
    assert "name its configuration: --config universal" in capsys.readouterr().err
    config = str(run / "config.yaml")
    assert main(["held_out", str(tmp_path / "model"), "--config", config, "--out", str(tmp_path / "export")]) == 0
    assert main(["held_out", str(run), "--out", str(tmp_path)]) == 0
    assert read(tmp_path / "export" / "model-held_out.json") == read(tmp_path / f"{NAME}-held_out.json")


def test_octaves_are_compared_where_they_hold_energy() -> None:
    x = torch.linspace(0, 2 * math.pi, 65, dtype=torch.float64)[:-1]
    waves = torch.stack([torch.sin(k * x) for k in (1, 3, 20)])
    truth = (waves * torch.tensor([1.0, 0.1, 1e-4])[:, None]).sum(0)[None, None, :, None]
    wrong = (waves * torch.tensor([1.0, 0.2, 1.0])[:, None]).sum(0)[None, None, :, None]
    found = unseen.octaves(wrong, truth)
    assert [(band["first"], band["last"]) for band in found] == [(1, 1), (2, 3)]
    assert [band["ratio"] for band in found] == [pytest.approx(1), pytest.approx(4)]


def test_specialists_of_single_tasks_make_one_table(tmp_path: Path, capsys) -> None:
    sizes = ["compare.fno.width=4", "compare.fno.modes=4", "compare.fno.depth=1", "compare.fno.training.batch_size=2"]
    darcy = ["tasks.darcy.make.trajectories=10", "tasks.darcy.make.settings.points=8"]
    tasks = ["--task", "burgers", "--task", "darcy"]
    command = ["specialists", *tasks, "--seconds", str(SECONDS), "--out", str(tmp_path)]
    assert main([*command, *DATA, *darcy, *HASTE, *sizes]) == 0
    found = read(tmp_path / f"specialists-{SECONDS:g}s.json")
    assert set(found["tasks"]) == {"burgers", "darcy"}
    judged = found["counts"]["tasks"] + found["counts"]["not counted"]
    assert sorted(judged) == ["burgers", "darcy"]
    first = capsys.readouterr().out
    assert "- fno: 2 trainings, " in first
    assert main([*command, *DATA, *darcy, *HASTE, *sizes]) == 0
    assert first.endswith(capsys.readouterr().out)  # nothing but the table: all was done


def test_few_trajectories_of_a_task_are_tested_as_all_of_them_are(run: Path, tmp_path: Path, capsys) -> None:
    tasks = ["--task", "burgers", "--task", "kuramoto_sivashinsky"]
    command = ["scarce", *tasks, "--among", "burgers", "--trajectories", "8", "--seconds", str(SECONDS)]
    assert main([*command, "--out", str(tmp_path), *DATA, *HASTE]) == 0
    found = read(tmp_path / f"scarce-8-{SECONDS:g}s-seed0.json")["tasks"]["burgers"]
    whole = json.loads((run / "metrics.json").read_text())["tasks"]["burgers"]["rollout"]["nrmse"]
    assert found["persistence"] == pytest.approx(whole["persistence"], rel=1e-4)
    assert found["ratio"][0] == pytest.approx(found["joint"] / found["specialist"], rel=1e-4)
    for task in TASKS:  # one joint model for each, in which the other task is whole
        few = run_config(tmp_path / f"scarce-{task}-8-{SECONDS:g}s-seed0").tasks
        assert [name for name, told in few.items() if told.files] == [task] and set(few) == set(TASKS)
    train = open_dataset(tmp_path / "data" / "seed0" / "scarce-8" / "burgers_train.hdf5", "burgers")
    assert len(train) == 8 and set(read_all(train).parameters["nu"].tolist()) == {0.001, 0.01, 0.1}
    assert main(["scarce", "--task", "burgers", "--trajectories", "900", "--out", str(tmp_path), *DATA]) == 2
    assert "burgers has 24 to train on; ask for fewer" in capsys.readouterr().err
