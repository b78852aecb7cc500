"""From one command to a report: the whole run, its resumption, and what it refuses."""

from __future__ import annotations

import fcntl
import html
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from small import SMALLER, TOY

from ups import pipeline
from ups.distributed.launch.outcome import outcome_of
from ups.equations.named import EQUATIONS
from ups.errors import STOPPED, GaveUp, UserError
from ups.metrics import register_metric, registry
from ups.models.saved import ModelSpec
from ups.pipeline.check import check_job
from ups.pipeline.config import load_run
from ups.pipeline.trainings import train_compared
from ups.report.verdict import metrics_table
from ups.training import fit
from ups.training.fit import progress_of
from ups.training.restore import checksum_of, restored

VIEWS = {"advection": ["one_step", "rollout"], "burgers": ["one_step", "rollout"], "darcy": ["one_step"]}


def ups(*arguments: str, cwd: Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ups", *arguments], cwd=cwd, capture_output=True, text=True, timeout=200, **options
    )


def start(command: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_a_finished_run_has_everything_in_its_directory(finished_run: Path) -> None:
    metrics = json.loads((finished_run / "metrics.json").read_text())
    assert metrics["state"] == "finished" and metrics["name"] == "quickstart"
    assert {"data", "train", "evaluate"} <= metrics["seconds"].keys()
    assert {task: list(views) for task, views in metrics["tasks"].items()} == VIEWS
    for views in metrics["tasks"].values():
        for measured in views.values():
            for name, entry in measured.items():
                assert entry.keys() == {"model", "persistence", "operator", "fno", "ci95", "ci95_of", "ratio95_of"}, (
                    name
                )
                assert entry["model"] == entry["operator"] and entry["ci95"] == entry["ci95_of"]["operator"]
            low, high = measured["nrmse"]["ci95"]
            assert low <= measured["nrmse"]["model"] <= high
    assert metrics["training"]["fno_darcy"]["step"] >= 50
    for file in ("config.yaml", "env.json", "stages/operator/events.jsonl", "outcome.json", "report.html"):
        assert (finished_run / file).stat().st_size > 0
    page = (finished_run / "report.html").read_text()
    assert all(EQUATIONS[task].title in html.unescape(page) for task in VIEWS)
    assert EQUATIONS["burgers"].formula in html.unescape(page)
    assert "ups run quickstart" in page


def test_a_finished_run_is_not_done_again(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished_run / "metrics.json").stat().st_mtime_ns
    pipeline.run("quickstart", SMALLER, finished_run.parent)
    assert "nothing to do" in capsys.readouterr().out
    assert (finished_run / "metrics.json").stat().st_mtime_ns == before


def test_a_run_directory_of_another_config_is_refused_and_kept(finished_run: Path) -> None:
    before = (finished_run / "metrics.json").read_bytes()
    with pytest.raises(UserError, match=r"belongs to another configuration \(settings.width differs\)"):
        pipeline.run("quickstart", [*SMALLER, "stages.operator.width=16"], finished_run.parent)
    assert (finished_run / "metrics.json").read_bytes() == before


def test_another_seed_of_a_run_is_told_so_and_not_of_its_data(finished_run: Path) -> None:
    with pytest.raises(UserError, match=r"belongs to another configuration \(seed differs\)"):
        pipeline.run("quickstart", [*SMALLER, "seed=7"], finished_run.parent)


def test_more_ranks_than_samples_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(json.dumps(TOY))
    for override, sentence in (
        ("training.batch_size=4", "training.batch_size is 4 for 8 ranks"),
        ("runtime.shard=3", "runtime.shard is 3, which does not divide the 8 ranks"),
    ):
        told = ["training.batch_size=8", "runtime.strategy=hsdp", override]
        with pytest.raises(UserError, match=sentence):
            pipeline.run(tmp_path / "toy.yaml", told, tmp_path / "runs", 8)
        assert not (tmp_path / "runs").exists()


def test_what_many_ranks_trained_one_process_may_evaluate(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(json.dumps(TOY))
    config = load_run(tmp_path / "toy.yaml", ["runtime.strategy=hsdp", "runtime.shard=2"])
    check_job(config, tmp_path / "toy", 1, 1)
    with pytest.raises(UserError, match="does not divide the 3 ranks"):
        check_job(config, tmp_path / "toy", 3, 3)


def test_more_steps_for_a_stage_that_a_trained_one_stands_on_are_refused_before_any_training(tmp_path: Path) -> None:
    task = "{make: {equation: advection, trajectories: 10, values: {beta: [0.4]}, settings: {points: 32, frames: 5}}}"
    (tmp_path / "two.yaml").write_text(
        f"tasks: {{advection: {task}}}\ntraining: {{steps: 4, batch_size: 2}}\nruntime: {{threads: 1}}\n"
        "stages: {first: {kind: codec, width: 4, modes: 2}, second: {kind: cached, width: 4, modes: 2, on: [first]}}"
    )
    pipeline.train(tmp_path / "two.yaml", [], tmp_path)
    first = tmp_path / "two" / "stages" / "first"
    before = checksum_of(first), progress_of(first)
    for work in (pipeline.train, pipeline.run):
        with pytest.raises(UserError, match=r"second stands on first as it is now.* stages.second.training alone"):
            work(tmp_path / "two.yaml", ["training.steps=8"], tmp_path)
        assert (checksum_of(first), progress_of(first)) == before
    pipeline.train(tmp_path / "two.yaml", ["stages.second.training.steps=8"], tmp_path)
    assert (checksum_of(first), progress_of(first)) == before
    assert progress_of(tmp_path / "two" / "stages" / "second")["step"] == 8


def test_evaluating_and_reporting_again_gives_the_same_numbers(finished_run: Path) -> None:
    before = json.loads((finished_run / "metrics.json").read_text())["tasks"]
    assert pipeline.evaluate(finished_run)["tasks"] == before
    assert pipeline.report(finished_run).is_file()


def test_a_refused_command_leaves_a_finished_run_finished(finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "quickstart")
    before = (tmp_path / "quickstart" / "outcome.json").read_bytes()
    with pytest.raises(UserError, match="there is no step left to profile"):
        pipeline.train("quickstart", SMALLER, tmp_path, profile=3)
    assert (tmp_path / "quickstart" / "outcome.json").read_bytes() == before


def test_a_trained_stage_is_known_by_its_manifest_alone(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No model is built and no tensor read: many ranks may have trained what one process could not hold."""
    shutil.copytree(finished_run, tmp_path / "quickstart")
    for tensors in tmp_path.glob("quickstart/stages/*/checkpoints/*/*.safetensors"):
        tensors.unlink()
    monkeypatch.setattr(ModelSpec, "build", None)
    pipeline.train("quickstart", SMALLER, tmp_path)
    assert "operator is trained" in capsys.readouterr().out


def test_a_compared_family_has_the_device_seconds_of_the_model_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one network uses more than its share, the next ones have less."""
    asked: list[float] = []

    def trained(runtime: Any, plan: Any, seconds: float) -> dict[str, float]:
        asked.append(seconds)
        return {"device_seconds": 5.0}

    monkeypatch.setattr("ups.pipeline.trainings.fit", trained)
    family: Any = {"fno": dict.fromkeys(("advection", "burgers", "darcy"))}
    train_compared(None, family, 12.0)  # pyright: ignore[reportArgumentType]
    assert asked == [4.0, 3.5, 2.0]


def test_a_training_that_diverged_is_given_up_in_a_sentence(tmp_path: Path) -> None:
    changes = ["training.learning_rate=1000", "training.steps=19"]  # too few steps to find twenty bad gradients
    for _ in range(2):  # the same command again must not find it finished
        with pytest.raises(GaveUp, match="training diverged"):
            pipeline.run("quickstart", [*SMALLER, *changes], tmp_path)
        assert outcome_of(tmp_path / "quickstart").state == "gave_up"


def test_a_model_whose_error_is_not_finite_is_no_success(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path, runtime):
        stage = restored(folder, runtime)
        if folder.name == "operator":
            next(stage.trainable().parameters()).data.fill_(math.nan)
        return stage

    monkeypatch.setattr("ups.pipeline.judge.restored", broken)
    folder = tmp_path / "quickstart"
    shutil.copytree(finished_run, folder)
    with pytest.raises(GaveUp, match=r"error is not finite on advection \(one step\), advection \(rollout\)"):
        pipeline.evaluate(folder)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["state"] == "evaluated"  # and not finished: `ups run` would say there is nothing to do
    assert metrics_table(metrics).count("not finite") == 5
    assert "not finite" in pipeline.report(folder).read_text()


def test_a_metric_of_the_users_own_is_in_the_metrics_and_in_the_report(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_known", dict(registry._known))  # forgotten after this test
    register_metric("last_error", lambda prediction, truth, _: (prediction - truth)[:, -1].abs().flatten(1).mean(1))
    folder = tmp_path / "quickstart"
    shutil.copytree(finished_run, folder)
    metrics = pipeline.evaluate(folder)
    for views in metrics["tasks"].values():
        for measured in views.values():
            assert measured["last_error"].keys() == measured["nrmse"].keys()
            assert measured["last_error"]["model"] > 0
    assert "last error" in pipeline.report(folder).read_text()


def test_ctrl_c_says_what_is_kept_and_the_same_command_ends_with_the_same_numbers(
    finished_run: Path, tmp_path: Path
) -> None:
    """Interrupted in training; the model's metrics are equal to the last digit (the FNOs' budgets are in seconds)."""
    command = [sys.executable, "-m", "ups", "run", "quickstart", *SMALLER]
    process = start(command, tmp_path)
    events = tmp_path / "runs" / "quickstart" / "stages" / "operator" / "events.jsonl"
    deadline = time.monotonic() + 120
    while not (events.exists() and b'"step"' in events.read_bytes()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == STOPPED, output
    assert "is saved in" in output and "start the same command again" in output
    again = ups("run", "quickstart", *SMALLER, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    resumed = json.loads((tmp_path / "runs" / "quickstart" / "metrics.json").read_text())
    whole = json.loads((finished_run / "metrics.json").read_text())
    for task, views in whole["tasks"].items():
        for view, measured in views.items():
            for name, entry in measured.items():
                assert resumed["tasks"][task][view][name]["model"] == entry["model"], (task, view, name)


def test_an_unfinished_training_is_not_evaluated_as_if_it_were_finished(tmp_path: Path, finished_run: Path) -> None:
    folder = tmp_path / "runs" / "quickstart"
    shutil.copytree(finished_run, folder)
    shutil.rmtree(folder / "stages" / "operator" / "checkpoints" / "step_00000040")
    with pytest.raises(UserError, match="trained to step 20 of 40"):
        pipeline.evaluate(folder)


def test_without_its_fnos_a_run_is_evaluated_but_not_finished(tmp_path: Path, finished_run: Path) -> None:
    folder = tmp_path / "runs" / "quickstart"
    shutil.copytree(finished_run, folder)
    shutil.rmtree(folder / "compare")
    metrics = pipeline.evaluate(folder)
    assert metrics["state"] == "evaluated"
    assert "fno" not in metrics["tasks"]["darcy"]["one_step"]["nrmse"]
    assert "ups run quickstart" in json.loads((folder / "evaluation" / "details.json").read_text())["command"]


def test_a_run_that_is_given_a_time_keeps_its_number_of_steps_and_sets_specialists_beside(tmp_path: Path) -> None:
    """`training.seconds` becomes a number of steps once; a network a task may be trained where one serves all."""
    config = tmp_path / "timed.yaml"
    made = "{equation: %s, trajectories: 12, settings: {points: 16, frames: 5, duration: 0.2}}"
    tasks = ", ".join(f"{name}: {{make: {made % name}}}" for name in ("advection", "burgers"))
    small = "width: 8, depth: 1, modes: 4, head: 8"
    config.write_text(
        f"tasks: {{{tasks}}}\nstages: {{operator: {{{small}}}}}\ntraining: {{seconds: 1, batch_size: 4}}\n"
        f"compare: {{specialist: {{architecture: spectral, per_task: true, {small}}}}}\n"
    )
    told = ["runtime.threads=1", "data.workers=1", "evaluation.resamples=100"]
    pipeline.run(str(config), told, tmp_path / "runs")
    folder = tmp_path / "runs" / "timed"
    metrics = json.loads((folder / "metrics.json").read_text())
    steps = json.loads((folder / "stages" / "operator" / "budget.json").read_text())["steps"]
    assert metrics["training"]["operator"]["step"] == steps >= 50 and metrics["state"] == "finished"
    assert {"specialist_advection", "specialist_burgers"} <= set(metrics["training"])
    assert set(metrics["tasks"]["burgers"]["rollout"]["nrmse"]) >= {"operator", "specialist", "persistence"}
    assert pipeline.evaluate(folder)["tasks"] == metrics["tasks"]  # it knows how many steps were asked for
    pipeline.run(str(config), [*told, "training.seconds=2"], tmp_path / "runs")
    more = json.loads((folder / "metrics.json").read_text())["training"]["operator"]["step"]
    assert more == pytest.approx(2 * steps, abs=2)


def test_a_training_that_is_given_a_time_has_the_faster_number_of_threads(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(fit, "_seconds_per_step", lambda runtime, plan, threads: 9.0 if threads == 2 else 0.01)
    monkeypatch.setattr(fit, "_threads", lambda runtime: [2, 1])
    config = tmp_path / "threads.yaml"
    made = "{equation: advection, trajectories: 12, settings: {points: 16, frames: 5, duration: 0.2}}"
    stage = "{operator: {width: 8, depth: 1, modes: 4, head: 8}}"
    config.write_text(
        f"tasks: {{advection: {{make: {made}}}}}\nstages: {stage}\ntraining: {{seconds: 1, batch_size: 4}}\n"
    )
    pipeline.train(str(config), ["runtime.threads=2", "data.workers=1"], tmp_path / "runs")
    folder = tmp_path / "runs" / "threads" / "stages" / "operator"
    budget = json.loads((folder / "budget.json").read_text())
    assert (budget["threads"], budget["steps"]) == (1, 100)


def test_ctrl_c_while_data_are_made_keeps_what_was_solved(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ups", "run", "quickstart", *SMALLER]
    command += ["tasks.burgers.make.trajectories=640", "data.workers=2"]
    process = start(command, tmp_path)
    data = tmp_path / "runs" / "quickstart" / "data"
    deadline = time.monotonic() + 120
    while not (solved := list(data.glob(".1D_Burgers*/*.arrays"))):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    output, _ = process.communicate(timeout=60)
    assert process.returncode == STOPPED, output
    assert "640 trajectories of burgers, nu=0.01 are kept" in output
    assert all(chunk.exists() for chunk in solved)
    outcome = json.loads((tmp_path / "runs" / "quickstart" / "outcome.json").read_text())
    assert outcome["state"] == "stopped"


def test_ctrl_c_while_workers_start_is_a_stop_too(tmp_path: Path) -> None:
    more = ["tasks.burgers.make.trajectories=640", "data.workers=2"]
    process = start([sys.executable, "-m", "ups", "run", "quickstart", *SMALLER, *more], tmp_path)
    deadline = time.monotonic() + 120
    while not any("multiprocessing.forkserver" in line for line in commands_of_group(process.pid)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    time.sleep(0.3)  # it imports torch, which takes seconds
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == STOPPED and "stopped: " in output and "Traceback" not in output, output


def commands_of_group(group: int) -> list[str]:
    """The command lines of its living processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may have ended
            if int(stat.read_text().rpartition(")")[2].split()[2]) == group:
                found.append(stat.with_name("cmdline").read_text())
    return found


def test_a_run_directory_in_use_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "quickstart"
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="in use by another process"):
            pipeline.run("quickstart", SMALLER, tmp_path / "runs")


def test_a_run_whose_directory_is_removed_ends_in_a_sentence_and_does_not_come_back(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(json.dumps(TOY))
    command = [sys.executable, "-m", "ups", "run", "toy.yaml", "training.steps=100000", "training.checkpoint_every=10"]
    process = start([*command, "training.validate_every=50000"], tmp_path)
    folder, deadline = tmp_path / "runs" / "toy", time.monotonic() + 120
    while not (folder / "stages" / "operator" / "checkpoints" / "latest").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    folder.rename(tmp_path / "elsewhere")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "error: runs/toy was removed or moved while its job ran" in output, output
    assert not folder.exists()


def test_a_run_whose_directory_is_removed_before_its_report_says_that_and_not_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.yaml").write_text(json.dumps(TOY))
    folder = tmp_path / "runs" / "toy"

    def late(directory: Path) -> Path:
        folder.rename(tmp_path / "elsewhere")
        return pipeline.report(directory)

    monkeypatch.setattr(sys.modules["ups.pipeline.run"], "report", late)
    with pytest.raises(UserError, match="runs/toy was removed or moved while its job ran"):
        pipeline.run(tmp_path / "toy.yaml", [], folder.parent)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("stages.operator.widht=9", "stages.operator.width"),
        ("training.steps=many", "training.steps"),
        ("tasks.advection.make.equation=advektion", "advection"),
        ("tasks.advection.make.values.gamma=[1.0]", "gamma"),
        ("runtime.device=cuda", "no GPU"),
    ],
)
def test_mistakes_in_the_config_are_one_sentence_and_exit_2(tmp_path: Path, override: str, sentence: str) -> None:
    result = ups("run", "quickstart", *SMALLER, override, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_data_made_for_one_run_serve_another_with_fewer_tasks(finished_run: Path, tmp_path: Path) -> None:
    """Through `data.root`: a file's seed does not follow from the task's place among the others."""
    config = tmp_path / "one.yaml"
    settings = "settings: {points: 128, frames: 11, duration: 0.5}"
    make = f"{{equation: burgers, trajectories: 20, values: {{nu: [0.02]}}, {settings}}}"
    config.write_text(f"name: one\ntasks: {{burgers: {{make: {make}}}}}\ndata: {{root: {finished_run / 'data'}}}\n")
    before = {path.name: path.stat().st_mtime_ns for path in (finished_run / "data").iterdir()}
    pipeline.build_stores(str(config), [], tmp_path / "runs", 1)
    assert {path.name: path.stat().st_mtime_ns for path in (finished_run / "data").iterdir()} == before
