"""What `ups data inspect` and `ups evaluate` print."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import h5py
import pytest
import torch

from ups.data import inspect as inspect_module
from ups.data.generate.make import generate
from ups.data.inspect import describe, inspect_dataset
from ups.data.open import open_dataset
from ups.equations import Advection
from ups.errors import UserError
from ups.fields import Batch, Boundary, Grid, Header, Side
from ups.report.verdict import metrics_table


class InMemory:
    """Six samples of u = n + sin 2πx on four points, three times; beta is 0.1 for the even and 0.4 for the odd."""

    task, channels, boundary = "waves", ("u",), Boundary.all("periodic", 1)
    grid, times = Grid.cell_centred((4,)), torch.tensor([0.0, 0.5, 1.0])

    def __init__(self) -> None:
        self.header = Header(self.task, self.channels, self.grid, self.times, self.boundary, {"beta": None}, ("a",))
        wave = torch.sin(2 * math.pi * self.grid.positions[0]).float()
        self.values = (torch.arange(6.0)[:, None, None] + wave).expand(6, 3, 4)[..., None].clone()

    def __len__(self) -> int:
        return 6

    def read(self, indices: Sequence[int], frames: slice) -> Batch:
        ids = torch.tensor(list(indices))
        values = self.values[ids][:, frames]
        beta = torch.tensor([0.1, 0.4], dtype=torch.float64)[ids % 2]
        times = self.times[frames].expand(len(ids), -1)
        return Batch("waves", values, times, self.grid, self.boundary, {"beta": beta}, {"a": values[:, 0, :, 0]}, ids)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 26])
def test_ranges_do_not_depend_on_how_the_file_is_read(monkeypatch, chunk):
    monkeypatch.setattr(inspect_module, "CHUNK_BYTES", chunk)
    found = inspect_dataset(InMemory())
    peak = math.sqrt(0.5)  # of sin 2πx at the centres of four cells
    field = found["fields"]["u"]
    assert field["min"] == pytest.approx(-peak) and field["max"] == pytest.approx(5 + peak)
    assert field["mean"] == pytest.approx(2.5)
    assert field["rms"] == pytest.approx(math.sqrt(55 / 6 + 0.5))
    assert found["parameters"] == {"beta": [0.1, 0.4]} and found["problems"] == []
    assert found["shape"] == {"samples": 6, "time": 3, "x": 4, "channels": 1}
    assert found["axes"]["x"]["from"] == 0.125 and found["axes"]["x"]["sides"] == ["periodic", "periodic"]


def test_values_that_are_not_numbers_are_found_and_kept_out_of_the_ranges():
    dataset = InMemory()
    dataset.values[4, 1, 2, 0] = float("nan")
    dataset.values[5, 0, 0, 0] = float("inf")
    found = inspect_dataset(dataset)
    assert found["problems"][0] == "u: 2 values are NaN or infinite, in samples 4, 5"
    assert math.isfinite(found["fields"]["u"]["rms"])
    json.dumps(found, allow_nan=False)


def test_a_field_without_any_number_can_still_be_described():
    dataset = InMemory()
    dataset.values[:] = float("nan")
    assert "no finite value" in describe(inspect_dataset(dataset))


def test_a_constant_field_is_a_problem():
    dataset = InMemory()
    dataset.values[:] = 2.0
    assert "u: every value is 2" in inspect_dataset(dataset)["problems"]


def test_a_sample_that_cannot_be_read_is_a_problem_and_the_others_are_described(tmp_path):
    path = generate(Advection(points=16, frames=3), 6, 0, tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        file["tensor"][4, 1, 2] = float("nan")
    found = inspect_dataset(open_dataset(path))
    assert len(found["problems"]) == 1 and "sample 4 has NaN" in found["problems"][0]
    assert math.isfinite(found["fields"]["u"]["rms"])
    assert found["notes"]["seed"] == 0 and "solver" in found["notes"]


def test_the_same_trajectory_twice_is_a_problem():
    dataset = InMemory()
    dataset.values[3] = dataset.values[1]
    found = inspect_dataset(dataset)["problems"]
    assert found == ["samples 1 and 3 are the same: they start equal, under equal conditions"]
    dataset.values[2] = dataset.values[1]  # under another beta
    assert len(inspect_dataset(dataset)["problems"]) == 1


def test_many_problems_of_a_kind_are_counted():
    dataset = InMemory()
    dataset.values[:] = torch.linspace(0, 1, 4)[:, None]
    found = inspect_dataset(dataset)["problems"]
    assert len(found) == 4  # the even and the odd samples are equal among themselves


def test_uneven_times_are_a_problem():
    dataset = InMemory()
    dataset.times = torch.tensor([0.0, 0.5, 2.0])
    assert inspect_dataset(dataset)["problems"][0].startswith("times are uneven: steps from 0.5 to 1.5")


def test_prescribed_values_of_walls_are_said():
    dataset = InMemory()
    dataset.boundary = Boundary(((Side("value", (1.5,)), Side("open")),))
    assert "value 1.5 / open" in describe(inspect_dataset(dataset))


def test_the_description_reads_line_by_line():
    assert describe(inspect_dataset(InMemory())).splitlines()[:5] == [
        "task        waves",
        "shape       (6, 3, 4, 1) (samples, time, x, channels)",
        "axis x      4 points from 0.125 to 0.875 in (0, 1), periodic",
        "times       3 from 0 to 1",
        "parameter   beta = 0.1, 0.4",
    ]


def test_the_table_has_a_column_for_every_predictor_of_the_run():
    labels = [("operator", "UPS", "stage"), ("refiner", "refiner", "stage"), ("fno", "FNO", "compared")]
    labels += [("persistence", "persistence", "baseline")]
    scores = {"model": 0.01, "refiner": 0.01, "operator": 0.03, "persistence": 0.5, "fno": 0.02, "ci95": [0.009, 0.011]}
    steady = {"model": 0.03, "refiner": 0.03, "operator": 0.04, "persistence": 0.3}
    table = metrics_table(
        {
            "model": "refiner",
            "predictors": [{"name": name, "title": title, "kind": kind} for name, title, kind in labels],
            "tasks": {"burgers": {"rollout": {"nrmse": scores}}, "darcy": {"one_step": {"nrmse": steady}}},
        }
    )
    head, *lines = table.splitlines()
    assert re.split(r"  +", head) == [
        "nRMSE", "refiner", "UPS", "FNO", "persistence", "refiner / FNO", "refiner / persistence",
    ]  # fmt: skip
    assert [line.split() for line in lines] == [
        ["burgers", "rollout", "0.0100", "0.0300", "0.0200", "0.5000", "0.5000", "0.0200"],
        ["darcy", "one", "step", "0.0300", "0.0400", "-", "0.3000", "-", "0.1000"],
    ]


def test_the_metrics_of_an_older_version_are_refused_with_what_to_do():
    with pytest.raises(UserError, match="older version of ups; do it again with `ups evaluate"):
        metrics_table({"tasks": {"darcy": {"one_step": {"nrmse": {"model": 0.03, "fno": 0.3}}}}})
