"""Two NCCL ranks on one GPU: parity, a real out-of-memory on one rank, a hang, a death, and whom the reports blame.

    python benchmarks/gpu_ranks.py              prints a Markdown table
    python benchmarks/gpu_ranks.py --blame      only row 38 of docs/faults.md, in a minute
    ... --device cpu                            the same on gloo ranks, as far as that goes

Every row is a job of the real command line (`ups train --gpus 2`). Two ranks share the GPU (UPS_SHARE_DEVICE=1), which
NCCL accepts when it believes them to be on different hosts. The exit code is 1 where a row is not as required.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
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
from ups.distributed.faults.heartbeat import PHASES, Beat, deadline, heartbeats_of
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import TIMEOUT
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
stages: {operator: {width: 48, depth: 4, modes: 32}}
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
SMALL = [
    *(
        "tasks.burgers.make.trajectories=12",
        "tasks.burgers.make.settings.points=32",
        "tasks.darcy.make.trajectories=12",
    ),
    *("tasks.darcy.make.settings.points=16", "stages.operator.width=8", "stages.operator.depth=2"),
    *("stages.operator.modes=4", "training.batch_size=8"),
]
"""For questions whose answer does not depend on the model, and for CPUs."""
HANG = {"cuda": "sleep", "cpu": "skip"}
"""A GPU's reduction is begun and not awaited: rank 0 goes on and rank 1 is behind. On CPUs both would stand in it."""
FAILED = "FAILED: "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blame", action="store_true", help="only who is blamed, and what NCCL's records say")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_text(CONFIG)
        header, rows = (blame if asked.blame else measure)(Path(folder), asked.device)
    name = torch.cuda.get_device_name() if asked.device == "cuda" else platform.machine()
    command = " ".join(["python benchmarks/gpu_ranks.py", *sys.argv[1:]])
    print(f"\n{name}, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}, `{command}`, ", end="")
    print(f"{time.monotonic() - began:.0f} s\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.exit(any(FAILED in cell for row in rows for cell in row))


def blame(folder: Path, device: str) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Row 38: jobs that may not start again, so that each ends with its first report."""
    once = [*SMALL, f"runtime.device={device}", "runtime.restarts=0", "runtime.deadline=4"]
    rows = []
    for strategy, place in (("ddp", "reduce"), ("fsdp2", "forward")):
        fault = f"raise at {place} rank 1 step 12"
        job = train(folder, f"raises_{strategy}", [*once, f"runtime.strategy={strategy}"], fault, ends=1)
        (report,) = reports(job)
        peer = report["ranks"][0]
        end = peer["signal"] or (peer["exception"] or {}).get("type") or "alive until it was killed"
        good = (report["rank"], report["kind"]) == (1, "exception") and "on purpose" in report["cause"]
        seen = f"blamed: rank {report['rank']} ({report['kind']}); rank 0: {end}"
        rows.append((f"rank 1 raises in `{place}`, {strategy}", "rank 1, not its aborted peer", judged(seen, good)))
    job = train(folder, "hangs", once, f"{HANG[device]} at reduce rank 1 step 12", ends=1)
    (report,) = reports(job)
    good = (report["rank"], report["kind"]) == (1, "hang")
    found = f"blamed: rank {report['rank']} ({report['kind']}), found after {report['seconds_to_detect']:.1f} s"
    rows.append(("rank 1 never joins a reduction", "rank 1 hangs", judged(found, good)))
    flights = {Path(path).name: begun for path, begun in report["flight_recorder"].items()}
    told = "; ".join(f"{name}: {', '.join(begun[:3]) or 'nothing unfinished'}" for name, begun in flights.items())
    readable = all("cannot be read" not in line for begun in flights.values() for line in begun)
    good = readable and bool(flights.get("flight_0")) if device == "cuda" else not flights
    text = next((job / "crash").glob("*Z.md")).read_text()
    good = good and all(f"{name}: " in text for name in flights)
    required = "rank 0's names the collective, in the report" if device == "cuda" else "none: gloo's is not asked"
    rows.append(("the same: dumps of the flight recorder", required, judged(told or "none", good)))
    longest = max(deadline(Beat(0, 0, 0, 1, phase, 0.0, 0.0), RuntimeConfig().deadline) for phase in PHASES)
    waits = [TIMEOUT.total_seconds()]
    for path in (job / "crash" / "attempt_000").glob("flight_*"):
        waits += [entry["timeout_ms"] / 1000 for entry in pickle.loads(path.read_bytes())["entries"]]
    seen = (
        f"collectives wait {min(waits):.0f} s ({len(waits) - 1} by NCCL's own records), phases at most {longest:.0f} s"
    )
    good = min(waits) > longest and (device == "cpu" or len(waits) > 1)
    rows.append(("the time-out of collectives", "longer than every phase's deadline", judged(seen, good)))
    return ("what", "required", "seen"), rows


def judged(seen: str, good: bool) -> str:
    return seen if good else FAILED + seen


def measure(folder: Path, device: str) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    gpu = device == "cuda"
    base = [f"runtime.device={device}", *([] if gpu else SMALL)]
    exact = [*base, "training.precision=float64"]
    alone = train(folder, "alone", [*exact, "training.steps=20"], ranks=1)
    rows = []
    for strategy in ("ddp", "fsdp2"):
        name = f"parity, {strategy} on 2 ranks against 1, float64, AdamW, 20 steps"
        job = train(folder, f"parity_{strategy}", [*exact, "training.steps=20", f"runtime.strategy={strategy}"])
        difference = distance(alone, job)
        rows.append(row(name, job, f"largest relative difference {difference:.1e}", good=difference <= 1e-10))
    undisturbed = train(folder, "undisturbed", base)
    if gpu:
        eager = train(folder, "eager", [*base, "runtime.capture=off"])
        rows.append(row("captured steps against eager ones, ddp on 2 ranks", eager, *same(undisturbed, eager)))
        for strategy in ("ddp", "fsdp2"):
            reference = train(folder, "exact", exact)
            more, fault = [*exact, f"runtime.strategy={strategy}"], "squeeze at forward rank 1 step 12"
            job = train(folder, f"memory_{strategy}", more, fault)
            difference = distance(reference, job)
            seen = "; ".join([*shrunk(job), f"largest relative difference {difference:.1e}"])
            good = difference <= 1e-10 and bool(shrunk(job))
            rows.append(row(f"real out-of-memory on rank 1, {strategy}", job, seen, good=good))
    for fault, rank, name in (
        (f"{HANG[device]} at reduce", 1, "rank 1 never joins a reduction"),
        ("kill at update", 1, "SIGKILL of rank 1"),
        ("raise at backward", 1, "exception on rank 1 in backward"),
        ("segv at forward", 0, "SIGSEGV of rank 0"),
    ):
        job = train(folder, name.replace(" ", "_"), base, f"{fault} rank {rank} step 25")
        seen, good = same(undisturbed, job)
        rows.append(row(name, job, seen, good and reports(job)[0]["rank"] == rank))
    return ("what", "seen", "found after (s)", "training again after (s)", "steps repeated"), rows


def shrunk(job: Path) -> list[str]:
    """What became of the micro-batches."""
    events = read_events(job / "stages" / "operator" / "events.jsonl")
    found = [(e["task"], e["micro_batch"]) for e in events if e["kind"] == "out_of_memory"]
    if (job / "backoff.json").exists():
        found += json.loads((job / "backoff.json").read_text()).get("micro_batch", {}).items()
    return [f"micro-batch of {task} now {size}" for task, size in found]


def train(
    folder: Path, name: str, overrides: Sequence[str] = (), fault: str = "", ranks: int = 2, ends: int = 0
) -> Path:
    """One job, which must end with this code; its run directory. The data are made once."""
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
    if process.returncode != ends:
        for file in [*sorted((job / "logs").glob("*.log")), *sorted((job / "crash").rglob("*.stacks"))]:
            print(f"--- {file.name}\n{file.read_text()[-3000:]}")
        sys.exit(f"{name} did not end as it should")
    return job


def reports(job: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((job / "crash").glob("*Z.json"))]


def row(name: str, job: Path, seen: str, good: bool = True) -> tuple[str, ...]:
    """What the job's events say of a crash, and what the caller saw of its result."""
    ended = json.loads((job / "outcome.json").read_text())["state"]
    resumed = [e for e in read_events(job / "stages" / "operator" / "events.jsonl") if e["kind"] == "resumed"]
    seen = judged(f"{ended}; {seen}", good)
    found = reports(job)
    if not found:
        return name, seen, "–", "–", "–"
    report = found[0]
    again = repeated = "–"
    if resumed:
        again = f"{moment(resumed[0]) - moment(report):.1f}"
        repeated = str(report["step"] - resumed[0]["step"])
    seen += f"; blamed: rank {report['rank']}"
    for path, begun in report["flight_recorder"].items():
        seen += f"; {Path(path).name}: {', '.join(begun) or 'nothing unfinished'}"
    return name, seen, f"{report['seconds_to_detect']:.1f}", again, repeated


def moment(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def final(job: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(job / "stages" / "operator" / "checkpoints")[0]


def same(one: Path, other: Path) -> tuple[str, bool]:
    a, b = final(one), final(other)
    if all(torch.equal(a[name], b[name]) for name in a):
        return "bit-equal end", True
    return f"not bit-equal: largest relative difference {distance(one, other):.1e}", False


def distance(one: Path, other: Path) -> float:
    a, b = final(one), final(other)
    names = [n for n in a if n.startswith(("model.", "ema.")) and a[n].any()]
    return max(float((a[n] - b[n]).abs().max() / a[n].abs().max()) for n in names)


if __name__ == "__main__":
    main()
