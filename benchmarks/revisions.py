"""Two revisions' training steps, timed in turn, so that what else the machine does slows both alike.

    git worktree add /tmp/old REVISION
    python benchmarks/revisions.py /tmp/old benchmarks/revisions.yaml

Both train at once, but only one at a time is let run, for three seconds; the other is stopped (SIGSTOP).
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ups.track.jsonl import read_events

HERE = Path(__file__).parents[1]
BLOCK, SETTLE = 3.0, 0.3
"""Seconds that are timed, and those before that are not, in which caches and threads wake up."""
BEGUN = 200
"""Steps before anything is timed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout of the other revision")
    parser.add_argument("config", type=Path, help="what both train, for more steps than there is time for")
    parser.add_argument("--old-config", type=Path, help="the same in the other revision's keys, if they differ")
    parser.add_argument("--rounds", type=int, default=16)
    told = parser.parse_args()
    sources = {"old": (told.old / "src", told.old_config or told.config), "new": (HERE / "src", told.config)}
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: Path(folder) / name for name in sources}
        jobs: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name, (source, config) in sources.items():
                jobs[name] = started(source, config, runs[name])
            speeds: dict[str, list[float]] = {name: [] for name in jobs}
            for turn in range(told.rounds):
                for name in sorted(jobs, reverse=turn % 2 == 1):
                    speeds[name].append(timed(jobs[name], runs[name]))
        finally:
            for job in jobs.values():
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()  # it writes into the folder that goes now
    ratios = sorted(old / new for old, new in zip(speeds["old"], speeds["new"], strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    shown = ", ".join(f"{name} {statistics.median(each):.1f}" for name, each in speeds.items())
    print(f"steps a second, median of {told.rounds} blocks of {BLOCK:g} s: {shown}")
    middle = f"middle half of the rounds {low:.3f} to {high:.3f}"
    print(f"time of a step, new over old: {statistics.median(ratios):.3f} ({middle})")


def started(source: Path, config: Path, runs: Path) -> subprocess.Popen[bytes]:
    """A training that is under way, and stopped."""
    command = [sys.executable, "-m", "ups", "train", str(config), "--runs", str(runs)]
    with (runs.parent / f"{runs.name}.log").open("wb") as log:
        job = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(source)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while steps(runs) < BEGUN:
        if job.poll() is not None:
            sys.exit((runs.parent / f"{runs.name}.log").read_text())
        time.sleep(0.2)
    os.killpg(job.pid, signal.SIGSTOP)
    return job


def timed(job: subprocess.Popen[bytes], runs: Path) -> float:
    """Steps a second in one block."""
    os.killpg(job.pid, signal.SIGCONT)
    time.sleep(SETTLE)
    before, began = steps(runs), time.monotonic()
    time.sleep(BLOCK)
    after, ended = steps(runs), time.monotonic()
    os.killpg(job.pid, signal.SIGSTOP)
    if after == before:
        sys.exit(f"{runs.name} makes no steps; see what `ups train` says, and give it more training.steps")
    return (after - before) / (ended - began)


def steps(runs: Path) -> int:
    """How many are done, as its events say: every tenth."""
    found = [
        event["step"] for path in runs.rglob("events.jsonl") for event in read_events(path) if event["kind"] == "step"
    ]
    return max(found, default=0)


if __name__ == "__main__":
    main()
