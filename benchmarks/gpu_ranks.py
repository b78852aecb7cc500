"""Two NCCL ranks on one GPU: parity, a real out-of-memory on one rank, a hang, a death, and the price of the protocol.

    python benchmarks/gpu_ranks.py              prints a Markdown table

Every row is a job of the real command line (`ups train --gpus 2`), compared with one that was left alone. Two ranks
share the GPU (UPS_SHARE_DEVICE=1), which NCCL accepts when it believes them to be on different hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ups import checkpoint
from ups.distributed.faults.heartbeat import heartbeats_of
from ups.track.jsonl import read_events

LIMIT = 90
"""Seconds a job may take."""
CONFIG = """
name: job
tasks:
  burgers:
    make: {equation: burgers, trajectories: 64, values: {nu: [0.02]}, settings: {points: 128, frames: 21}}
  darcy:
    make: {equation: darcy, trajectories: 64, settings: {points: 64}}
operator: {width: 48, depth: 4, modes: 32}
training:
  steps: 60
  batch_size: 64
  noise: 0.002
  rollout: [[0.0, 1], [0.5, 2]]
  validate_every: 60
  checkpoint_every: 10
  warmup: 5
runtime: {device: cuda, replica_check_every: 10}
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder))
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}, ", end="")
    print("`python benchmarks/gpu_ranks.py`\n")
    print("| what | seen | found after (s) | training again after (s) | steps repeated |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def measure(folder: Path) -> list[tuple[str, ...]]:
    (folder / "config.yaml").write_text(CONFIG)
    exact = ["training.precision=float64", "training.steps=20"]
    alone = train(folder, "alone", exact, ranks=1)
    rows = []
    for strategy in ("ddp", "fsdp2"):
        name = f"parity, {strategy} on 2 ranks against 1, float64, AdamW, 20 steps"
        job = train(folder, f"parity_{strategy}", [*exact, f"runtime.strategy={strategy}"])
        difference = distance(alone, job)
        rows.append(row(name, job, f"largest relative difference {difference:.1e}", good=difference <= 1e-10))
    undisturbed = train(folder, "undisturbed")
    eager = train(folder, "eager", ["runtime.capture=off"])
    rows.append(row("captured steps against eager ones, ddp on 2 ranks", eager, same(undisturbed, eager)))
    for fault, name, more in (
        ("squeeze at forward rank 1 step 12", "real out-of-memory on rank 1, ddp", ["training.precision=float64"]),
        (
            "squeeze at forward rank 1 step 12",
            "real out-of-memory on rank 1, fsdp2",
            ["training.precision=float64", "runtime.strategy=fsdp2"],
        ),
        ("sleep at reduce rank 1 step 25", "rank 1 never joins a reduction", []),
        ("kill at update rank 1 step 25", "SIGKILL of rank 1", []),
        ("raise at backward rank 1 step 25", "exception on rank 1 in backward", []),
        ("segv at forward rank 0 step 25", "SIGSEGV of rank 0", []),
    ):
        reference = train(folder, "exact", ["training.precision=float64"]) if more else undisturbed
        job = train(folder, name.replace(" ", "_").replace(",", ""), more, fault)
        seen = f"largest relative difference {distance(reference, job):.1e}" if more else same(reference, job)
        events = read_events(job / "stages" / "operator" / "events.jsonl")
        shrunk = [f"micro-batch of {e['task']} now {e['micro_batch']}" for e in events if e["kind"] == "out_of_memory"]
        kept = json.loads((job / "backoff.json").read_text()) if (job / "backoff.json").exists() else {}
        shrunk += [f"micro-batch of {task} now {n}" for task, n in kept.get("micro_batch", {}).items()]
        rows.append(row(name, job, "; ".join([*shrunk, seen])))
    return rows


def train(folder: Path, name: str, overrides: Sequence[str] = (), fault: str = "", ranks: int = 2) -> Path:
    """One job; its run directory. The data are made once."""
    job = folder / "runs" / name
    if job.exists():
        return job
    command = [sys.executable, "-m", "ups", "--quiet", "train", str(folder / "config.yaml"), f"name={name}", *overrides]
    command += [f"data.root={folder / 'data'}", "--runs", str(folder / "runs"), "--gpus", str(ranks)]
    variables = os.environ | {"UPS_SHARE_DEVICE": "1", "UPS_FAULT": fault}
    (folder / "data").mkdir(exist_ok=True)
    began = time.monotonic()
    process = subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        for heartbeat in heartbeats_of(job / "heartbeats"):
            print(heartbeat)
            os.kill(heartbeat.pid, signal.SIGUSR1)
        time.sleep(1.0)
        process.kill()
        _, said = process.communicate()
    print(f"{name}: code {process.returncode} in {time.monotonic() - began:.1f} s {said[-500:]}", flush=True)
    if process.returncode:
        for file in [*sorted((job / "logs").glob("*.log")), *sorted((job / "crash").rglob("*.stacks"))]:
            print(f"--- {file.name}\n{file.read_text()[-3000:]}")
        sys.exit(f"{name} did not end as it should")
    return job


def row(name: str, job: Path, seen: str, *, good: bool = True) -> tuple[str, ...]:
    """What the job's events say of a crash, and what the caller saw of its result."""
    ended = json.loads((job / "outcome.json").read_text())["state"]
    events = read_events(job / "stages" / "operator" / "events.jsonl")
    crashes = [e for e in events if e["kind"] == "crash"]
    resumed = [e for e in events if e["kind"] == "resumed"]
    seen = f"{ended}; {seen}" if good else f"FAILED: {ended}; {seen}"
    if not crashes:
        return name, seen, "–", "–", "–"
    again = "–"
    if resumed:
        again = f"{(moment(resumed[0]) - moment(crashes[0])):.1f}"
    report = json.loads((job / "crash" / Path(crashes[0]["report"]).with_suffix(".json").name).read_text())
    step = report.get("step")
    repeated = str(step - resumed[0]["step"]) if resumed and step is not None else "–"
    seen += f"; blamed: rank {crashes[0]['rank']}"
    for path, begun in report["flight_recorder"].items():
        seen += f"; {Path(path).name}: {', '.join(begun) or 'nothing unfinished'}"
    return name, seen, f"{crashes[0]['seconds_to_detect']:.1f}", again, repeated


def moment(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def final(job: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(job / "stages" / "operator" / "checkpoints")[0]


def same(one: Path, other: Path) -> str:
    a, b = final(one), final(other)
    if all(torch.equal(a[name], b[name]) for name in a):
        return "bit-equal end"
    return f"NOT bit-equal: largest relative difference {distance(one, other):.1e}"


def distance(one: Path, other: Path) -> float:
    a, b = final(one), final(other)
    names = [n for n in a if n.startswith(("model.", "ema.")) and a[n].any()]
    return max(float((a[n] - b[n]).abs().max() / a[n].abs().max()) for n in names)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
