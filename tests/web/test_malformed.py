"""Thousands of requests that make no sense: a sentence each, and a server that goes on."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = os.environ.get("UPS_SCHEMATHESIS") or shutil.which("schemathesis")


@pytest.mark.slow
def test_malformed_requests_are_refused_without_a_failure(finished_run: Path) -> None:
    if PROGRAM is None:
        pytest.skip("schemathesis, in an environment of its own, is named by UPS_SCHEMATHESIS")
    command = [sys.executable, Path(__file__).parents[2] / "benchmarks" / "serving.py", finished_run]
    done = subprocess.run([*command, "--schemathesis", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    count = int(done.stdout.split()[0])
    assert count >= 2000 and "of status 422" in done.stdout and "of status 500" not in done.stdout
