"""benchmarks/error_scaling.py: cells of a grid, trained and put together."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from toy_universal import DATA, HASTE, TASKS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import error_scaling
from error_scaling import Cell, Grid, exponent, main

from ups.bench.ratios import Result, average
from ups.config.load import read_config
from ups.pipeline.bench import UNIVERSAL, known
from ups.pipeline.config import run_config

QUICK = [word for word in HASTE if "width" not in word]


def test_the_exponent_of_a_power_is_found() -> None:
    assert exponent([2, 4, 8, 16], [3 * n**-0.5 for n in (2, 4, 8, 16)]) == pytest.approx((0.5, 3.0))


def test_every_task_of_the_configuration_is_in_the_whole_grid() -> None:
    assert set(error_scaling.ORDER) == set(read_config(UNIVERSAL, []).values["tasks"])
    for grid in (error_scaling.WHOLE, error_scaling.TOY):
        assert max(grid.lines["tasks"]) == len(grid.tasks)
        assert all(getattr(grid.centre, name) in sizes for name, sizes in grid.lines.items())


def test_cells_are_trained_once_and_reported_wherever_their_files_are(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid(TASKS, DATA, Cell(4, 8, 1), {"width": (4, 8), "trajectories": (2, 8), "tasks": (1, 2)})
    monkeypatch.setattr(error_scaling, "TOY", grid)
    out = tmp_path / "first"
    command = ["--toy", "--steps", "3", *QUICK]
    assert main([*command, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    cells = sorted(out.glob("scaling-3steps-*.json"))
    assert len(cells) == 4  # the centre is in every line
    few = run_config(out / "scaling-3steps-width4-n2-tasks1-seed0")
    assert few.training.steps == 3 and few.training.seconds is None
    assert few.tasks["burgers"].files and few.tasks["burgers"].files.trajectories == 2
    results: list[Result] = [known(path) for path in cells]
    assert len({tuple(r.errors["burgers"]["rollout"]["persistence"]) for r in results}) == 1  # one test set
    lines = json.loads((out / "scaling.json").read_text())["lines"]
    assert [lines[name]["tasks"] for name in grid.lines] == [["burgers"]] * 3
    centre = known(out / "scaling-3steps-width4-n8-tasks1-seed0.json").errors["burgers"]["rollout"]
    assert lines["width"]["errors"][0] == pytest.approx(average(centre["model"]) / average(centre["persistence"]))
    assert lines["trajectories"]["errors"][1] == lines["width"]["errors"][0] == lines["tasks"]["errors"][0]
    assert (out / "scaling.svg").read_text().startswith("<?xml")

    elsewhere = tmp_path / "second"
    assert main([*command, "--report", "--out", str(elsewhere)]) == 2
    assert "has no cell of these settings" in capsys.readouterr().err
    elsewhere.mkdir()
    for path in cells[:3]:
        shutil.copy(path, elsewhere)
    assert main([*command, "--report", "--out", str(elsewhere)]) == 0
    assert "| width | 4 | " in (partial := capsys.readouterr().out) and partial.count("–") == 1  # one point, no line
    shutil.copy(cells[3], elsewhere)
    assert main([*command, "--report", "--out", str(elsewhere)]) == 0
    assert printed.endswith(capsys.readouterr().out)
    assert main([*command, "--report", "--line", "width", "--trajectories", "2", "--out", str(elsewhere)]) == 0
    assert [line.split("|")[1] for line in capsys.readouterr().out.splitlines() if "burgers" in line] == [" width "]
    assert json.loads((elsewhere / "scaling.json").read_text())["lines"]["width"]["sizes"] == [4]
