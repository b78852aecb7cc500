"""Fault 38: the one who was first is blamed. On a GPU `benchmarks/gpu_ranks.py --blame` shows it with NCCL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_ranks.py"


def test_fault_38_a_rank_that_raises_or_hangs_is_blamed_and_not_its_peer(matrix):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--blame", "--device", "cpu"], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    for fault, required, seen in rows:
        if "flight recorder" not in fault:
            matrix.row(38, fault=f"{fault} (on gloo)", required=required, seen=seen)
