"""A run on a real SLURM of one machine: it has to leave, is queued again, and ends with the same digits.

Needs root and Debian's packages: apt-get install slurmctld slurmd slurm-client munge
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ranks import free_port

from ups.ops.launch.job import Record
from ups.track.jsonl import read_events

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
ABSENT = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
TOY = """
name: toy
tasks: {burgers: {make: {equation: burgers, trajectories: 10, settings: {points: 32, frames: 9, duration: 0.5}}}}
stages: {operator: {width: 8, depth: 1, modes: 4, head: 8}}
training: {steps: 1500, batch_size: 8, validate_every: 500, checkpoint_every: 100000}
evaluation: {solved: 0}
runtime: {device: cpu, threads: 1}
"""
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 State=UNKNOWN
PartitionName=usual Nodes={host} Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes={host} PriorityTier=10 MaxTime=INFINITE State=UP
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of one who uses it."""
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    for path in (tmp_path, folder):
        path.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(folder=folder, host=host, controller=free_port(), daemon=free_port()))
    environment = os.environ | {
        "SLURM_CONF": str(config),
        "PATH": f"{os.environ['PATH']}:/usr/sbin",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munged.pid"}
    files |= {"log-file": folder / "munged.log", "seed-file": folder / "munged.seed"}
    commands = [
        ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", host],
    ]
    daemons = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as out:
                daemons.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
            time.sleep(1.0)
        yield environment
    finally:
        subprocess.run(["scancel", "--me"], env=environment)
        time.sleep(2.0)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(bool(ABSENT), reason=f"no {', '.join(ABSENT)} here: apt-get install slurmctld slurmd munge")
@pytest.mark.skipif(os.getuid() != 0, reason="the daemons of SLURM need root")
@pytest.mark.parametrize("way", ["a more urgent job", "the end of its time"])
def test_a_job_that_has_to_leave_goes_on_to_the_same_digits(cluster: dict[str, str], tmp_path: Path, way: str) -> None:
    """Preempted; or, as one of an array, told two minutes before the end of its time, for which the signal is sent."""
    (tmp_path / "toy.yaml").write_text(TOY)
    runs = tmp_path / "runs"
    seeds, name = ([], "toy") if way == "a more urgent job" else (["--seeds", "3"], "toy_seed3")
    config, run = str(tmp_path / "toy.yaml"), runs / name

    def ups(*words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "ups", *words], env=cluster, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    ups("launch", config, "--on", "slurm", "--runs", str(runs), "--slurm", "partition=usual", *seeds)
    events = run / "stages" / "operator" / "events.jsonl"
    until(lambda: events.is_file() and any(e["kind"] == "step" for e in read_events(events)), "a first step")
    assert "running" in ups("launch", "status", str(run))
    record = Record.of(run)
    leave = ["sbatch", "-p", "urgent", "-o", "/dev/null", "--wrap", "sleep 3"]
    if seeds:
        leave = ["scancel", "--batch", "--signal=TERM", record.job]
    subprocess.run(leave, env=cluster, check=True)
    until(lambda: "stopped: " in Path(record.log or "").read_text(), "that it saves and leaves")
    until((run / "metrics.json").is_file, "the end")
    until(lambda: "ended" in ups("launch", "status", str(run)), "SLURM to see it")
    steps = [event["step"] for event in read_events(events) if event["kind"] == "step"]
    assert steps == sorted(set(steps)) and steps[-1] == 1500  # none lost, none repeated
    ups("--quiet", "run", config, "name=undisturbed", *(["seed=3"] if seeds else []), "--runs", str(runs))
    results = [json.loads((runs / each / "metrics.json").read_text())["tasks"] for each in (name, "undisturbed")]
    assert results[0] == results[1]


def until(seen: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.5)
