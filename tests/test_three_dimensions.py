"""A task in three dimensions, from its file to the report."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
import yaml

import ups
from ups import pipeline
from ups.data.formats.layouts import named_layout
from ups.fields import Batch, Boundary, Grid, Header

SPACE, FRAMES, COUNT = (12, 8, 8), 6, 24
SPEED = torch.tensor([0.8, -0.4, 0.3])


def drifting(file: Path) -> torch.Tensor:
    """Waves in a box that drift with the same speed, exact, in The Well's layout; their values."""
    grid = Grid.cell_centred(SPACE, [(0.0, 1.5), (0.0, 1.0), (0.0, 1.0)])
    times = 0.1 * torch.arange(FRAMES, dtype=torch.float64)
    draws = torch.rand(COUNT, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = torch.stack(torch.meshgrid(*grid.positions, indexing="ij"), -1)
    moved = points - SPEED.double() * times.view(-1, 1, 1, 1, 1)
    phase = 2 * math.pi * (moved / torch.tensor([1.5, 1.0, 1.0]) + draws[:, :3].view(-1, 1, 1, 1, 1, 3))
    values = ((0.5 + draws[:, 3]).view(-1, 1, 1, 1, 1) * phase.sin().prod(-1) + phase[..., 0].cos())[..., None].float()
    boundary = Boundary.all("periodic", 3)
    header = Header("drift", ("u",), grid, times, boundary)
    batch = Batch("drift", values, times.expand(COUNT, -1), grid, boundary, {}, {}, torch.arange(COUNT))
    with named_layout("well").writer(file, header, COUNT) as writer:
        writer.write(batch)
    return values


def test_a_task_in_three_dimensions_goes_from_its_file_to_the_report(tmp_path: Path) -> None:
    values = drifting(tmp_path / "drift.hdf5")
    config = {
        "name": "box",
        "tasks": {
            "drift": {
                "define": {"dimension": 3, "channels": ["u"], "boundary": "periodic"},
                "files": {"train": ["drift.hdf5"]},
            }
        },
        "data": {"root": str(tmp_path), "workers": 1},
        "stages": {"operator": {"width": 12, "depth": 1, "modes": 3, "head": 12}},
        "compare": {
            "fno": {"width": 8, "modes": 3, "depth": 2},
            "unet": {"width": 4},
        },
        "training": {"steps": 40, "batch_size": 6, "warmup": 4, "validate_every": 20, "checkpoint_every": 40},
        "evaluation": {"resamples": 100, "pictures": 2},
        "runtime": {"threads": 1, "device": "cpu"},
    }
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(config))
    pipeline.run(str(tmp_path / "box.yaml"), [], tmp_path / "runs")
    folder = tmp_path / "runs" / "box"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["state"] == "finished"
    for view in ("one_step", "rollout"):
        errors = metrics["tasks"]["drift"][view]["nrmse"]
        assert {"fno", "unet", "persistence"} <= set(errors)
        assert all(0 < errors[name] < 3 for name in ("model", "fno", "unet"))
        assert errors["model"] < 0.9 * errors["persistence"]
    with np.load(folder / "evaluation" / "drift.npz") as arrays:
        assert arrays["truth"].shape == (2, FRAMES, *SPACE, 1)
        assert arrays["wavenumbers"].tolist() == [0, 1, 2, 3, 4]
        spectrum = arrays["spectrum_truth"]  # a wave along x alone, and one along all axes with |k| = √3
        assert np.argsort(spectrum)[-2:].tolist() == [2, 1] and spectrum[[0, 3, 4]].max() < 1e-10
    page = (folder / "report.html").read_text()
    assert page.count('data-sample="0" data-channel="0"') == 3  # the plane's film, the box from a corner, and the cuts
    assert "of the plane that is drawn: z = 0.562" in page
    found = ups.load(folder).rollout(values[0, 0], steps=5)
    assert found.values.shape == (5, *SPACE, 1) and bool(found.values.isfinite().all())
