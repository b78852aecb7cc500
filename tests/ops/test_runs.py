"""What is said of runs: while they work, when they are killed, beside one another, and what of them may go."""

from __future__ import annotations

import fcntl
import io
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ups import pipeline
from ups.cli.main import app
from ups.distributed.faults.heartbeat import Heartbeat, heartbeat_path
from ups.errors import UserError
from ups.ops import compare as comparison
from ups.ops.clean import leftovers, remove
from ups.ops.runs import all_runs, state_of
from ups.ops.sweep import combinations
from ups.ops.watch import curve, frame
from ups.pipeline.sweep import sweep
from ups.track.jsonl import read_events

TOY = """
name: toy
tasks: {burgers: {make: {equation: burgers, trajectories: 30, settings: {points: 32, frames: 9, duration: 0.5}}}}
data: {seed: 0, workers: 1}
stages: {operator: {width: 8, depth: 1, modes: 8, head: 8}}
training: {steps: 20, batch_size: 4, validate_every: 10, checkpoint_every: 5}
evaluation: {resamples: 100, pictures: 1}
runtime: {device: cpu, threads: 1}
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "toy.yaml"
    path.write_text(TOY)
    return path


@pytest.fixture(scope="module")
def runs(toy: Path) -> Path:
    """Two seeds and two lengths of training on the same data, and one run on other data."""
    folder = toy.parent / "runs"
    sweep(str(toy), ["training.steps=1,200"], folder)
    pipeline.run(str(toy), ["data.seed=5", "name=other"], folder, page=False)
    return folder


def test_a_sweep_makes_a_run_of_each_combination_and_does_none_twice(toy: Path, runs: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/metrics.json")}
    found, failed = sweep(str(toy), ["training.steps=1,200"], runs)
    assert [(run.name, run.state, run.step) for run in found] == [
        ("toy_steps1", "finished", 1),
        ("toy_steps200", "finished", 200),
    ]
    assert not failed and before == {path: path.stat().st_mtime_ns for path in runs.glob("*/metrics.json")}


def test_a_sweep_goes_on_after_a_run_that_fails_and_says_why(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "toy_batch_size1").mkdir()
    (tmp_path / "toy_batch_size1" / "report.html").write_text("not a run's")
    done = CliRunner().invoke(
        app, ["sweep", str(toy), "training.batch_size=1,2", "training.steps=1", "--runs", str(tmp_path), "--json"]
    )
    said = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert done.exit_code == 1 and list(said["failed"]) == ["toy_batch_size1"]
    assert [(run["name"], run["state"]) for run in said["runs"]] == [("toy_batch_size2", "finished")]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["seed=0"], "nothing is swept"),
        (["seed"], "not of the form"),
        (["name=a,b"], "names its runs itself"),
        (["training.rollout=[[0,1]],[[0, 1]]"], "two runs would be called"),
        (["seed=" + ",".join(map(str, range(257)))], "at most 256"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_its_first_run(overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        combinations("toy", overrides)


def test_lists_are_one_value_of_a_sweep() -> None:
    found = combinations("toy", ["training.rollout=[[0,1]],[[0,2]]", "seed=0,1", "training.steps=5"])
    lists = ["toy_rollout-0-1-", "toy_rollout-0-2-"]
    assert list(found) == [f"{rollout}_seed{seed}" for rollout in lists for seed in (0, 1)]
    assert found["toy_rollout-0-2-_seed1"] == ["training.rollout=[[0,2]]", "seed=1", "training.steps=5"]


def test_the_list_says_of_each_run_what_its_files_say(runs: Path) -> None:
    found = {run.name: run for run in all_runs(runs)}
    assert set(found) == {"toy_steps1", "toy_steps200", "other"}
    for name, run in found.items():
        metrics = json.loads((runs / name / "metrics.json").read_text())["tasks"]["burgers"]["rollout"]["nrmse"]
        assert run.metric == pytest.approx(metrics["model"] / metrics["persistence"])
        assert run.bytes == sum(path.stat().st_size for path in (runs / name).rglob("*") if path.is_file())
    assert (found["other"].stage, found["other"].step, found["other"].steps) == ("operator", 20, 20)
    validations = [e for e in read_events(runs / "other/stages/operator/events.jsonl") if e["kind"] == "validation"]
    assert validations and all(0 <= event["cut_off"]["burgers"] <= 1 for event in validations)
    said = CliRunner().invoke(app, ["runs", str(runs), "--json"])
    assert {run["name"] for run in json.loads(said.stdout)} == set(found)


def test_a_run_is_running_then_crashed_when_it_is_killed_and_gone_when_it_is_removed(toy: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ups", "-q", "train", str(toy), "--runs", str(tmp_path), "training.steps=100000"]
    process = subprocess.Popen([*command, "training.validate_every=50000"])
    run = tmp_path / "toy"
    try:
        until = time.monotonic() + 120
        while "steps/s" not in _text(run):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.2)
        assert "waits for data" in _text(run)
        shown = state_of(run)
        assert (shown.state, shown.stage, shown.steps) == ("running", "operator", 100000)
        assert not leftovers(run)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    finally:
        process.kill()
        process.wait(20)
    last = [event for event in read_events(run / "stages/operator/events.jsonl") if event["kind"] == "step"][-1]
    assert (state_of(run).state, state_of(run).step) == ("crashed", last["step"])
    shutil.rmtree(run)
    with pytest.raises(UserError, match="was removed"):
        frame(run)


def test_ranks_of_another_machine_are_elsewhere(runs: Path, tmp_path: Path) -> None:
    """Whose process ids are others' here, and whose clock since its start says nothing."""
    shutil.copytree(runs / "other", tmp_path / "other", ignore=shutil.ignore_patterns("store", "data"))
    path = heartbeat_path(tmp_path / "other", 0)
    Heartbeat(path, 0, 0).mark("update", 7)
    content = path.read_bytes()
    with (tmp_path / "other" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert re.search(r"0 +update, step 7 +0 s +[\d.]+ GB", _text(tmp_path / "other"))
        path.write_bytes(content[:104] + struct.pack("<Qd", 1, struct.unpack("<d", content[112:])[0] - 300))
        assert re.search(r"0 +update, step 7 +5 min +elsewhere", _text(tmp_path / "other"))


def _text(run: Path) -> str:
    """What is shown of it; nothing before it is a run."""
    console = Console(width=100, record=True, file=io.StringIO())
    try:
        console.print(frame(run)[0])
    except UserError:
        return ""
    return console.export_text()


def test_a_curve_is_logarithmic_and_leaves_gaps() -> None:
    assert curve([1.0, None, 0.1, 0.01, float("nan")]) == "█ ▅▁ "
    assert len(curve([1.0] * 1000)) == 60 and curve([]) == curve([None]) == ""


def test_differences_on_the_same_trajectories_are_paired_and_others_are_not(runs: Path) -> None:
    rows = comparison.compare([runs / "toy_steps1", runs / "toy_steps200", runs / "other"])
    rollouts = {Path(row.run).name: row for row in rows if row.kind == "rollout"}
    assert rollouts["toy_steps1"].ratio is None
    longer, other = rollouts["toy_steps200"], rollouts["other"]
    assert (longer.paired, longer.decided) == (True, True) and longer.ratio.value < 1
    assert longer.ratio.value == pytest.approx(longer.error / rollouts["toy_steps1"].error)
    assert not other.paired and all(row.low <= row.error <= row.high for row in rows)
    # Trajectories differ more from one another than models do: drawn together, the ratio is known better.
    apart = comparison._unpaired(*(_errors(runs / name) for name in ("toy_steps200", "toy_steps1")))
    assert longer.ratio.high - longer.ratio.low < apart.high - apart.low


def _errors(run: Path) -> list[float]:
    return json.loads((run / "evaluation" / "errors.json").read_text())["burgers"]["rollout"]["operator"]


def test_a_run_beside_itself_is_within_noise(runs: Path) -> None:
    rows = comparison.compare([runs / "other", runs / "other"])
    assert [row.decided for row in rows] == [False] * 4
    assert comparison.differences([runs / "other", runs / "other"]) == {}


def test_what_is_configured_otherwise_is_said_and_drawn(runs: Path, tmp_path: Path) -> None:
    two = [str(runs / "toy_steps1"), str(runs / "other")]
    done = CliRunner().invoke(app, ["compare", *two, "--json", "--plot", str(tmp_path / "both.svg")])
    assert json.loads(done.stdout)["configuration"] == {"data.seed": [0, 5], "training.steps": [1, 20]}
    assert "<svg" in (tmp_path / "both.svg").read_text()
    CliRunner().invoke(app, ["compare", *two, "--plot", str(tmp_path / "both.pdf")])
    assert (tmp_path / "both.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(UserError, match=r"ends in .png, .pdf, .svg, .html"):
        CliRunner().invoke(app, ["compare", "gone", "gone", "--plot", "both.jpg"], catch_exceptions=False)


def test_a_comparison_in_a_pipe_has_a_line_a_row(runs: Path, tmp_path: Path) -> None:
    for name in ("toy_steps1", "other"):
        shutil.copytree(runs / name, tmp_path / f"{name}_{'long' * 10}", ignore=shutil.ignore_patterns("store", "data"))
    two = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        [sys.executable, "-m", "ups", "compare", *two], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    rows = done.stdout.partition("\n\n")[0].splitlines()
    assert len(rows) == 5 and max(map(len, rows)) > 80


def test_a_comparison_is_a_page_that_leads_to_the_reports(runs: Path, tmp_path: Path) -> None:
    for name in ("toy_steps1", "toy_steps200", "other"):
        shutil.copytree(runs / name, tmp_path / name, ignore=shutil.ignore_patterns("store", "data"))
    (tmp_path / "other" / "report.html").write_text("a report")
    three = [str(tmp_path / name) for name in ("toy_steps1", "toy_steps200", "other")]
    done = CliRunner().invoke(app, ["compare", *three, "--plot", str(tmp_path / "all.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "all.html").read_text()
    assert "toy_steps200: better than toy_steps1 in" in page and "<td>—</td>" in page
    assert ">training.steps</th><td>1</td><td>200</td><td>20</td>" in page
    assert page.count('href="other/report.html"') == 1 and "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(("runs_of", "sentence"), [(["other"], "two runs"), (["other", "gone"], "gone has no config")])
def test_a_comparison_that_cannot_be_is_refused(runs: Path, runs_of: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        comparison.compare([runs / name for name in runs_of])


def test_runs_without_a_common_test_set_are_refused(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs / "other", other)
    errors = other / "evaluation" / "errors.json"
    errors.write_text(errors.read_text().replace('"burgers"', '"heat"'))
    with pytest.raises(UserError, match="no test set in common"):
        comparison.compare([runs / "other", other])


@pytest.mark.parametrize("file", ["metrics.json", "stages/operator/stage.json", "config.yaml"])
def test_a_damaged_run_does_not_hide_those_beside_it(runs: Path, tmp_path: Path, file: str) -> None:
    for name in ("toy_steps1", "other"):
        shutil.copytree(runs / name, tmp_path / name, ignore=shutil.ignore_patterns("store"))
    path = tmp_path / "other" / file
    path.write_bytes(path.read_bytes()[:40] if path.suffix == ".json" else b"")
    listed = CliRunner().invoke(app, ["runs", str(tmp_path)], catch_exceptions=False).stdout
    assert "toy_steps1  finished" in listed and "other       damaged" in listed
    cleaned = CliRunner().invoke(app, ["clean", str(tmp_path), "--json"], catch_exceptions=False).stdout
    assert {Path(left["path"]).parts[-2] for left in json.loads(cleaned)} >= {"toy_steps1"} and "other" not in cleaned
    alone = ["clean", str(tmp_path / "other")], ["watch", str(tmp_path / "other")]
    both = ["compare", str(tmp_path / "toy_steps1"), str(tmp_path / "other")]
    for command in alone if file.endswith("stage.json") else [*alone, both]:
        with pytest.raises(UserError, match=f"{path} is (damaged|empty)"):
            CliRunner().invoke(app, command, catch_exceptions=False)


def test_what_goes_is_made_again_and_the_run_says_the_same(toy: Path, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "other", tmp_path / "other")
    run = tmp_path / "other"
    before = (run / "evaluation" / "errors.json").read_text()
    torn = run / "stages" / "operator" / "events.jsonl.0123.tmp"
    torn.write_text("half")
    asked = CliRunner().invoke(app, ["clean", str(tmp_path)], input="n\n")
    assert "may go" in asked.stdout and torn.exists()
    with pytest.raises(UserError, match="nothing was removed, as nobody answered; give --yes"):
        CliRunner().invoke(app, ["clean", str(tmp_path)], catch_exceptions=False)
    found = leftovers(tmp_path)
    assert {left.path.name for left in found} >= {torn.name, "store", "data"}
    assert remove(found, tmp_path) == sum(left.bytes for left in found) > 0
    assert not torn.exists() and not (run / "data").exists() and leftovers(tmp_path) == []
    pipeline.evaluate(run)
    assert (run / "evaluation" / "errors.json").read_text() == before
