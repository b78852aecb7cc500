"""What is measured beside `ups bench --universal`, at toy size: the programs of benchmarks/universal_bars.py."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from toy_universal import DATA, HASTE, SECONDS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import unseen
from solved import judged_on, splits
from universal_bars import main

from ups.data.open import open_dataset
from ups.data.settings import MakeConfig
from ups.models.export import export_model
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
    found = read(tmp_path / "held_out.json")["burgers"]["nu=0.003"]
    trained = list(found["trained"].values())
    assert len(trained) == 3 and sum(trained) / 3 == pytest.approx(rollouts(run)["burgers"], rel=1e-4)
    assert found["ratio"][0] == pytest.approx(found["held out"] / (sum(trained) / 3))
    assert "| burgers, nu=0.003 | no |" in capsys.readouterr().out
    assert main(["held_out", str(run), "--value", "nu=0.01", "--out", str(tmp_path)]) == 2
    assert "give a value that is not there" in capsys.readouterr().err


def test_a_finer_grid_is_asked_for_the_same_trajectories(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["resolution", str(run), "--points", "64", "--out", str(tmp_path)]) == 0
    found = read(tmp_path / "resolution.json")["tasks"]
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
    found = read(tmp_path / "horizon.json")["tasks"]
    assert {task: entry["steps"] for task, entry in found.items()} == {"burgers": 12, "kuramoto_sivashinsky": 12}
    assert all(entry["not finite"] == 0 and entry["first step"] is None for entry in found.values())
    bands = found["kuramoto_sivashinsky"]["octaves"]
    assert [band["first"] for band in bands] == [1, 2, 4, 8][: len(bands)] and "octaves" not in found["burgers"]
    assert sum(band["share"] for band in bands) == pytest.approx(1, abs=1e-3)
    assert "| burgers | 12 | 0 of 3 | – |" in capsys.readouterr().out


def test_a_model_that_leaves_the_numbers_is_found_out(run: Path) -> None:
    with unseen.loaded(run, None, None) as model:
        for parameter in model.predictor.model.parameters():  # pyright: ignore[reportAttributeAccessIssue]
            parameter.data.fill_(math.nan)
        found = unseen.horizon(model, ["burgers"], 2, [])["burgers"]
    assert (found["not finite"], found["first step"], found["steps"]) == (3, 1, 6)


def test_an_export_is_as_good_as_its_run(run: Path, tmp_path: Path, capsys) -> None:
    export_model(*load_model(run), tmp_path / "model")
    assert main(["horizon", str(tmp_path / "model"), "--out", str(tmp_path)]) == 2
    assert "name its configuration: --config universal" in capsys.readouterr().err
    config = str(run / "config.yaml")
    assert main(["held_out", str(tmp_path / "model"), "--config", config, "--out", str(tmp_path / "export")]) == 0
    assert main(["held_out", str(run), "--out", str(tmp_path)]) == 0
    assert read(tmp_path / "export" / "held_out.json") == read(tmp_path / "held_out.json")


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
    found = read(tmp_path / "specialists.json")
    assert set(found["tasks"]) == {"burgers", "darcy"}
    judged = found["counts"]["tasks"] + found["counts"]["not counted"]
    assert sorted(judged) == ["burgers", "darcy"]
    first = capsys.readouterr().out
    assert "- fno: 2 trainings, " in first
    assert main([*command, *DATA, *darcy, *HASTE, *sizes]) == 0
    assert first.endswith(capsys.readouterr().out)  # nothing but the table: all was done


def test_few_trajectories_of_a_task_are_tested_as_all_of_them_are(run: Path, tmp_path: Path, capsys) -> None:
    command = ["scarce", "--task", "burgers", "--among", "kuramoto_sivashinsky", "--trajectories", "8"]
    assert main([*command, "--seconds", str(SECONDS), "--out", str(tmp_path), *DATA, *HASTE]) == 0
    found = read(tmp_path / "scarce-8-seed0.json")["tasks"]["burgers"]
    whole = json.loads((run / "metrics.json").read_text())["tasks"]["burgers"]["rollout"]["nrmse"]
    assert found["persistence"] == pytest.approx(whole["persistence"], rel=1e-4)
    assert found["ratio"][0] == pytest.approx(found["joint"] / found["specialist"], rel=1e-4)
    store = tmp_path / "scarce-joint-1-8-seed0" / "store"
    assert {path.name for path in store.iterdir() if path.is_dir()} == {"burgers", "kuramoto_sivashinsky"}
    train = open_dataset(tmp_path / "data" / "seed0" / "scarce-8" / "burgers_train.hdf5", "burgers")
    assert len(train) == 8 and set(read_all(train).parameters["nu"].tolist()) == {0.001, 0.01, 0.1}
    assert main(["scarce", "--task", "burgers", "--trajectories", "900", "--out", str(tmp_path), *DATA]) == 2
    assert "burgers has 24 to train on; ask for fewer" in capsys.readouterr().err
