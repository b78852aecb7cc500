"""benchmarks/pdebench_views.py at toy size: few trajectories and models of a few channels, in the views as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from toy_universal import HASTE, SECONDS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import pdebench_views
from pdebench_views import ROWS, main

from ups.data.open import open_dataset
from ups.data.views import PDEBENCH, pdebench_view
from ups.fields import Batch, Boundary, Header


@pytest.mark.parametrize("row", ROWS)
def test_the_data_of_every_row_are_of_the_published_view(row: str) -> None:
    for equation in ROWS[row].settings.values():
        header = Header(
            row, equation.channels, equation.grid, equation.times, Boundary.all("periodic", equation.dimension)
        )

        class Described:
            task, grid = row, equation.grid

            def __len__(self) -> int:
                return 1

            def read(self, indices: list[int], frames: slice) -> Batch:
                raise NotImplementedError

        Described.header = header  # pyright: ignore[reportAttributeAccessIssue]
        view = pdebench_view(Described())  # pyright: ignore[reportArgumentType]
        assert view.grid.shape == (PDEBENCH[row].points,) * equation.dimension
        assert len(view.header.times) == (PDEBENCH[row].frames or len(view.header.times))


def test_a_row_has_a_number_for_each_setting_or_one_for_all() -> None:
    for row in ROWS.values():
        for numbers in (row.aim, row.paper, row.tuned, row.large):
            assert len(numbers) in (0, 1, len(row.settings))
        assert row.aim and set(row.pooled) <= set(row.settings)


def test_one_specialist_learns_all_settings_of_a_row(tmp_path: Path, capsys) -> None:
    command = ["advection", *HASTE, "--trajectories", "8", "--seconds", str(SECONDS), "--out", str(tmp_path)]
    assert main(command) == 0
    found = json.loads((tmp_path / "pdebench-advection.json").read_text())["found"]["settings"]
    assert list(found) == ["beta0.1", "beta0.4", "beta1", "beta4"]
    run = tmp_path / f"pdebench-advection-{SECONDS:g}s-seed0"
    metrics = json.loads((run / "metrics.json").read_text())["tasks"]
    for label, entry in found.items():
        assert entry["nrmse"] == pytest.approx(metrics[f"advection@{label}"]["rollout"]["nrmse"]["model"], rel=1e-5)
    errors = json.loads((run / "evaluation" / "errors.json").read_text())
    assert {len(kinds["rollout"]["persistence"]) for kinds in errors.values()} == {2}
    made = open_dataset(tmp_path / "data" / "pdebench" / "train-8" / "1D_Advection_Sols_beta0.1.hdf5")
    assert (len(made), made.grid.shape, len(made.times)) == (8, (256,), 201)
    assert "the aim is reached on 0 of 1 rows" in (printed := capsys.readouterr().out)
    assert main(["--out", str(tmp_path)]) == 0 and printed.endswith(capsys.readouterr().out)
    assert main([*command, "--seed", "1"]) == 2
    assert "holds results of other settings" in capsys.readouterr().err


def test_a_steady_row_is_judged_by_its_solutions(tmp_path: Path, capsys) -> None:
    command = ["darcy", *HASTE, "--trajectories", "8", "--seconds", str(SECONDS), "--out", str(tmp_path)]
    assert main([*command, "training.sampling.points=4096"]) == 0
    assert "| darcy | beta1 | " in capsys.readouterr().out


def test_an_aim_is_reached_in_every_setting_or_in_their_mean() -> None:
    def row(*errors: float | None) -> dict:
        labels = list(ROWS["burgers"].settings)
        entries = {label: {"nrmse": e, "persistence": 1.0} for label, e in zip(labels, errors, strict=True)}
        return {"settings": entries, "training": {"seconds": 1.0}}

    def said(**rows: dict) -> str:
        return pdebench_views.markdown(rows).splitlines()[-1]

    assert said(burgers=row(0.005, 0.002, 0.001, 0.002)) == "the aim is reached on 1 of 1 rows"
    assert said(burgers=row(0.001, 0.001, 0.0011, 0.001)) == "the aim is reached on 0 of 1 rows"
    assert said(burgers=row(0.001, None, 0.001, 0.001)) == "the aim is reached on 0 of 1 rows"
    betas = list(ROWS["advection"].settings)
    entries = {
        beta: {"nrmse": e, "persistence": 1.0} for beta, e in zip(betas, (0.002, 0.001, 0.001, 0.002), strict=True)
    }
    assert said(advection={"settings": entries, "training": {"seconds": 1.0}}) == "the aim is reached on 1 of 1 rows"
