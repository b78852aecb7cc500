"""Runs that are handed to this machine's background, to SLURM and to SkyPilot."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ups.cli.main import app
from ups.config.load import save_config
from ups.errors import UserError
from ups.ops.launch import slurm
from ups.ops.launch.job import Job, Record
from ups.pipeline.config import load_run

TOY = """
name: toy
tasks: {burgers: {make: {equation: burgers, trajectories: 10, settings: {points: 32, frames: 9, duration: 0.5}}}}
stages: {operator: {width: 8, depth: 1, modes: 4, head: 8}}
training: {steps: 20, batch_size: 8}
runtime: {device: cpu, threads: 1}
"""
SKY = ["--on", "sky", "--cloud", "runpod", "--gpu", "H200", "--storage", "s3://bucket/runs"]


@pytest.fixture
def toy(tmp_path: Path) -> str:
    (tmp_path / "toy.yaml").write_text(TOY)
    return str(tmp_path / "toy.yaml")


def launched(*arguments: str) -> str:
    """What `ups launch` prints."""
    return CliRunner().invoke(app, ["launch", *arguments], catch_exceptions=False).stdout


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--gpus", "2", "--nodes", "3", "--slurm", "partition=gpu", "--slurm", "time=24:00:00"],
        ["--seeds", "0,5,7", "name=a b'c"],
    ],
)
def test_a_script_for_slurm_is_one_that_bash_reads(toy: str, tmp_path: Path, options: list[str]) -> None:
    if any(option.startswith("name=") for option in options):
        options = [option.replace("a b'c", "a-b") for option in options] + ["tasks.burgers.share=1.0"]
    script = launched(toy, "--on", "slurm", "--runs", str(tmp_path / "it's runs"), "--dry-run", *options)
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
    assert checked.returncode == 0 and not checked.stderr
    assert "#SBATCH --requeue" in script and "--signal=B:TERM@120" in script
    assert ("#SBATCH --array=0-2" in script) == ("--seeds" in options)
    assert ("srun" in script) == ("--nodes" in options)
    assert not (tmp_path / "it's runs").exists()


@pytest.mark.parametrize(
    ("command", "ends", "asked"),
    [
        ("exit 3", 3, False),
        ("trap 'sleep 0.2; exit 75' TERM; sleep 30 & wait", 75, True),
        ("trap '' TERM; sleep 0.5; exit 0", 0, True),
        ("kill -9 $$", 137, False),
    ],
)
def test_a_job_ends_with_the_code_of_its_work_whatever_signals_come(
    tmp_path: Path, command: str, ends: int, asked: bool
) -> None:
    """The script's own lines, with a command instead of a run; SLURM says that the job is being taken back."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "squeue").write_text("#!/bin/sh\necho COMPLETING\n")
    (tools / "squeue").chmod(0o755)
    script = slurm.script(Job("toy", "toy", (), tmp_path))
    line = next(line for line in script.splitlines() if line.startswith("work "))
    path = tmp_path / "job.sh"
    path.write_text(script.replace(line, f"work bash -c {command!r}"))
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    process = subprocess.Popen(["bash", str(path)], env=environment, start_new_session=True)
    if asked:
        time.sleep(0.3)
        process.terminate()
    assert process.wait(20) == ends


def test_secrets_are_named_and_never_written(toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKER_TOKEN", "s3cr3t-v4lue")
    for place in (["--on", "slurm"], SKY):
        text = launched(toy, *place, "--runs", str(tmp_path / "runs"), "--secret", "TRACKER_TOKEN", "--dry-run")
        assert "TRACKER_TOKEN" in text and "s3cr3t-v4lue" not in text


def test_a_task_for_rented_machines_says_what_they_need(toy: str, tmp_path: Path) -> None:
    runs = ["--runs", str(tmp_path / "runs"), "--dry-run"]
    spot = yaml.safe_load(launched(toy, *SKY, "--spot", "--gpus", "8", *runs))
    assert spot["resources"]["accelerators"] == "H200:8" and spot["resources"]["use_spot"]
    assert spot["file_mounts"]["/ups-kept"] == {"source": "s3://bucket/runs", "mode": "MOUNT_CACHED"}
    assert "--gpus 8" in spot["run"] and "rsync" in spot["run"]
    sent = launched(toy, *SKY, *runs).partition("toy.launch/submitted.yaml:\n#   ")[2].replace("\n#   ", "\n")
    assert yaml.safe_load(sent) == yaml.safe_load(TOY)
    many = launched(toy, *SKY[:-1], "shared", "--gpus", "8", "--nodes", "4", "training.batch_size=32", *runs)
    task = yaml.safe_load(many)
    assert task["num_nodes"] == 4 and task["volumes"] == {"/ups-runs": "shared"}
    assert task["resources"]["autostop"] == {"idle_minutes": 10, "down": True}
    for described in (spot, task):
        assert subprocess.run(["bash", "-n"], input=described["run"], text=True).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--on", "moon"], "choose local, slurm, sky"),
        (["--on", "slurm"], "there is no sbatch here"),
        (["--on", "sky"], "--on sky needs --cloud"),
        (SKY, "there is no sky here"),
        ([*SKY[:3], "vast", *SKY[4:], "--nodes", "2"], "vast rents single machines"),
        ([*SKY, "--nodes", "2"], "a file system that they share"),
        ([*SKY, "runtime.tracking=[wandb]"], "--secret WANDB_API_KEY"),
        (["--on", "local", "--secret", "NO_SUCH_TOKEN"], "NO_SUCH_TOKEN is not in the environment"),
        (["--on", "local", "--secret", "token=abc"], "the NAME of a variable"),
        (["--on", "local", "--seeds", "0,1"], "ups sweep"),
        (["--on", "slurm", "--seeds", "1,1"], "a seed twice"),
        (["--on", "slurm", "--slurm", "time=1 #"], "give an option of sbatch"),
        (["--on", "slurm", "--gpus", "4", "--nodes", "4"], "training.batch_size is 8 for 16 ranks"),
        (["--on", "slurm", "--gpus", "4", "runtime.strategy=hsdp", "runtime.shard=3"], "does not divide the 4 ranks"),
        (["--on", "slurm", "stages.operator.start=nowhere"], "nowhere"),
        ([*SKY, "stages.operator.start=runs/wide"], "stages.operator.start lies on this machine"),
        (["--on", "local", "--gpus", "9"], "training.batch_size is 8 for 9 ranks"),
    ],
)
def test_what_cannot_be_launched_is_one_sentence_and_nothing_is_submitted(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("UPS_SKY", raising=False)
    with pytest.raises(UserError, match=says) as refused:
        launched(toy, "--runs", str(tmp_path / "runs"), *arguments)
    assert "\n" not in str(refused.value) and "abc" not in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_cloud_without_credentials_is_refused_before_anything_is_rented(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sky = tmp_path / "sky"
    said = r'printf "\033[2mStarting a local server.\n"; echo "{\"default\": {}}"'
    sky.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{said}\n')
    sky.chmod(0o755)
    monkeypatch.setenv("UPS_SKY", str(sky))
    with pytest.raises(UserError, match="no credentials for runpod"):
        launched(toy, *SKY, "--runs", str(tmp_path / "runs"))
    assert (tmp_path / "asked").read_text() == "check runpod --output json\n" and not (tmp_path / "runs").exists()


def test_a_sweep_is_launched_job_by_job_and_never_twice(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of seed 1 ends without a word; that of seed 0 is still at work."""
    tools, runs = tmp_path / "bin", tmp_path / "runs"
    tools.mkdir()
    for name, does in (
        ("sbatch", f'cat "$2" | grep -o "seed=[0-9]*" >> {tmp_path}/asked; wc -l < {tmp_path}/asked'),
        ("squeue", 'echo "1 RUNNING"'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    sweep = ["sweep", toy, "seed=0,1", "training.steps=30", "--on", "slurm", "--runs", str(runs)]

    def said(*more: str) -> dict:
        answer = CliRunner().invoke(app, [*sweep, *more, "--json"], catch_exceptions=False)
        return json.loads(answer.stdout)

    with pytest.raises(UserError, match="give an option of sbatch"):
        said("--slurm", "time=1 #")
    assert not runs.exists()
    assert [Path(path).name for path in said()["launched"]] == ["toy_seed0", "toy_seed1"]
    assert (tmp_path / "asked").read_text() == "seed=0\nseed=1\n"
    assert [Path(path).name for path in said()["launched"]] == ["toy_seed1"]
    assert (Record.of(runs / "toy_seed0").job, Record.of(runs / "toy_seed1").job) == ("1", "3")
    with pytest.raises(UserError, match="leave it out"):
        said("--on", "local")


@pytest.mark.parametrize("before", [(), ("runs",), ("runs", "runs/toy.launch")])
def test_what_a_scheduler_refuses_leaves_nothing(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[str, ...]
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for folder in before:
        (tmp_path / folder).mkdir()
    with pytest.raises(UserError, match="SLURM refused the job: sbatch: error: invalid partition specified: gpu"):
        launched(toy, "--on", "slurm", "--slurm", "partition=gpu", "--runs", str(tmp_path / "runs"))
    assert [(tmp_path / folder).exists() for folder in ("runs", "runs/toy.launch", "runs/toy")] == [
        *("runs" in before, "runs/toy.launch" in before),
        False,
    ]


@pytest.mark.parametrize("place", [["--on", "slurm"], SKY])
def test_a_name_that_another_configuration_has_is_not_launched(toy: str, tmp_path: Path, place: list[str]) -> None:
    run = tmp_path / "runs" / "toy"
    (run / "stages").mkdir(parents=True)
    (run / ".lock").touch()
    save_config(load_run(toy, ["seed=7"]), run / "config.yaml")
    with pytest.raises(UserError, match=r"belongs to another configuration \(seed differs\)"):
        launched(toy, *place, "--runs", str(run.parent))
    assert not (run / "launch.json").exists() and not (tmp_path / "runs" / "toy.launch").exists()


def test_trackers_that_a_job_would_not_have_are_refused(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = [None]
    monkeypatch.setattr("ups.track.tracked.find_spec", lambda name: found[0])
    monkeypatch.setenv("WANDB_API_KEY", "k3y")
    asked = [toy, "--on", "slurm", "--runs", str(tmp_path / "runs"), "--dry-run", "runtime.tracking=[wandb]"]
    with pytest.raises(UserError, match="which is not installed here"):
        launched(*asked)
    found[0] = object()
    with pytest.raises(UserError, match="give --secret WANDB_API_KEY"):
        launched(*asked)
    assert "WANDB_API_KEY" in launched(*asked, "--secret", "WANDB_API_KEY")
    assert "#!/bin/bash" in launched(*asked, "runtime.wandb.mode=offline")


def test_of_two_that_launch_a_run_at_once_one_does(toy: str, tmp_path: Path) -> None:
    """SLURM takes its time; its second answer would be another job."""
    tools, runs = tmp_path / "bin", tmp_path / "runs"
    tools.mkdir()
    (tools / "sbatch").write_text(f"#!/bin/sh\nsleep 3; echo job >> {tmp_path}/asked; wc -l < {tmp_path}/asked\n")
    (tools / "squeue").write_text("#!/bin/sh\necho 1 RUNNING\n")
    for name in ("sbatch", "squeue"):
        (tools / name).chmod(0o755)
    command = [sys.executable, "-m", "ups", "launch", toy, "--on", "slurm", "--runs", str(runs)]
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2]
    assert re.search("is in use by another process|is launched already", "".join(said))
    assert (tmp_path / "asked").read_text() == "job\n" and Record.of(runs / "toy").job == "1"
    assert (runs / "toy.launch" / "job.sbatch").is_file()  # which the one that was refused leaves


def test_a_run_that_was_not_launched_is_one_sentence(tmp_path: Path) -> None:
    for command in ("status", "logs", "stop"):
        with pytest.raises(UserError, match="was not launched"):
            launched(command, str(tmp_path))


@pytest.mark.slow
@pytest.mark.skipif("UPS_SKY" not in os.environ, reason="UPS_SKY names no command of SkyPilot's (docs/launch.md)")
@pytest.mark.parametrize(
    "options",
    [["--spot"], ["--cloud", "vast"], ["--cloud", "lambda"], ["--cloud", "k8s", "--storage", "shared", "--nodes", "4"]],
)
def test_skypilot_s_own_parser_accepts_the_tasks(toy: str, tmp_path: Path, options: list[str]) -> None:
    runs = tmp_path / "runs"
    text = launched(toy, *SKY, "--gpus", "8", *options, "--runs", str(runs), "--dry-run")
    (runs / "toy.launch").mkdir(parents=True)
    (runs / "toy.launch" / "submitted.yaml").write_text(TOY)
    (tmp_path / "task.yaml").write_text(text)
    parse = "import sky, sys; task = sky.Task.from_yaml(sys.argv[1]); print(task.num_nodes, *task.resources)"
    python = Path(os.environ["UPS_SKY"]).with_name("python")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-c", parse, str(tmp_path / "task.yaml")], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 " if "--nodes" in options else "1 ") and "H200" in done.stdout


@pytest.mark.slow
def test_a_launched_run_is_seen_stopped_and_goes_on(toy: str, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    launched(toy, "--on", "local", "--runs", str(runs), "training.steps=100000")
    with pytest.raises(UserError, match=r"is launched already|is in use"):
        launched(toy, "--on", "local", "--runs", str(runs))
    while not (runs / "toy" / "stages" / "operator" / "events.jsonl").is_file():
        time.sleep(0.2)
    assert "running" in launched("status", str(runs / "toy"))
    launched("stop", str(runs / "toy"))
    while "running" in launched("status", str(runs / "toy")).splitlines()[0]:
        time.sleep(0.2)
    assert launched("status", str(runs / "toy")).splitlines()[1] == "run: stopped"
    assert "stopped: " in launched("logs", str(runs / "toy"))
    assert Record.of(runs / "toy").on == "local"
