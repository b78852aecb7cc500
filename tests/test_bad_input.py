"""Data that no textbook has: refused in one sentence before training, or trained on and scored in finite numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ups
from ups import pipeline
from ups.data.agreement import check_fields
from ups.data.formats.layouts import named_layout
from ups.data.generate.make import equation_header
from ups.equations import Compressible1D
from ups.errors import UserError
from ups.fields import Batch, Boundary, Grid, Header

SMALL: dict[str, Any] = {
    "stages": {"operator": {"width": 8, "depth": 1, "modes": 4, "head": 8}},
    "evaluation": {"resamples": 100, "pictures": 1},
    "runtime": {"threads": 1, "device": "cpu"},
}


def waves(count: int, seed: int = 0, points: int = 32, frames: int = 9) -> torch.Tensor:
    """Travelling sines, (count, frames, points, 1)."""
    size, phase = torch.rand(2, count, 1, 1, 1, generator=torch.Generator().manual_seed(seed))
    x, t = (torch.arange(points) + 0.5) / points, 0.1 * torch.arange(frames)[:, None]
    return (0.5 + size) * torch.sin(2 * torch.pi * (x - 0.3 * t + phase[..., 0]))[..., None]


def file(folder: Path, name: str, values: torch.Tensor, channels: tuple[str, ...] = ("u",)) -> dict[str, Any]:
    """The task of a file of these values, defined beside it."""
    count, frames, *space, _ = values.shape
    grid, boundary = Grid.cell_centred(tuple(space)), Boundary.all("periodic", len(space))
    header = Header(name, channels, grid, 0.1 * torch.arange(frames).double(), boundary)
    batch = Batch(name, values.float(), header.times.expand(count, -1), grid, boundary, {}, {}, torch.arange(count))
    with named_layout("pdebench-grouped").writer(folder / f"{name}.h5", header, count) as writer:
        writer.write(batch)
    define = {"dimension": len(space), "channels": list(channels), "boundary": "periodic"}
    return {"define": define, "files": {"train": [f"{name}.h5"]}}


def run(folder: Path, tasks: dict[str, Any], **training: Any) -> Path:
    config = {"name": "odd", "tasks": tasks, "data": {"root": str(folder), "workers": 1}, "training": training, **SMALL}
    (folder / "odd.yaml").write_text(yaml.safe_dump(config))
    pipeline.run(str(folder / "odd.yaml"), [], folder / "runs")
    return folder / "runs" / "odd"


def test_odd_data_and_a_budget_of_a_second_give_finite_numbers(tmp_path: Path) -> None:
    plane = waves(20, 1, 8)[:, :, :, None] * waves(20, 2, 8)[:, :, None]
    fading = torch.exp(-torch.arange(9) / 9.0).view(9, 1, 1) * torch.linspace(1, 2, 20).view(20, 1, 1, 1)
    odd = {
        "three": waves(3),
        "huge": 1e12 * waves(20),
        "plane": plane,  # its channel has the name of those in one dimension
        "uniform": fading.expand(-1, -1, 32, -1),  # constant in space
        "half": torch.cat([waves(20), 0 * waves(20)], -1),  # a channel that is always zero
    }
    tasks = {name: file(tmp_path, name, v, ("u", "v")[: v.shape[-1]]) for name, v in odd.items()}
    folder = run(tmp_path, tasks, seconds=1)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["state"] == "finished" and metrics["training"]["operator"]["step"] >= 50
    for name, views in metrics["tasks"].items():
        for view in ("one_step", "rollout"):
            assert 0 < views[view]["nrmse"]["model"] < 10, (name, view)
    sim = ups.load(folder)
    for name, values in odd.items():
        found = sim.rollout(values[0, 0], steps=8, task=name)
        assert bool(found.values.isfinite().all()) and not any("NaN" in note for note in found.warnings)
    assert not bool(sim.rollout(odd["half"][0, 0], steps=8, task="half").values[..., 1].any())


def test_test_data_far_beyond_the_training_data_are_said_at_the_end_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = waves(30)
    values[[0, 2]] *= torch.tensor([1e12, 1e3]).view(2, 1, 1, 1)  # of the three that are tested on
    tasks = {"odd": file(tmp_path, "odd", values), "even": file(tmp_path, "even", waves(30, 1))}
    folder = run(tmp_path, tasks, steps=2)
    (note,) = json.loads((folder / "metrics.json").read_text())["notes"]
    assert "trajectory 0 of odd has u = -" in note and "as have 1 more" in note and "e+11 to " in note
    assert f"note: {note}" in capsys.readouterr().out and note in (folder / "report.html").read_text()


def test_a_channel_that_the_data_lack_is_named() -> None:
    flow = Compressible1D(points=32, frames=5)
    lacking = replace(equation_header(flow), channels=("density", "Vx"))
    with pytest.raises(UserError, match=r"task 'compressible_1d' \('density', 'pressure', 'Vx'\); pressure is missing"):
        check_fields("tube", flow.task(), lacking)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (waves(2), "2 trajectories are too few to split; make at least 3"),
        (waves(20)[:, :1], "task 'odd' is transient, but its data have 1 frame"),
        (torch.ones(20, 9, 32, 1), "all trajectories of validation and train data are equal; give trajectories that"),
        (waves(20)[:, :1].expand(-1, 9, -1, -1), "no channel changes from one frame to the next in the training data"),
        (waves(20)[:, :1] + 1e-7 * waves(20), r"no channel changes by more than \S+e-0[78] of its size from one frame"),
    ],
    ids=["two trajectories", "one frame", "constant", "at rest", "a change lost in rounding"],
)
def test_data_that_teach_nothing_are_refused_in_a_sentence(tmp_path: Path, values: torch.Tensor, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        run(tmp_path, {"odd": file(tmp_path, "odd", values)}, steps=2)
