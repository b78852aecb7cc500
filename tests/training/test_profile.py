"""Where a step's time went, traced on a real training."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import small
import torch

from ups import pipeline
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.training.profile import WARM_UP, StepProfile

STAGE = Path("one") / "stages" / "operator"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiled")
    small.prepared(folder)
    return folder


@pytest.fixture
def runtime():
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as started:
        yield started


def test_a_profile_says_where_the_time_of_its_steps_went(data: Path, tmp_path: Path, runtime: Runtime) -> None:
    trainer = small.small_trainer(runtime, data, tmp_path / "traced")
    profile = StepProfile(3, tmp_path / "profile", runtime, 20)
    trainer.fit(around=profile.step)
    events = json.loads(gzip.decompress((tmp_path / "profile" / "trace.json.gz").read_bytes()))["traceEvents"]
    updates = [e for e in events if e["name"] == "ups: update" and e["cat"] == "user_annotation"]
    assert len(updates) == 6  # two marks a step
    table = (tmp_path / "profile" / "profile.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| ([0-9.]+) \| ", table, re.MULTILINE))
    assert list(rows) == ["data", "forward", "backward", "vote", "reduce", "update", "rest"]
    spent = {phase: float(milliseconds) for phase, milliseconds in rows.items()}
    whole = float(re.findall(r"A step took ([0-9.]+) ms", table)[0])
    assert sum(spent.values()) == pytest.approx(whole, rel=0.01) and spent["rest"] < 0.3 * whole
    assert spent["update"] == pytest.approx(sum(e["dur"] for e in updates) / 3e3, rel=0.2)
    assert all(spent[phase] > 0 for phase in ("data", "forward", "backward", "update")) and "aten::" in table

    plain = small.small_trainer(runtime, data, tmp_path / "plain")
    plain.fit()
    ends = [{name: small.whole(t) for name, t in t._tensors().items()} for t in (trainer, plain)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert runtime.heartbeat.heard is None


def test_only_the_first_rank_writes(data: Path, tmp_path: Path, runtime: Runtime) -> None:
    second = replace(runtime, ranks=replace(runtime.ranks, rank=1))
    profile = StepProfile(1, tmp_path / "profile", second, 100)
    for _ in range(WARM_UP + 5):
        with profile.step():
            pass
    assert not (tmp_path / "profile").exists()


def test_a_training_too_short_for_a_profile_is_refused_before_it_starts(tmp_path: Path, runtime: Runtime) -> None:
    with pytest.raises(UserError, match="only 12 are left to train; use a smaller --profile"):
        StepProfile(5, tmp_path, runtime, 12)


def profiled(runs: Path, *overrides: str) -> None:
    """A training of 20 steps, 4 of which are traced."""
    changes = [change for change in small.SMALLER if not change.startswith(("tasks.", "compare."))]
    config = runs / "one.yaml"
    config.write_text(
        "name: one\n"
        "tasks: {advection: {make: {equation: advection, trajectories: 12,"
        " settings: {points: 32, frames: 9, duration: 0.8, beta: 0.4}}}}\n"
    )
    changes += ["training.batch_size=4", "training.steps=20", *overrides]
    pipeline.train(str(config), changes, runs, profile=4)


def test_train_prints_the_table_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    profiled(tmp_path)
    printed = capsys.readouterr().out
    assert "| backward |" in printed and str(tmp_path / STAGE / "profile" / "profile.md") in printed


def test_a_profile_that_was_written_is_not_asked_for_again_on_resuming(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    profiled(tmp_path, "training.checkpoint_every=15")
    table = tmp_path / STAGE / "profile" / "profile.md"
    before = table.stat().st_mtime_ns
    shutil.rmtree(tmp_path / STAGE / "checkpoints" / "step_00000020")  # as if it had been stopped after 15 steps
    profiled(tmp_path, "training.checkpoint_every=15")
    assert (tmp_path / STAGE / "checkpoints" / "step_00000020").is_dir() and table.stat().st_mtime_ns == before
    assert capsys.readouterr().out.count("| backward |") == 2
