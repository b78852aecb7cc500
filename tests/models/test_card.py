"""The card of a model that is handed over says what the run knows, and nothing that it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

import ups
from ups import checkpoint
from ups.models.export import export_model
from ups.pipeline.export import card, export
from ups.report.card import model_card
from ups.training.restore import load_model


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What a run leaves of its data and errors."""
    folder = tmp_path / "waves"
    (folder / "evaluation").mkdir(parents=True)
    tasks = {
        "advection": {"make": {"equation": "advection", "trajectories": 12, "values": {"beta": [0.4]}}},
        "darcy": {"files": {"train": ["/data/a|b.hdf5"]}},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump({"name": "waves", "tasks": tasks}))
    data = {"advection": {"trajectories": 9, "licence": ""}, "darcy": {"trajectories": 8, "licence": "CC-BY-NC-4.0"}}
    (folder / "evaluation" / "details.json").write_text(json.dumps({"data": data}))
    good = {"model": 0.02, "operator": 0.02, "persistence": 0.5, "ci95_of": {"operator": [0.01, 0.03]}}
    poor = {"model": 0.6, "operator": 0.6, "persistence": 0.5}
    metrics = {"advection": {"one_step": {"nrmse": good}}, "darcy": {"one_step": {"nrmse": poor}}}
    (folder / "metrics.json").write_text(json.dumps({"tasks": metrics}))
    return folder


def test_a_card_has_data_with_licences_errors_and_limits(trained, run: Path) -> None:
    said = model_card("waves", trained[1], 1234, run, "operator")
    assert yaml.safe_load(said.split("---\n")[1])["library_name"] == "universal-physics-stack"
    assert "`spectral`, 1,234 weights" in said
    assert "| advection | the solver of advection in ups, beta = 0.4 | 9 | made by ups; no licence of others |" in said
    assert "| darcy | a\\|b.hdf5 | 8 | CC-BY-NC-4.0 |" in said
    assert "| advection | one step | 0.0200 | 0.010 to 0.030 | persistence 0.500 |" in said
    assert "No better than the trivial guess in some view of darcy." in said
    assert "| advection | u | 32 points of [0, 1] | periodic" in said and "beta from 0.4 to 0.4" in said
    assert "@software{ups" in said


def test_what_no_run_tells_is_not_made_up(trained, run: Path) -> None:
    said = model_card("waves", trained[1], 1234, None, "waves")
    assert "Not noted here" in said and "Not measured" in said and "trivial guess" not in said
    (run / "evaluation" / "details.json").write_text("{}")  # of an earlier version
    assert "| not noted | not said by the data" in model_card("waves", trained[1], 1234, run, "operator")


def test_the_example_on_a_card_runs_and_the_card_may_be_edited(trained, tmp_path: Path) -> None:
    export_model(*trained, tmp_path / "plain")
    export(tmp_path / "plain", tmp_path / "model")
    text = (tmp_path / "model" / checkpoint.CARD).read_text()
    code = text.split("```python\n")[1].split("```")[0].replace("FOLDER", str(tmp_path / "model"))
    known = {"u0": torch.rand(32)}
    exec(code, known)
    assert known["result"].values.shape == (40, 32, 1)
    (tmp_path / "model" / checkpoint.CARD).write_text("Mine.")
    (tmp_path / "model" / ".gitattributes").write_text("")  # as a clone of a repository has
    assert "simulator" in repr(ups.load(tmp_path / "model"))
    assert card(tmp_path / "model", *load_model(tmp_path / "model")) == "Mine."
