"""Real jobs for tests of faults: `python -m ups train ... --gpus 2` in a process of its own, watched from outside.

    job = start(place, "killed", fault="kill at update rank 1 step 12")
    assert job.wait() == 0 and difference(job.run, reference) == 0

A job's heartbeats are read while it runs, so that what happened when is measured, by the clock all processes share.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ups
from ups import checkpoint
from ups.distributed.faults.heartbeat import Beat, heartbeat_path, read_heartbeat
from ups.track.jsonl import read_events

STAGE = Path("stages") / "operator"
STEPS, EVERY = 30, 5
"""Steps of a training, and between two of its checkpoints."""
LONGEST = 100.0
"""Seconds after which a job hangs."""
INTERVAL = 0.03  # seconds between two looks at the heartbeats
_started: list[Job] = []

CONFIG = f"""
name: tiny
seed: 0
tasks:
  advection:
    make: {{equation: advection, trajectories: 20, values: {{beta: [0.4]}},
           settings: {{points: 32, frames: 9, duration: 0.8}}}}
  darcy:
    make: {{equation: darcy, trajectories: 20, settings: {{points: 16}}}}
stages: {{operator: {{width: 8, depth: 2, modes: 4, head: 8, conditions: 8}}}}
training: {{steps: {STEPS}, batch_size: 7, optimiser: adamw, learning_rate: 4e-3, ema: 0.99, precision: float64,
           noise: 0.01, rollout: [[0.0, 1], [0.5, 2]], warmup: 2,
           validate_every: 15, checkpoint_every: {EVERY}}}
runtime: {{device: cpu, threads: 1}}
data: {{workers: 1}}
"""


@dataclass(frozen=True)
class Place:
    """A configuration, data that all jobs share, and a folder for runs."""

    config: Path
    data: Path
    runs: Path

    def command(self, name: str, *overrides: str, ranks: int | None = 2) -> list[str]:
        """`ups train` of the configuration; without `ranks`, as one process or one rank of another launcher."""
        arguments = ["train", str(self.config), *overrides, f"data.root={self.data}", f"name={name}"]
        arguments += ["--runs", str(self.runs), *([] if ranks is None else ["--gpus", str(ranks)])]
        return [sys.executable, "-m", "ups", *arguments]


def make_place(folder: Path, data: Path) -> Place:
    (folder / "tiny.yaml").write_text(CONFIG)
    return Place(folder / "tiny.yaml", data, folder / "runs")


@dataclass
class Job:
    process: subprocess.Popen[bytes]
    run: Path
    output: Path
    last: dict[tuple[int, int], Beat] = field(default_factory=dict)
    """Each rank's last heartbeat in each attempt, by (attempt, rank)."""
    times: dict[tuple[int, int, int, str], float] = field(default_factory=dict)
    """When each rank was last seen to mark a place, by (attempt, rank, step, phase)."""
    trains: dict[int, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    """When rank 0 was first seen beyond the gradients of a first step, by attempt."""

    def wait(self, timeout: float = LONGEST) -> int:
        """The exit code; and nothing of the job is left behind."""
        self.until(lambda: self.process.poll() is not None, "the job did not end", timeout)
        assert left_behind(self.run) == []
        return self.process.returncode

    def reach(self, step: int, rank: int = 0, attempt: int = 0) -> None:
        """Wait until a rank of an attempt is in `step` or beyond."""

        def there() -> bool:
            assert self.process.poll() is None, f"the job ended:\n{self.said()}"
            heartbeat = self.last.get((attempt, rank))
            return heartbeat is not None and heartbeat.step >= step

        self.until(there, f"rank {rank} did not reach step {step}")

    def until(self, condition: Callable[[], bool], problem: str, timeout: float = LONGEST) -> None:
        """Wait, and watch the heartbeats meanwhile."""
        end = time.monotonic() + timeout
        while not condition():
            self._watch()
            if time.monotonic() > end:
                self.process.kill()
                raise AssertionError(f"{problem} within {timeout} s; it said:\n{self.said()}")
            time.sleep(INTERVAL)
        self._watch()

    def _watch(self) -> None:
        for rank in range(8):
            heartbeat = read_heartbeat(heartbeat_path(self.run, rank))
            if heartbeat and heartbeat.time > self.began:  # else it is of an earlier job in this directory
                self.last[heartbeat.attempt, rank] = heartbeat
                self.times[heartbeat.attempt, rank, heartbeat.step, heartbeat.phase] = heartbeat.time
                later = heartbeat.phase in ("vote", "reduce", "update", "checkpoint", "validate", "end")
                begun = later or heartbeat.slowest > 0
                if rank == 0 and begun and heartbeat.attempt not in self.trains:
                    self.trains[heartbeat.attempt] = heartbeat.time

    def pid(self, rank: int, attempt: int = 0) -> int:
        return self.last[attempt, rank].pid

    def said(self) -> str:
        return self.output.read_text()

    def reports(self) -> list[dict[str, Any]]:
        """The crash reports, oldest first."""
        return [json.loads(path.read_text()) for path in sorted((self.run / "crash").glob("*Z.json"))]

    def json(self, name: str) -> dict[str, Any]:
        """A file of the run directory."""
        return json.loads((self.run / name).read_text())

    def events(self, kind: str) -> list[dict[str, Any]]:
        files = (self.run / "events.jsonl", self.stage / "events.jsonl")
        events = [event for path in files if path.exists() for event in read_events(path)]
        return sorted((event for event in events if event["kind"] == kind), key=lambda event: event["time"])

    @property
    def stage(self) -> Path:
        """Where its only stage is kept."""
        return self.run / STAGE

    def crash(self) -> dict[str, Any]:
        """The cells of the first restart: `detect` as the supervisor says, from the culprit's last beat if it hung;
        `recover` from then to training again; `repeated` steps.
        """
        crash, report = self.events("crash")[0], self.reports()[0]
        # Saves are put off while the disk is slow: there may be none yet, and it begins again.
        resumed = next((event["step"] for event in self.events("resumed") if event["attempt"] == 1), 0)
        fault = self.times[0, report["rank"], report["step"], report["phase"]]
        recover = self.trains[1] - fault - crash["seconds_to_detect"]
        assert recover < 20 * slowness(), f"training again only after {recover:.1f} s"
        return {
            "detect": crash["seconds_to_detect"],
            "recover": recover,
            "repeated": max(0, report["step"] - resumed),  # a stopped rank goes on, to write its stack, and may save
        }


def start(place: Place, name: str, *overrides: str, fault: str = "", ranks: int = 2, **variables: str) -> Job:
    """Start `ups train --gpus`; its output goes to a file beside the runs."""
    place.runs.mkdir(exist_ok=True)
    output = place.runs / f"{name}.out"
    if fault:
        variables["UPS_FAULT"] = fault
    return launch(place.command(name, *overrides, ranks=ranks), place.runs / name, output, variables)


def launch(command: list[str], run: Path, output: Path, variables: Mapping[str, str]) -> Job:
    """Start a command in a session of its own; it runs the package that is imported here, wherever it starts."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UPS_", "TORCHELASTIC"))}
    path = (variables.get("PYTHONPATH"), str(Path(ups.__file__).parents[1]))
    _let_jobs_hear()
    with output.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**environment, **variables, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            start_new_session=True,  # so that a Ctrl-C can be sent as a terminal does
        )
    job = Job(process, run, output)
    _started.append(job)
    return job


def _let_jobs_hear() -> None:
    """A job would ignore too what is ignored here, under `nohup` or in a script's background; not what is handled."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)


def end_all() -> None:
    """Kill what is still running when a test ends, whatever way it ended; ranks go with their supervisor."""
    for job in _started:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
    _started.clear()


def difference(run: Path, other: Path, step: int = STEPS) -> float:
    """The largest difference of any number in the last checkpoints of two finished runs; 0 is bit for bit.

    Weights, averages, moments, and what was chosen on validation.
    """
    (ours, manifest), (theirs, their_manifest) = (
        checkpoint.load(folder / STAGE / "checkpoints" / checkpoint.name_of(step)) for folder in (run, other)
    )
    assert ours.keys() == theirs.keys() and len(ours) > 50
    progress, expected = (m.content["progress"] for m in (manifest, their_manifest))
    assert {key: progress[key] for key in ("step", "best_step")} == {
        key: expected[key] for key in ("step", "best_step")
    }
    largest = abs(progress["best"] - expected["best"])
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype and torch.isfinite(tensor).all()
        largest = max(largest, float((tensor.double() - theirs[name].double()).abs().max()))
    return largest


def left_behind(run: Path) -> list[str]:
    """Processes on this machine that belong to a run, by its folder's name in their environment or command."""
    wanted = (f"name={run.name}\0".encode(), str(run.parent).encode())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            if all(part in command for part in wanted):
                found.append(f"{entry.name}: {command.replace(bytes(1), b' ').decode()}")
    return found


def slowness() -> float:
    """How much longer than on quiet cores things may take now: the load over the cores, at least 1."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def interrupt(job: Job) -> None:
    """Ctrl-C: SIGINT to the terminal's whole process group."""
    os.killpg(job.process.pid, signal.SIGINT)
