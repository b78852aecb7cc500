"""The first steps of a job, tried on its ranks; and what a check prints and leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import run_ranks
from typer.testing import CliRunner

from ups.cli.main import app
from ups.distributed.faults.injection import Fault, expect
from ups.ops.findings import Finding
from ups.pipeline.check import rehearsal_of_rank

MADE = "burgers: {make: {equation: burgers, trajectories: 10, settings: {points: 32, frames: 9, duration: 0.5}}}"
TOY = f"""
name: toy
tasks: {{{MADE}}}
stages:
  first: {{width: 8, depth: 1, modes: 4, head: 8}}
  second: {{width: 8, depth: 1, modes: 4, head: 8}}
training: {{steps: 20, batch_size: 7, rollout: [[0, 1], [0.5, 2]]}}
runtime: {{device: cpu, threads: 1}}
"""


@pytest.fixture
def toy(tmp_path: Path) -> str:
    (tmp_path / "toy.yaml").write_text(TOY)
    return str(tmp_path / "toy.yaml")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_two_ranks_that_work_together_find_nothing_wrong(toy: str, tmp_path: Path, strategy: str) -> None:
    every: list[list[Finding]] = run_ranks(
        2, rehearsal_of_rank, toy, [f"runtime.strategy={strategy}"], tmp_path / "runs"
    )
    assert {finding.level for found in every for finding in found} == {"green"}
    assert [finding.about for finding in every[0]] == ["collectives", *["first"] * 5, *["second"] * 5]
    halved = [finding.says == "a rank out of memory halves its micro-batch" for finding in every[0]]
    assert any(halved) == (strategy == "ddp")


def test_a_rank_whose_parameters_are_not_its_peers_is_found(toy: str, tmp_path: Path) -> None:
    every = run_ranks(2, _with_a_flipped_parameter, toy, tmp_path / "runs")
    assert [f.says for f in every[0] if f.level == "red"] == [f.says for f in every[1] if f.level == "red"]
    assert "parameters differ between ranks" in [f.says for f in every[0] if f.level == "red"]


def _with_a_flipped_parameter(toy: str, runs: Path) -> list[Finding]:
    expect(Fault("flip", "update", 1, 3))
    return rehearsal_of_rank(toy, [], runs)


def test_what_is_wrong_is_in_the_exit_code_and_in_json(toy: str, tmp_path: Path) -> None:
    command = ["check", toy, "--runs", str(tmp_path / "runs"), "--json", "training.stepz=3"]
    done = CliRunner().invoke(app, command)
    said = json.loads(done.stdout)
    assert (done.exit_code, said["ready"]) == (1, False)
    assert [(f["level"], f["about"]) for f in said["findings"]] == [("green", "packages"), ("red", "configuration")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.yaml"]


@pytest.mark.slow  # five jobs of two ranks, one of which compiles: some two minutes
def test_a_bisection_names_the_part_that_fails(toy: str, tmp_path: Path) -> None:
    options = ["--runs", str(tmp_path / "runs"), "--ranks", "2", "--bisect", "--json"]
    command = [sys.executable, "-m", "ups", "check", toy, *options, "runtime.compile=true"]
    broken = os.environ | {"CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, env=broken, capture_output=True, text=True, timeout=900)
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 1
    assert [f["about"] for f in findings if f["level"] == "red"] == ["rehearsal", "bisection"]
    assert findings[-1]["says"] == "without compile the rehearsal succeeds"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "toy.yaml"]
