"""What a configuration leaves open is chosen for its tasks and the device, said, and kept by its run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ups.cli.main import app
from ups.config.load import save_config
from ups.errors import UserError
from ups.pipeline.config import explained, load_run

BURGERS = """
name: mine
tasks:
  burgers: {make: {equation: burgers, trajectories: 10, settings: {points: 64}}}
  darcy: {make: {equation: darcy, trajectories: 10, settings: {points: 32}}}
compare: [fno]
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(BURGERS)
    return path


def test_tasks_alone_get_settings_that_follow_from_device_and_dimension(written: Path) -> None:
    here, there = (load_run(written, [f"runtime.device={device}"]) for device in ("cpu", "cuda"))
    assert here.stages.operator.width < there.stages.operator.width
    assert here.training.sampling.points < there.training.sampling.points
    assert {here.training.optimiser, there.training.optimiser} == {"muon"}
    line, plane = here.compare.fno.tasks["burgers"], here.compare.fno.tasks["darcy"]
    assert line.width > plane.width and line.training.batch_size > plane.training.batch_size


def test_what_is_written_is_never_chosen(written: Path) -> None:
    told = ["runtime.device=cpu", "training.optimiser=adamw", "training.batch_size=7", "stages.operator.width=24"]
    config, chosen = explained(written, [*told, "compare.0=unet"])
    keys = {".".join(choice.key) for choice in chosen}
    assert config.training.optimiser == "adamw" and config.training.batch_size == 7
    assert not keys & {"training.optimiser", "training.learning_rate", "training.sampling.points"}
    assert "stages.operator.width" not in keys and "stages.operator.depth" in keys
    assert not [key for key in keys if "unet" in key or "fno" in key]


def test_a_family_s_own_settings_hold_for_all_of_its_tasks(written: Path) -> None:
    path = written.with_name("wide.yaml")
    path.write_text(BURGERS.replace("[fno]", "{fno: {width: 12, training: {batch_size: 5}}}"))
    fno = load_run(path, ["runtime.device=cpu"]).compare.fno
    assert fno.width == 12 and all(task.width is None for task in fno.tasks.values())
    assert all(task.training is None or task.training.batch_size is None for task in fno.tasks.values())


def test_a_run_keeps_the_choices_of_the_device_it_began_on(written: Path, tmp_path: Path) -> None:
    began = load_run(written, ["runtime.device=cuda"])
    (tmp_path / "mine").mkdir()
    save_config(began, tmp_path / "mine" / "config.yaml")
    again = load_run(written, ["runtime.device=cpu"], tmp_path)
    assert again.model_dump(exclude={"runtime"}) == began.model_dump(exclude={"runtime"})
    wide = load_run(written, ["runtime.device=cuda", "stages.operator.width=96"])
    save_config(wide, tmp_path / "mine" / "config.yaml")
    assert load_run(written, ["runtime.device=cpu"], tmp_path).stages.operator.width == 24  # told then, and not now


def test_explain_says_what_is_chosen_and_why(written: Path) -> None:
    found = CliRunner().invoke(app, ["explain", str(written), "runtime.device=cpu"])
    assert found.exit_code == 0
    line = next(line for line in found.output.splitlines() if line.startswith("stages.operator.width"))
    assert line.startswith("stages.operator.width = 24: ") and "CPU" in line
    with pytest.raises(UserError, match="no configuration"):
        explained("nothing_of_this_name", [])
