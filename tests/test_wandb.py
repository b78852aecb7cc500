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
import yaml
from wandb_server import serving

import ups.track.tracked as module
from ups import pipeline
from ups.distributed.runtime.settings import RuntimeConfig
from ups.errors import STOPPED, GaveUp, Stopped, UserError
from ups.track.curves import curves
from ups.track.follow import Rows, drawn_in, files, identity, records, training_name
from ups.track.jsonl import Events, read_events
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


def test_trainings_are_named_as_in_metrics_json(tmp_path: Path):
    assert training_name(tmp_path / "stages" / "codec" / "events.jsonl") == "codec"
    assert training_name(tmp_path / "compare" / "fno" / "darcy" / "events.jsonl") == "fno_darcy"


def test_the_id_of_a_run_stays_with_it(tmp_path: Path):
    assert identity(tmp_path / "a") == identity(tmp_path / "a") != identity(tmp_path / "b")


@pytest.mark.parametrize(
    "error, code", [(None, 0), (Stopped("later"), STOPPED), (UserError("no"), 2), (GaveUp("no"), 1), (OSError(), 1)]
)
def test_how_a_job_ended_is_told_once(run: Path, fake: Path, error: Exception | None, code: int):
    (run / "metrics.json").write_text(json.dumps({"state": "finished", "tasks": {"heat": {"nrmse": {"model": 0.5}}}}))
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
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TOY))
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

TOY = {
    "name": "toy",
    "tasks": {
        "burgers": {
            "make": {
                "equation": "burgers",
                "trajectories": 30,
                "settings": {"points": 32, "frames": 9, "duration": 0.5},
            }
        }
    },
    "data": {"seed": 0, "workers": 1},
    "stages": {"operator": {"width": 8, "depth": 1, "modes": 8, "head": 8}},
    "training": {"steps": 60, "batch_size": 4, "validate_every": 20, "checkpoint_every": 20},
    "evaluation": {"resamples": 100, "pictures": 1},
    "runtime": {"device": "cpu", "threads": 1, "tracking": ["wandb"], "wandb": {"mode": "offline"}},
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

    TOY["runtime"]["tracking"] = ["tensorboard", "wandb"]
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TOY))
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
        assert [(one.state, len(one.rows)) for one in server.runs.values()] == [("crashed", 4)]
        assert [record for record in records(files(run)[0]) if record["type"] == "exit"] == []

        finished = ups(*work)
        assert finished.returncode == 0, finished.stderr
        sync = ups("track", "sync", run, **server.variables())
        assert sync.returncode == 0, sync.stderr + sync.stdout
        assert list(server.runs) == [identity(run)]
        (one,) = server.runs.values()
        assert one.state == "finished"
    events = read_events(run / "stages" / "operator" / "events.jsonl")
    drawn = {event["step"]: event for event in events if event["kind"] == "step"}
    curves = EventAccumulator(str(run / "stages" / "operator" / "tensorboard")).Reload()
    losses = [(row["operator/step"], row["operator/step/loss"]) for row in one.rows if "operator/step/loss" in row]
    assert losses == [(step, event["loss"]) for step, event in drawn.items()]
    assert [point.step for point in curves.Scalars("step/loss")] == [step for step, _ in losses] == [20, 40, 60]
    for point, (_, loss) in zip(curves.Scalars("step/loss"), losses, strict=True):
        assert math.isclose(point.value, loss, rel_tol=1e-6)  # float32 there
    scores = [row["operator/validation/score"] for row in one.rows if "operator/validation/score" in row]
    assert scores == [event["score"] for event in events if event["kind"] == "validation"]
    assert json.loads(one.summary)["state"] == "finished"
    assert one.config["name"]["value"] == "toy" and "torch" in one.config["environment"]["value"]


@pytest.mark.slow
def test_a_run_is_seen_at_the_server_while_it_works_and_not_held_up_by_one_that_is_down(tmp_path: Path):
    pytest.importorskip("wandb", reason="the optional extra wandb is not installed")
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TOY))
    online = ("run", tmp_path / "toy.yaml", "runtime.wandb.mode=online", "--runs", tmp_path)
    with serving() as server:
        result = ups(*online, **server.variables())
        assert result.returncode == 0, result.stderr
        ((name, one),) = server.runs.items()
        assert (name, one.state) == (identity(tmp_path / "toy"), "finished")
        assert len(one.rows) == 7  # three of steps, three of validations, one with a picture
        down = ups(*online, "name=down", **{**server.variables(), "WANDB_BASE_URL": "http://127.0.0.1:9"})
        assert down.returncode == 0 and "ups track sync" in down.stderr, down.stderr
        sync = ups("track", "sync", tmp_path / "down", **server.variables())
        assert sync.returncode == 0, sync.stderr + sync.stdout
        assert [(one.state, len(one.rows)) for one in server.runs.values()] == [("finished", 7)] * 2
