"""What a configuration leaves open is chosen for its tasks and the device, said, and kept by its run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ups import pipeline
from ups.cli.main import app
from ups.config.load import save_config
from ups.data.generate.make import generate
from ups.equations.named import named_equation
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


BOX = """
name: box
tasks:
  gray_scott_3d: {make: {equation: gray_scott_3d, trajectories: 10, settings: {points: 32}}}
compare: [fno]
"""


def test_a_box_has_a_latent_for_every_point_unless_they_are_too_many(written: Path) -> None:
    written.write_text(BOX)
    here, there = (load_run(written, [f"runtime.device={device}"]) for device in ("cpu", "cuda"))
    assert here.tasks["gray_scott_3d"].latent_spacing == pytest.approx(2 / 32)  # 16³ latents
    assert there.tasks["gray_scott_3d"].latent_spacing is None
    assert there.training.sampling.points == 2 * 32**3
    fno = there.compare.fno.tasks["gray_scott_3d"]
    assert fno.modes <= 16 and fno.training.batch_size == 4
    large = "tasks.gray_scott_3d.make.settings.points=256"
    config, chosen = explained(written, ["runtime.device=cuda", large])
    assert config.tasks["gray_scott_3d"].latent_spacing == pytest.approx(2 / 256)
    assert "16,777,216 latents, one a point, would take too long a step; each now stands for 2³ points" in str(
        next(choice for choice in chosen if choice.key[-1] == "latent_spacing")
    )


def test_a_plane_has_a_latent_for_every_point_up_to_a_limit_of_the_device(written: Path) -> None:
    for device, most, more in (("cpu", 128, 256), ("cuda", 512, 1024)):
        for points, spacing in ((most, None), (more, 2 / more)):
            told = [f"runtime.device={device}", f"tasks.darcy.make.settings.points={points}"]
            found = load_run(written, told).tasks["darcy"].latent_spacing
            assert found == (spacing if spacing is None else pytest.approx(spacing))


@pytest.mark.parametrize("points", [16, 24, 18])
def test_a_file_of_a_box_has_coarser_latents_as_soon_as_it_is_there(
    written: Path, tmp_path: Path, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.write_text(
        "name: box\ntasks: {gray_scott_3d: {files: {train: [box.hdf5]}}}\n"
        f"data: {{root: {tmp_path}}}\nruntime: {{device: cpu}}\n"
    )
    assert load_run(written, []).tasks["gray_scott_3d"].latent_spacing is None
    equation = named_equation("gray_scott_3d", {"points": points, "frames": 3, "duration": 10.0})
    generate(equation, 4, 0, tmp_path / "box.hdf5", workers=1)
    config, chosen = explained(written, [])
    told = next(str(choice) for choice in chosen if choice.key[-1] == "latent_spacing")
    if points == 16:
        assert config.tasks["gray_scott_3d"].latent_spacing is None
        assert told.endswith("= null: a latent for each of its 16 x 16 x 16 points")
    else:
        assert config.tasks["gray_scott_3d"].latent_spacing == pytest.approx(2 * equation.grid.spacing[0])
        assert f"{points**3:,} latents, one a point, would take too long a step" in told
    save_config(config, tmp_path / "again.yaml")
    monkeypatch.setattr("ups.pipeline.defaults.open_files", None)  # a configuration that says it opens no file
    assert load_run(tmp_path / "again.yaml", []).tasks == config.tasks


def test_every_setting_that_is_chosen_is_said_with_its_reason(written: Path) -> None:
    for device in ("cpu", "cuda"):
        _, chosen = explained(written, [f"runtime.device={device}"])
        said = {".".join(choice.key): choice for choice in chosen}
        operator = {f"stages.operator.{name}" for name in ("width", "depth", "modes")}
        training = {f"training.{name}" for name in ("sampling.points", "learning_rate", "ema")}
        latents = {f"tasks.{task}.latent_spacing" for task in ("burgers", "darcy")}
        assert operator | training | latents | {"runtime.tf32", "runtime.compile"} <= set(said)
        assert all(choice.why for choice in chosen)
    assert said["training.sampling.points"].why.endswith("about 256 of burgers, 16 of darcy")
    assert "diffusion-reaction" in said["compare.fno.tasks.darcy.training.learning_rate"].why


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["tasks.gray_scott_3d.latent_spacing=0.0009765625"],
            r"task 'gray_scott_3d': one sample of 1024 x 1024 x 1024 points needs at least 4,020 GB to train operator, "
            r"the cpu has \S+ GB; give tasks.gray_scott_3d.latent_spacing=0.00781, a latent for 8 points an axis",
        ),
        (
            ["compare={fno: {width: 64}}"],
            r"to train fno, the cpu has \S+ GB; lower fno.width or depth, or use data of fewer",
        ),
        (
            [
                *(f"tasks.gray_scott_3d.make.settings.{extent}" for extent in ("points=256", "frames=1001")),
                *("tasks.gray_scott_3d.latent_spacing=0.0625", "compare={}"),
            ],
            r"task 'gray_scott_3d': one trajectory, 1001 frames of 256 x 256 x 256 points, needs at least 403 GB to be "
            r"measured and judged, and there are \S+ GB; give data of fewer frames or points",
        ),
    ],
)
def test_a_box_that_does_not_fit_is_refused_before_anything_is_made(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], sentence: str
) -> None:
    monkeypatch.setattr("ups.equations.base.host_memory", lambda: 10**15)  # that data could be made
    written.write_text(BOX)
    told = ["runtime.device=cpu", "tasks.gray_scott_3d.make.settings.points=1024", *overrides]
    with pytest.raises(UserError, match=sentence):
        pipeline.train(written, told, tmp_path / "runs")
    assert not list(tmp_path.glob("**/*.hdf5*"))


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
