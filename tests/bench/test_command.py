"""`ups bench` as a command: stopped, called twice at once, called with nonsense."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hasty import ARGUMENTS, hastily, measure
from tiny import tiny, tiny_setting
from typer.testing import CliRunner

from ups.bench import accuracy, solvers, throughput
from ups.bench.loops import Loop
from ups.bench.run import owned
from ups.bench.tasks import chosen
from ups.cli.main import app
from ups.errors import Stopped, UserError


@pytest.fixture(scope="module", autouse=True)
def quickly():
    with hastily():
        yield


@pytest.fixture
def signalled(monkeypatch):
    """Blocks of steps, each of which sends this process a SIGTERM; how many there were."""
    rounds: list[int] = []
    round_of = throughput.round_of

    def timed(timing: throughput.Timing, device: torch.device) -> None:
        round_of(timing, device)
        rounds.append(1)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(throughput, "round_of", timed)
    return rounds


def rows(out: Path) -> dict[str, Any]:
    return json.loads((out / "advection.json").read_text())["contestants"]


def test_a_signal_is_heard_after_the_block_that_is_being_timed(tmp_path, signalled):
    with pytest.raises(Stopped, match="results of finished contestants are kept"):
        measure(**ARGUMENTS, seconds=0, out=tmp_path)
    assert len(signalled) == 1
    assert all("why" not in row for row in rows(tmp_path).values()), "who stops is not who fails"


def test_a_wish_to_stop_is_heard_in_trainings_and_while_solvers_and_rollouts_are_timed(tmp_path):
    with tiny_setting(tmp_path) as setting:
        contestant = Loop("ours", setting, "gather", averaged=False)
        setting.runtime.stop.asked = True
        with pytest.raises(Stopped, match="results of finished contestants are kept"):
            solvers.ladder(setting.data, setting.runtime)
        with pytest.raises(Stopped, match="kept"), contestant.judged() as model:
            solvers.model_seconds(model, setting.data, setting.runtime)
        with pytest.raises(Stopped, match="kept"):
            accuracy.train(contestant, setting.data, "ours", 20, 0.0, setting.runtime)


def test_other_threads_are_other_settings(tmp_path):
    assert measure(**ARGUMENTS | {"only": ["ours"]}, seconds=0, out=tmp_path) == 0
    with pytest.raises(UserError, match="results of other settings"):
        measure(**ARGUMENTS | {"only": ["eager"], "threads": 2}, seconds=0, out=tmp_path)


def test_a_folder_in_use_by_another_bench_is_refused(tmp_path):
    in_use = f"^{tmp_path} is in use by another process; choose another --out$"
    with owned(tmp_path), pytest.raises(UserError, match=in_use):
        measure(**ARGUMENTS, seconds=0, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot write to .*: Not a directory; choose another --out$"):
        measure(**ARGUMENTS, seconds=0, out=tmp_path / "file" / "bench")


def test_the_files_of_all_tasks_are_looked_at_before_the_first_is_measured(tmp_path):
    (tmp_path / "burgers.json").write_text("{")
    both = {"tasks": ["advection", "burgers"], "change": lambda task: replace(tiny(), name=task.name)}
    with pytest.raises(UserError, match=r"burgers\.json is not the JSON of a benchmark"):
        measure(**ARGUMENTS | both, seconds=0, out=tmp_path)
    assert not (tmp_path / "advection.json").exists()


def test_a_task_named_twice_is_measured_once():
    assert [task.name for task in chosen(["burgers", "advection", "burgers"], quick=False)] == ["burgers", "advection"]


def test_a_seed_given_twice_counts_once(tmp_path, capsys):
    assert measure(**ARGUMENTS | {"only": ["eager"]}, seconds=0.1, seeds=(1, 0, 1), out=tmp_path) == 0
    assert list(rows(tmp_path)["eager"]["runs"]) == ["1", "0"]
    assert capsys.readouterr().out.count("training ours, eager on advection: ") == 2


def test_a_seed_that_no_generator_takes_is_refused(tmp_path):
    answer = CliRunner().invoke(app, ["bench", "--seed", "99999999999999999999999", "--out", str(tmp_path)])
    assert answer.exit_code == 2 and "less than or equal to 2147483647" in answer.output


@pytest.mark.parametrize("seconds", [math.inf, math.nan])
def test_endless_training_is_refused(tmp_path, seconds):
    with pytest.raises(UserError, match=f"--seconds {seconds}: .* give a finite number of seconds"):
        measure(**ARGUMENTS, seconds=seconds, out=tmp_path)


def test_a_choice_that_leaves_nothing_to_measure_is_refused(tmp_path):
    with pytest.raises(UserError, match="--only small: burgers with --quick has no such model; choose other"):
        measure(quick=True, only=["small"], device="cpu", out=tmp_path)


def test_the_plain_transformer_is_timed_beside_nobody(tmp_path):
    with torch.compiler.set_stance("force_eager"):
        assert (
            measure(tasks=["transformer"], quick=True, device="cpu", compile=True, out=tmp_path, change=lambda t: t)
            == 0
        )
    found = json.loads((tmp_path / "transformer.json").read_text())["contestants"]
    assert list(found) == ["transformer"] and "runs" not in found["transformer"]
    assert found["transformer"]["throughput"]["share_of_matmul"] > 0
