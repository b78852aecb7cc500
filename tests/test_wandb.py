"""One run at Weights & Biases for one run of ours, in the right state, whatever happens to either."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from small import TOY
from wandb_server import Run, serving

import ups.track.tracked as module
from ups import pipeline
from ups.distributed.runtime.settings import RuntimeConfig
from ups.errors import STOPPED, GaveUp, Stopped, UserError
from ups.locks import held
from ups.track.curves import curves
from ups.track.follow import FOLLOWING, Rows, drawn_in, files, identity, records, training_name
from ups.track.jsonl import Events, read_events
from ups.track.rollouts import keep
from ups.track.tracked import check_trackers, tracked

OFFLINE = RuntimeConfig.model_validate({"tracking": ["wandb"], "wandb": {"mode": "offline", "project": "team/toys"}})
FAKE = """
import json, os, time
def told(**what):
    with open(os.environ["TOLD"], "a") as file: file.write(json.dumps(what) + "\\n")
class Values(dict):
    def update(self, *new, **options): told(update=new)
class Run:
    config, summary = Values(), Values()
    def define_metric(self, name, step_metric): told(metric=name)
    def log(self, row): told(row=row)
    def mark_preempting(self): told(preempting=True)
    def finish(self, exit_code): told(finish=exit_code)
def Settings(**settings): return settings
def Image(path, caption): return os.path.basename(path)
def Video(path, format): return os.path.basename(path)
def init(**told_at_first):
    if os.environ.get("HANGS"): time.sleep(600)
    told(init={name: str(value) for name, value in told_at_first.items()})
    return Run()
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run that has trained to step 60, from step 40 on once more."""
    directory = tmp_path / "toy"
    (directory / "stages" / "operator").mkdir(parents=True)
    (directory / "config.yaml").write_text("name: toy\n")
    with Events(directory / "stages" / "operator" / "events.jsonl") as events:
        for attempt, steps in enumerate([(20, 40, 60), (60,)]):
            for step in steps:
                events.write("step", attempt=attempt, step=step, loss=step / 16 + attempt, parts={"heat": float("nan")})
        events.write("validation", attempt=1, step=60, score=0.5, best=True)
    return directory


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of W&B, a package that writes down what it is told."""
    (tmp_path / "fake" / "wandb").mkdir(parents=True)
    (tmp_path / "fake" / "wandb" / "__init__.py").write_text(FAKE)
    monkeypatch.setenv("TOLD", str(tmp_path / "told.jsonl"))
    before = os.environ.get("PYTHONPATH", str(Path(module.__file__).parents[2]))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fake'}:{before}")
    return tmp_path / "told.jsonl"


def told(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_what_is_drawn_of_an_event_are_its_numbers():
    event = {
        "kind": "step",
        "time": "",
        "seconds": 1.0,
        "attempt": 2,
        "step": 7,
        "loss": 0.5,
        "parts": {"a": 1, "b": None},
    }
    assert curves("step", event) == {"step/loss": 0.5, "step/parts/a": 1}
    assert curves("skipped", {"step": 3, "norm": None, "in_a_row": 2, "samples": {"a": [1]}}) == {"skipped/in_a_row": 2}
    assert curves("resumed", {"step": 40}) == {}


def test_steps_that_a_restart_repeats_are_drawn_once(run: Path):
    rows = Rows(run, {("operator", "step"): 20})  # which a file of W&B has already
    assert list(rows.news()) == [
        {"operator/step": 40, "operator/step/loss": 2.5},
        {"operator/step": 60, "operator/step/loss": 3.75},
        {"operator/step": 60, "operator/validation/score": 0.5},
    ]
    path = run / "stages" / "operator" / "events.jsonl"
    line = path.read_bytes().splitlines(keepends=True)[0].replace(b'"step": 20', b'"step": 80')
    with path.open("ab") as file:
        file.write(line[:30])
        file.flush()
        assert list(rows.news()) == []  # half a line is none
        file.write(line[30:])
    assert [row["operator/step"] for row in rows.news()] == [80]


def test_rollouts_of_a_training_are_shown_beside_its_curves_while_it_goes_on(run: Path, fake: Path):
    fields = torch.rand(3, 8, 8, 1)
    kept = keep({"heat": (fields, fields), "gone": (fields, fields)}, run / "stages" / "operator" / "rollouts", 60)
    (run / "stages" / "operator" / "rollouts" / kept["gone"]).unlink()
    with Events(run / "stages" / "operator" / "events.jsonl") as events:
        events.write("rollouts", attempt=1, step=60, files=kept)
    shown = {"picture": "heat_00000060.png", "film": "heat_00000060.gif"}
    with tracked(run, OFFLINE):
        end = time.monotonic() + 20
        while not [entry for entry in told(fake) if "operator/rollouts/heat/film" in entry.get("row", {})]:
            assert time.monotonic() < end, (run / "wandb" / "follow.log").read_text()
            time.sleep(0.05)
    row = told(fake)[-2]["row"]
    assert row == {"operator/step": 60} | {f"operator/rollouts/heat/{kind}": file for kind, file in shown.items()}
    assert {path.name for path in (run / "wandb" / "rollouts" / "operator").iterdir()} == set(shown.values())
    assert list(Rows(run, {("operator", kind): 60 for kind in ("step", "validation", "rollouts")}).news()) == []


def test_trainings_are_named_as_in_metrics_json(tmp_path: Path):
    assert training_name(tmp_path / "stages" / "codec" / "events.jsonl") == "codec"
    assert training_name(tmp_path / "compare" / "fno" / "darcy" / "events.jsonl") == "fno_darcy"


def test_the_id_of_a_run_stays_with_it(tmp_path: Path):
    assert identity(tmp_path / "a") == identity(tmp_path / "a") != identity(tmp_path / "b")


@pytest.mark.parametrize(
    "error, code", [(None, 0), (Stopped("later"), STOPPED), (UserError("no"), 2), (GaveUp("no"), 1), (OSError(), 1)]
)
def test_how_a_job_ended_is_told_once(run: Path, fake: Path, error: Exception | None, code: int):
    (run / "metrics.json").write_text(
        json.dumps({"state": "finished", "model": "operator", "tasks": {"heat": {"nrmse": {"model": 0.5}}}})
    )
    try:
        with tracked(run, OFFLINE):
            if error is not None:
                raise error
    except type(error or ()):
        pass
    said = told(fake)
    assert [entry["finish"] for entry in said if "finish" in entry] == [code]
    assert ({"preempting": True} in said) == (code == STOPPED)
    assert [entry["row"]["operator/step"] for entry in said if "row" in entry] == [20, 40, 60, 60]
    assert (said[0]["init"]["id"], said[0]["init"]["entity"], said[0]["init"]["project"]) == (
        identity(run),
        "team",
        "toys",
    )
    assert {"update": [{"evaluation/heat/nrmse/model": 0.5, "state": "finished"}]} in said


def test_a_killed_job_leaves_no_word_of_its_end(run: Path, fake: Path):
    code = f"""
import os, signal, sys, time
from pathlib import Path
from ups.distributed.runtime.settings import RuntimeConfig
from ups.track.tracked import tracked
with tracked(Path({str(run)!r}), RuntimeConfig(tracking=["wandb"], wandb={{"mode": "offline"}})):
    while not Path({str(fake)!r}).exists(): time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    end = time.monotonic() + 20
    while len([entry for entry in told(fake) if "row" in entry]) < 4:
        assert time.monotonic() < end, (run / "wandb" / "follow.log").read_text()
        time.sleep(0.05)
    assert not [entry for entry in told(fake) if "finish" in entry]


def test_one_that_hangs_delays_a_job_for_a_moment_at_its_end(run: Path, fake: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HANGS", "1")
    monkeypatch.setattr(module, "_QUIET", 0.2)
    monkeypatch.setattr(module, "CLOSING", 0.5)
    began = time.monotonic()
    with pytest.warns(UserWarning, match=r"`ups track sync .*toy` sends the rest"), tracked(run, OFFLINE):
        inside = time.monotonic() - began
    assert inside < 0.5 and time.monotonic() - began < 5
    assert told(fake) == []


def test_of_jobs_that_share_a_run_one_is_followed(run: Path, fake: Path):
    with tracked(run, OFFLINE), tracked(run, OFFLINE):
        pass
    assert len([entry for entry in told(fake) if "init" in entry]) == 1


def test_who_follows_a_run_waits_for_who_followed_it_before(run: Path, fake: Path):
    (run / "wandb").mkdir()
    before = (run / "wandb" / FOLLOWING).open("a+")
    assert held(before, run / "wandb" / FOLLOWING)
    with tracked(run, OFFLINE):
        time.sleep(0.5)
        assert told(fake) == []
        before.close()
    assert [entry["finish"] for entry in told(fake) if "finish" in entry] == [0]


def test_what_was_not_asked_for_leaves_nothing(run: Path):
    with tracked(run, RuntimeConfig()):
        assert not (run / "wandb").exists()


def test_a_tracker_without_a_token_is_one_sentence(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(fake.parent / "fake"))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    online = RuntimeConfig.model_validate({"tracking": ["wandb"]})
    with pytest.raises(UserError, match=r"no token for https://api\.wandb\.ai; set WANDB_API_KEY"):
        check_trackers(online)
    check_trackers(OFFLINE)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "0" * 40)
    check_trackers(online)
    (tmp_path / "netrc").unlink()
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TRACKED))
    with pytest.raises(UserError, match="no token"):
        pipeline.run(str(tmp_path / "toy.yaml"), ["runtime.wandb.mode=online"], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_one_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ups.track.tracked.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"universal-physics-stack\[wandb\]"):
        check_trackers(OFFLINE)


def test_a_run_that_was_never_tracked_is_written_down_for_sending(
    run: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(fake.parent / "fake"))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    (run / "outcome.json").write_text(json.dumps({"state": "stopped", "reason": "asked to", "rank": 0}))
    assert module.sync(run) == []  # what stands in for W&B leaves no file to send
    said = told(fake)
    assert [entry["finish"] for entry in said if "finish" in entry] == [STOPPED] and {"preempting": True} in said
    assert [entry["row"]["operator/step"] for entry in said if "row" in entry] == [20, 40, 60, 60]


def test_what_is_no_run_cannot_be_sent(tmp_path: Path):
    with pytest.raises(UserError, match="is not a run"):
        module.sync(tmp_path)


# With W&B itself.

TRACKED = TOY | {
    "training": TOY["training"] | {"steps": 60},
    "runtime": TOY["runtime"] | {"tracking": ["wandb"], "wandb": {"mode": "offline"}},
}


def ups(*arguments: str | Path, fault: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    told = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2]), **variables}
    told |= {} if fault is None else {"UPS_FAULT": fault}
    command = [sys.executable, "-m", "ups", *map(str, arguments)]
    return subprocess.run(command, env=told, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_diary_tensorboard_and_wandb_agree_and_a_killed_job_is_one_run(tmp_path: Path):
    pytest.importorskip("wandb", reason="the optional extra wandb is not installed")
    pytest.importorskip("tensorboard", reason="the optional extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    both = TRACKED | {"runtime": TRACKED["runtime"] | {"tracking": ["tensorboard", "wandb"]}}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(both))
    work, run = ("run", tmp_path / "toy.yaml", "--runs", tmp_path), tmp_path / "toy"
    killed = ups(*work, fault="kill at update rank 0 step 50")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    end = time.monotonic() + 120
    while not (files(run) and drawn_in(files(run))[0].get(("operator", "step")) == 40):
        assert time.monotonic() < end, (run / "wandb" / "follow.log").read_text()
        time.sleep(1)
    with serving() as server:
        sync = ups("track", "sync", run, **server.variables())
        assert sync.returncode == 0, sync.stderr + sync.stdout
        assert [(one.state, len(one.rows)) for one in server.runs.values()] == [("crashed", 6)]
        assert [record for record in records(files(run)[0]) if record["type"] == "exit"] == []

        finished = ups(*work)
        assert finished.returncode == 0, finished.stderr
        sync = ups("track", "sync", run, **server.variables())
        assert sync.returncode == 0, sync.stderr + sync.stdout
        assert list(server.runs) == [identity(run)]
        (one,) = server.runs.values()
        assert one.state == "finished"
    told = written(run)
    assert {step for _, step in told} == {20, 40, 60} and ("step/pace/steps_a_second", 40) in told
    assert shown(one) == told
    board = EventAccumulator(str(run / "stages" / "operator" / "tensorboard"), {"images": 0}).Reload()
    points = {(tag, point.step): point.value for tag in board.Tags()["scalars"] for point in board.Scalars(tag)}
    assert points.keys() == told.keys()
    assert all(math.isclose(points[at], value, rel_tol=1e-6) for at, value in told.items())  # float32 there
    pictures = [(row["operator/step"], "operator/rollouts/burgers/picture" in row) for row in one.rows[2:9:3]]
    assert pictures == [(20, True), (40, True), (60, True)]
    assert [image.step for image in board.Images("rollouts/burgers/picture")] == [20, 40, 60]
    assert json.loads(one.summary)["state"] == "finished"
    assert one.config["name"]["value"] == "toy" and "torch" in one.config["environment"]["value"]


def written(run: Path) -> dict[tuple[str, int], float]:
    """Every number of the diary that is drawn, by its curve and step."""
    events = read_events(run / "stages" / "operator" / "events.jsonl")
    return {(name, e["step"]): value for e in events for name, value in curves(e["kind"], e).items()}


def shown(run: Run) -> dict[tuple[str, int], float]:
    """The same of a run at the server."""
    rows = ({name.partition("/")[2]: value for name, value in row.items() if "/" in name} for row in run.rows)
    return {
        (name, row["step"]): value
        for row in rows
        for name, value in row.items()
        if name != "step" and isinstance(value, int | float)
    }


@pytest.mark.slow
def test_a_job_that_is_killed_at_any_moment_again_and_again_is_one_run(tmp_path: Path):
    """Before it trains, while it does, and while it evaluates."""
    pytest.importorskip("wandb", reason="the optional extra wandb is not installed")
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TRACKED))
    work, run = ("run", str(tmp_path / "toy.yaml"), "training.steps=400", "--runs", str(tmp_path)), tmp_path / "toy"
    variables = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    diary = run / "stages" / "operator" / "events.jsonl"
    moments = [
        lambda: (run / "wandb" / "id").is_file(),
        lambda: diary.is_file() and len(read_events(diary)) >= 5,
        lambda: diary.is_file() and len(read_events(diary)) >= 25,
        lambda: (run / "evaluation").is_dir(),
    ]
    with serving() as server:
        for moment in moments:
            job = subprocess.Popen([sys.executable, "-m", "ups", *work], env=variables, stdout=subprocess.DEVNULL)
            while not moment():
                assert job.poll() is None
                time.sleep(0.01)
            job.kill()
            assert job.wait() == -signal.SIGKILL
            until_nobody_follows(run)
            assert not [record for file in files(run) for record in records(file) if record["type"] == "exit"]
            assert not (run / "metrics.json").exists()
            sync = ups("track", "sync", run, **server.variables())
            assert sync.returncode == 0, sync.stderr + sync.stdout
            assert [(name, one.state) for name, one in server.runs.items()] == [(identity(run), "crashed")]
        assert ups(*work).returncode == 0
        assert ups("track", "sync", run, **server.variables()).returncode == 0
        assert [(name, one.state) for name, one in server.runs.items()] == [(identity(run), "finished")]
        (one,) = server.runs.values()
        first = {}  # of steps that a restart repeats W&B shows the first time
        events = read_events(diary)
        for event in reversed(events):
            first |= {(name, event["step"]): value for name, value in curves(event["kind"], event).items()}
        assert shown(one) == first


def until_nobody_follows(run: Path) -> None:
    end, path = time.monotonic() + 120, run / "wandb" / FOLLOWING
    with path.open("a+") as lock:
        while not held(lock, path):
            assert time.monotonic() < end, (run / "wandb" / "follow.log").read_text()
            time.sleep(0.2)


@pytest.mark.slow
def test_a_run_is_seen_at_the_server_while_it_works_and_not_held_up_by_one_that_is_down(tmp_path: Path):
    pytest.importorskip("wandb", reason="the optional extra wandb is not installed")
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TRACKED))
    online = ("run", tmp_path / "toy.yaml", "runtime.wandb.mode=online", "--runs", tmp_path)
    with serving() as server:
        result = ups(*online, **server.variables())
        assert result.returncode == 0, result.stderr
        ((name, one),) = server.runs.items()
        assert (name, one.state) == (identity(tmp_path / "toy"), "finished")
        assert len(one.rows) == 10  # three each of steps, validations and their rollouts, one of the evaluation
        down = ups(*online, "name=down", **{**server.variables(), "WANDB_BASE_URL": "http://127.0.0.1:9"})
        assert down.returncode == 0 and "ups track sync" in down.stderr, down.stderr
        sync = ups("track", "sync", tmp_path / "down", **server.variables())
        assert sync.returncode == 0, sync.stderr + sync.stdout
        assert [(one.state, len(one.rows)) for one in server.runs.values()] == [("finished", 10)] * 2
