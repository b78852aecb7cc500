"""The costs of docs/scaling.md are still measured by the program as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scaling.py"


def test_what_eight_ranks_hold_and_send_is_what_one_works_out_by_hand() -> None:
    command = [sys.executable, str(SCRIPT), "--models", "10M", "--ranks", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in done.stdout.splitlines()[4:]]
    assert [row[1] for row in rows] == ["ddp", "fsdp2", "hsdp"]
    for row in rows:
        state, state_by_hand, _, within, beyond, sent_by_hand = map(float, row[3:])
        assert state == pytest.approx(state_by_hand, rel=0.01)
        assert within + beyond == pytest.approx(sent_by_hand, rel=0.01)
