"""A model that is handed over, loaded like a run."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import ups
from ups.checkpoint import CARD, WEIGHTS
from ups.errors import UserError
from ups.models.export import export_model
from ups.report.verdict import number
from ups.simulator import Simulator
from ups.training.restore import load_model


def test_an_exported_model_is_loaded_like_a_run(simulator: Simulator, trained, tmp_path: Path) -> None:
    written = export_model(*trained, tmp_path / "out")
    assert sorted(path.name for path in written) == sorted(path.name for path in (tmp_path / "out").iterdir())
    loaded = ups.load(tmp_path / "out")
    u0 = torch.rand(2, 32, 1)
    ours, theirs = (sim.rollout(u0, steps=5, conditions={"beta": 0.4}) for sim in (simulator, loaded))
    assert torch.equal(ours.values, theirs.values) and theirs.warnings == ours.warnings
    assert all(note.startswith("step ") for note in theirs.warnings)  # random weights leave the range, beta does not
    assert not any(p.requires_grad for p in load_model(tmp_path / "out")[0].parameters())


def test_double_precision_stays_double(trained, tmp_path: Path) -> None:
    model = trained[1].build(3).double()
    export_model(model, trained[1], tmp_path / "out")
    assert {p.dtype for p in load_model(tmp_path / "out")[0].parameters()} == {torch.float64}


def test_a_run_and_its_export_give_the_same(finished_run: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ups", "export", str(finished_run), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "out" / WEIGHTS) in done.stdout
    scores = json.loads((finished_run / "metrics.json").read_text())["tasks"]["burgers"]["rollout"]["nrmse"]
    said = (tmp_path / "out" / CARD).read_text()
    assert f"| burgers | rollout | {number(scores['model'])} |" in said
    assert "| 24 | made by ups; no licence of others |" in said
    u0 = np.sin(2 * np.pi * (np.arange(128) + 0.5) / 128)
    ours, theirs = (
        ups.load(path).rollout(u0, steps=3, conditions={"nu": 0.01}) for path in (finished_run, tmp_path / "out")
    )
    assert torch.equal(ours.values, theirs.values)
    assert (tmp_path / "out" / WEIGHTS).stat().st_size < 5e6  # the weights once, without an optimiser's moments


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(trained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is in a folder that is not there"):
        export_model(*trained, tmp_path / "nowhere" / "out")
    assert list(tmp_path.iterdir()) == []
    export_model(*trained, tmp_path / "out")
    with pytest.raises(UserError, match="exists; choose another place"):
        export_model(*trained, tmp_path / "out")


def test_folders_beside_the_export_are_left_alone(trained, tmp_path: Path) -> None:
    (tmp_path / "out.tmp").mkdir()
    (tmp_path / "out.tmp" / "mine").write_text("kept")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # a disk with no room for the weights
    try:
        with pytest.raises(OSError):
            export_model(*trained, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["out.tmp"]
    export_model(*trained, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.tmp"]
    assert (tmp_path / "out.tmp" / "mine").read_text() == "kept"
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_damaged_export_is_found(trained, tmp_path: Path) -> None:
    export_model(*trained, tmp_path / "out")
    file = tmp_path / "out" / WEIGHTS
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors has checksum"):
        ups.load(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["content"]["content"]["stage"]["settings"]["architecture"] == "spectral"
