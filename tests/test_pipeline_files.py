"""A run on data in files: which are read, and what of them is refused, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest

from ups import pipeline
from ups.data.tasks import task as registered
from ups.distributed.launch.run_directory import begun
from ups.errors import UserError
from ups.simulator import load


def files_config(folder: Path, train: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(
        f"name: mine\ntasks: {{burgers: {{files: {{train: [{train}]}}}}}}\n"
        "stages: {operator: {width: 8, depth: 1, modes: 4}}\n"
        "training: {steps: 4, batch_size: 4, validate_every: 4, checkpoint_every: 4}\nruntime: {threads: 1}\n"
        f"data: {{root: {folder}}}\nevaluation: {{resamples: 100}}\n"
    )
    return path


@pytest.fixture
def burgers_file(finished_run: Path, tmp_path: Path) -> Path:
    original = finished_run / "data" / "1D_Burgers_Sols_Nu0.01.hdf5"
    path = tmp_path / original.name
    path.write_bytes(original.read_bytes())
    return path


def test_files_of_the_published_layout_train_too(burgers_file: Path, tmp_path: Path) -> None:
    pipeline.run(str(files_config(tmp_path, burgers_file.name)), [], tmp_path / "runs")
    metrics = json.loads((tmp_path / "runs" / "mine" / "metrics.json").read_text())
    assert metrics["tasks"]["burgers"]["rollout"]["nrmse"].keys() == {
        "model",
        "persistence",
        "operator",
        "ci95",
        "ci95_of",
        "ratio95_of",
    }


def test_a_mistake_that_led_to_nothing_does_not_use_up_the_name(burgers_file: Path, tmp_path: Path) -> None:
    config = str(files_config(tmp_path, burgers_file.name))
    with pytest.raises(UserError, match="is not there"):
        pipeline.run(config, ["data.root=/nowhere"], tmp_path / "runs")
    pipeline.run(config, [], tmp_path / "runs")
    assert json.loads((tmp_path / "runs" / "mine" / "outcome.json").read_text())["state"] == "finished"


def test_a_mistake_in_the_last_task_leaves_the_name_and_makes_nothing_of_the_first(
    burgers_file: Path, tmp_path: Path
) -> None:
    config = str(files_config(tmp_path, burgers_file.name))
    wrong = "tasks.advection.make={equation: advection, trajectories: 4, values: {gamma: [1.0]}}"
    with pytest.raises(UserError, match="no setting 'gamma'"):
        pipeline.run(config, [wrong], tmp_path / "runs")
    assert not begun(tmp_path / "runs" / "mine")
    pipeline.build_stores(config, ["training.steps=5"], tmp_path / "runs", 1)
    assert begun(tmp_path / "runs" / "mine")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("stages.operator.start=gone",), "gone holds no trained model"),
        (("stages.operator.start={finished}", "stages.operator.like=b2"), "like is 'b2', which is no task of"),
        (("compare.fno.training.rollout=[[0,1],[0.5,20]]",), "frames, too few for 20 steps of 1"),
        (("compare.fno.tasks.burgers.training.strides={'20': 1}",), "frames, too few for 1 steps of 20"),
    ],
)
def test_what_only_a_later_training_needs_is_looked_at_before_the_first(
    burgers_file: Path, finished_run: Path, tmp_path: Path, overrides: tuple[str, ...], sentence: str
) -> None:
    config = str(files_config(tmp_path, burgers_file.name))
    with pytest.raises(UserError, match=sentence):
        pipeline.run(config, [o.replace("{finished}", str(finished_run)) for o in overrides], tmp_path / "runs")
    assert not begun(tmp_path / "runs" / "mine")


def test_an_unknown_task_is_refused_before_others_are_read(burgers_file: Path, tmp_path: Path) -> None:
    config = str(files_config(tmp_path, burgers_file.name))
    with pytest.raises(UserError, match=r"task 'b2' is not registered.*`define:`"):
        pipeline.run(config, ["tasks.b2.files.train=[x.hdf5]"], tmp_path / "runs")
    assert not (tmp_path / "runs" / "mine" / "store").exists()


def test_a_file_that_is_listed_twice_is_refused(burgers_file: Path, tmp_path: Path) -> None:
    config = str(files_config(tmp_path, f"{burgers_file.name}, {burgers_file.name}"))
    with pytest.raises(UserError, match=r"Nu0\.01\.hdf5 is listed twice"):
        pipeline.run(config, [], tmp_path / "runs")


def test_nan_in_a_file_is_named_with_file_sample_and_channel(burgers_file: Path, tmp_path: Path) -> None:
    with h5py.File(burgers_file, "r+") as file:
        file["tensor"][7, 3, 5] = float("nan")
    with pytest.raises(UserError, match=r"Nu0.01.hdf5: sample 7 has NaN .* channel 'u'"):
        pipeline.run(str(files_config(tmp_path, burgers_file.name)), [], tmp_path / "runs")


def test_a_truncated_a_foreign_and_a_missing_file_are_named(burgers_file: Path, tmp_path: Path) -> None:
    whole = burgers_file.read_bytes()
    burgers_file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"Nu0\.01\.hdf5"):
        pipeline.run(str(files_config(tmp_path, burgers_file.name)), ["name=a"], tmp_path / "runs")
    with h5py.File(tmp_path / "foreign.hdf5", "w") as file:
        file["something"] = [1, 2, 3]
    with pytest.raises(UserError, match=r"foreign.hdf5.*tensor"):
        pipeline.run(str(files_config(tmp_path, "foreign.hdf5")), ["name=b"], tmp_path / "runs")
    with pytest.raises(UserError, match=r"gone.hdf5 is not there"):
        pipeline.run(str(files_config(tmp_path, "gone.hdf5")), ["name=c"], tmp_path / "runs")


def test_a_test_file_that_was_trained_on_is_refused(finished_run: Path, tmp_path: Path) -> None:
    data = finished_run / "data" / "2D_DarcyFlow_beta1.0_Train.hdf5"
    path = tmp_path / "leak.yaml"
    path.write_text(
        f"name: leak\ntasks: {{darcy: {{files: {{train: [{data}], validation: 5, test: {{darcy: {data}}}}}}}}}\n"
    )
    with pytest.raises(UserError, match="is the same as"):
        pipeline.run(str(path), [], tmp_path / "runs")


def defining_config(file: Path, more: str = "", channel: str = "w") -> Path:
    """A configuration that defines the task of a published file, which the package does not know."""
    path = files_config(file.parent, file.name)
    known = f"dimension: 1, channels: [{channel}], boundary: periodic, parameters: [nu]{more}"
    path.write_text(path.read_text().replace("burgers: {files", f"shock_tube: {{define: {{{known}}}, files"))
    return path


def test_a_task_defined_in_yaml_needs_no_change_of_the_package(burgers_file: Path, tmp_path: Path) -> None:
    """Published files of a task the package does not know: defined beside the data, read, trained, evaluated.

    The time between frames is the files', and there is a latent for every point. Another configuration in the same
    process may mean something else by the name.
    """
    pipeline.run(str(defining_config(burgers_file)), ["name=own"], tmp_path / "runs")
    metrics = json.loads((tmp_path / "runs" / "own" / "metrics.json").read_text())
    assert list(metrics["tasks"]) == ["shock_tube"]
    learned = load(tmp_path / "runs" / "own", "cpu").tasks["shock_tube"]
    assert learned.spec.dt == pytest.approx(0.05) and learned.frame.patch == (1,)
    with pytest.raises(UserError, match="task 'shock_tube' is not registered"):
        registered("shock_tube")
    other = defining_config(burgers_file, ", dt: 0.05, latent_spacing: 0.03125", channel="speed")
    pipeline.build_stores(str(other), ["name=other"], tmp_path / "runs", 1)
    assert '"name": "speed"' in (tmp_path / "runs" / "other" / "store" / "shock_tube.learned.json").read_text()


def test_a_definition_that_contradicts_its_data_is_refused(burgers_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"defined with dt 0\.1, its frames are 0\.05 apart"):
        pipeline.run(str(defining_config(burgers_file, ", dt: 0.1")), [], tmp_path / "runs")
