"""What supervision costs: the CPU time of the supervisor beside that of the ranks it watches.

    python benchmarks/supervisor.py --seconds 60

A job of two CPU ranks trains the model of `protocol.py`; both are looked at from outside while it does.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ups.distributed.faults.heartbeat import heartbeat_path, read_heartbeat

TICKS = os.sysconf("SC_CLK_TCK")
CONFIG = """
name: supervised
tasks:
  burgers:
    make: {equation: burgers, trajectories: 64, values: {nu: [0.02]},
           settings: {points: 128, frames: 11, duration: 0.5}}
stages: {operator: {width: 48, depth: 4, modes: 32}}
training: {steps: 1000000, batch_size: 64, noise: 0.002, validate_every: 1000000, checkpoint_every: 1000000}
runtime: {device: cpu, threads: 1}
"""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "supervised.yaml"
        config.write_text(CONFIG)
        command = [sys.executable, "-m", "ups", "--quiet", "train", str(config), "--gpus", "2", "--runs", folder]
        job = subprocess.Popen([*command, f"data.root={folder}/data"])
        try:
            while (beat := read_heartbeat(heartbeat_path(Path(folder) / "supervised", 0))) is None or beat.step < 20:
                if job.poll() is not None:
                    sys.exit("the job ended before its 20th step")
                time.sleep(0.1)
            ranks = [int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()]
            before = [cpu_seconds(pid) for pid in (job.pid, *ranks)]
            time.sleep(seconds)
            last = read_heartbeat(heartbeat_path(Path(folder) / "supervised", 0))
            used = [cpu_seconds(pid) - start for pid, start in zip((job.pid, *ranks), before, strict=True)]
        finally:
            job.kill()
            job.wait()
    assert last is not None
    print(f"\n{len(ranks)} ranks, {last.step - beat.step} steps in {seconds:.0f} s\n")
    print("| | CPU time (s) | of a core | of the ranks' |\n|---|---|---|---|")
    ranks_used = sum(used[1:])
    print(f"| ranks | {ranks_used:.2f} | {ranks_used / seconds:.3f} | |")
    print(f"| supervisor | {used[0]:.2f} | {used[0] / seconds:.4f} | {used[0] / ranks_used:.4f} |")


if __name__ == "__main__":
    main()
