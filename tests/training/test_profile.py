"""Where a step's time went: traced on a real training, and on a trace of a GPU's that was written by hand."""

from __future__ import annotations

import gzip
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
from ups.training.trace import PHASES, complete_events, markdown, step_times

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
    times = step_times(complete_events(gzip.decompress((tmp_path / "profile" / "trace.json.gz").read_bytes())))
    assert times.steps == 3 and set(times.shares) == {*PHASES, "rest"}
    assert sum(times.shares.values()) == pytest.approx(1, abs=1e-6)
    assert all(times.host[phase] > 0 for phase in ("data", "forward", "backward", "update"))
    assert times.shares["rest"] < 0.2 and times.waiting == pytest.approx(times.host["data"])
    assert times.busy is None and times.device == {}
    own = sum(work.seconds for work in times.operators)
    assert 0 < own < times.seconds  # no operator's time is counted twice
    table = (tmp_path / "profile" / "profile.md").read_text()
    assert all(f"| {phase} |" in table for phase in (*PHASES, "rest")) and "aten::mm" in table

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


def gpu_step(start: float, replayed: bool) -> list[dict]:
    """One step of 100 µs, as a GPU's trace has it: data for 10, passes launched in 20, waiting in the update till 90.

    Its kernels: one of 8 µs in the shadow of the next step's data, one of 50 µs for the passes, one of 12 µs.
    """
    number = int(start)

    def event(cat: str, name: str, at: float, dur: float, correlation: int | None = None, tid: int = 1) -> dict:
        args = {} if correlation is None else {"correlation": correlation}
        return {"ph": "X", "cat": cat, "name": name, "ts": start + at, "dur": dur, "pid": 1, "tid": tid, "args": args}

    launch = "cudaGraphLaunch" if replayed else "cudaLaunchKernel"
    phases = [("data", 0, 30)] if replayed else [("data", 0, 10), ("forward", 10, 12), ("backward", 22, 8)]
    return [
        event("user_annotation", "ups step", 0, 100),
        *(event("user_annotation", f"ups: {name}", at, dur) for name, at, dur in phases),
        event("user_annotation", "ups: update", 30, 60),
        event("cuda_runtime", launch, 10 if replayed else 12, 3, number),
        event("kernel", "passes", 20, 50, number, tid=7),
        event("cuda_runtime", launch, 31, 3, number + 1),
        event("kernel", "update", 70, 12, number + 1, tid=7),
        event("cuda_runtime", "cudaLaunchKernel", 32, 3, number + 2),
        event("kernel", "averages", 97, 8, number + 2, tid=7),
        event("cpu_op", "aten::outer", 40, 10),
        event("cpu_op", "aten::inner", 42, 6),
    ]


@pytest.mark.parametrize("replayed", [True, False])
def test_a_gpu_s_work_counts_for_the_phase_that_launched_it(replayed: bool) -> None:
    times = step_times([event for start in (1000, 1100) for event in gpu_step(start, replayed)])
    micro = {name: round(1e6 * seconds) for name, seconds in times.host.items() if seconds}
    passes = {"forward and backward": 40} if replayed else {"forward": 24, "backward": 16}
    assert micro == {"data": 20, **passes, "update": 120, "rest": 20}
    device = {name: round(1e6 * seconds) for name, seconds in times.device.items()}
    assert device == {"forward and backward" if replayed else "forward": 100, "update": 40}
    assert round(1e6 * (times.busy or 0)) == 2 * (50 + 12) + 8 + 3  # the last kernel ends after the last step
    assert round(1e6 * times.waiting) == 20 - 5  # the second step gathers while the first one's kernel still runs
    assert {work.name: round(1e6 * work.seconds) for work in times.operators} == {"aten::outer": 8, "aten::inner": 12}
    assert [(work.name, work.calls) for work in times.kernels] == [("passes", 2), ("update", 2), ("averages", 2)]
    table = markdown(times)
    assert "device ms" in table and "busy 67.5%" in table and "Waiting for data: 7.5%" in table
