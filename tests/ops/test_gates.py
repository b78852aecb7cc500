"""A run that is not as good as its gates ask ends as decided, and what the test data do not decide ends nothing."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import pytest
import yaml
from small import TOY

from ups import pipeline
from ups.distributed.faults.explain import explanation
from ups.distributed.launch.outcome import outcome_of
from ups.errors import GATE_FAILED, GateFailed, UserError
from ups.ops.gates import GateConfig, judged, references
from ups.ops.runs import state_of
from ups.pipeline.check import findings_of
from ups.pipeline.config import load_run


def entry(value: float | None, low: float | None, high: float | None) -> dict:
    return {"model": value, "operator": value, "persistence": 1.0, "ci95": [low, high]}


METRICS = {
    "heat@16": {"one_step": {"nrmse": entry(0.1, 0.09, 0.12)}, "rollout": {"nrmse": entry(0.3, 0.2, 0.4)}},
    "heat@32": {"one_step": {"nrmse": entry(0.1, 0.09, 0.12)}, "rollout": {"nrmse": entry(0.6, 0.5, 0.7)}},
    "darcy": {"one_step": {"nrmse": entry(None, None, None), "coverage_90": entry(0.8, 0.7, 0.85)}},
}


def verdicts(**gate) -> dict[str, tuple[bool, str]]:
    found = judged({"g": GateConfig(**gate)}, METRICS, {}, "operator", {})
    return {verdict.test_set: (verdict.holds, verdict.says) for verdict in found}


def test_a_gate_fails_where_the_whole_interval_is_beyond_its_limit():
    found = verdicts(task="heat", at_most=0.45)
    assert [holds for holds, _ in found.values()] == [True, False]
    assert found["heat@32"][1] == "gate g FAILS: nrmse of heat@32 is 0.6 (0.5 to 0.7), at most 0.45"
    assert "within the noise" in verdicts(task="heat@16", at_most=0.25)["heat@16"][1]
    assert verdicts(task="heat@16", at_most=0.25)["heat@16"][0]
    assert "within the noise" not in verdicts(task="heat@16", at_most=0.4)["heat@16"][1]
    assert not verdicts(task="heat@16", of="one_step", at_most=0.08)["heat@16"][0]
    assert [holds for holds, _ in verdicts(metric="coverage_90", at_least=0.85).values()] == [True]
    assert [holds for holds, _ in verdicts(metric="coverage_90", at_least=0.86).values()] == [False]


def test_what_is_no_number_passes_no_gate():
    for gate in ({"at_most": 1e9}, {"at_least": 1e-9}):
        assert verdicts(task="darcy", **gate)["darcy"] == (
            False,
            f"gate g FAILS: nrmse of darcy is not finite, at {next(iter(gate))[3:]} {next(iter(gate.values())):g}",
        )


def test_a_gate_that_finds_nothing_says_what_there_is():
    with pytest.raises(
        UserError, match=r"gates\.g finds no crps of any test set; there are coverage_90, nrmse of heat"
    ):
        verdicts(metric="crps", at_most=1.0)


def test_gates_without_limits_or_of_unknown_tasks_are_refused(tmp_path: Path):
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(TOY))
    for override, sentence in (
        ("gates.g.metric=nrmse", "it has no limit; give at_most or at_least"),
        ("gates.g={task: darcy, at_most: 1}", "which is not among the tasks"),
        ("gates.g={at_mots: 1}", "at_most"),
    ):
        with pytest.raises(UserError, match=sentence):
            load_run(tmp_path / "toy.yaml", [override])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run `toy`."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "toy.yaml").write_text(yaml.safe_dump(TOY))
    pipeline.run(str(folder / "toy.yaml"), [], folder)
    return folder


def test_a_run_ends_at_a_small_evaluation_and_goes_on_once_its_gates_let_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch
):
    toy, run = str(runs / "toy.yaml"), runs / "strict"
    asked = ["name=strict", "evaluation.small=2"]
    beside = "compare={fno: {width: 8, depth: 1, modes: 4}}"
    with pytest.raises(GateFailed, match=r"gate accurate FAILS: nrmse of burgers is .*on 2 test trajectories"):
        pipeline.run(toy, [*asked, beside, "gates.accurate.at_most=0.001"], runs)
    outcome = outcome_of(run)
    assert outcome is not None and (outcome.state, outcome.code) == ("gate_failed", GATE_FAILED)
    assert state_of(run).state == "failed a gate"
    assert "its model failed a gate (gate accurate FAILS" in explanation(run)[0]
    assert not (run / "metrics.json").exists() and not (run / "compare").exists()

    reference = f"gates.no_worse={{reference: {runs / 'toy'}, at_most: 1.05}}"
    pipeline.run(toy, [*asked, "gates.accurate.at_most=10", reference], runs)
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["state"] == "finished" and [gate["holds"] for gate in metrics["gates"]] == [True, True]
    assert [math.isclose(gate["value"], 1, rel_tol=1e-4) for gate in metrics["gates"]] == [False, True]
    assert "gate no_worse holds" in (run / "report.html").read_text()

    # As if a few trajectories had not decided it.
    monkeypatch.setattr(importlib.import_module("ups.pipeline.run"), "look", lambda *told: [])
    with pytest.raises(GateFailed, match="on all test data"):
        pipeline.run(toy, ["name=strict", "gates.accurate.at_most=0.001"], runs)
    assert json.loads((run / "metrics.json").read_text())["state"] == "evaluated"
    assert state_of(run).state == "failed a gate" and (run / "report.html").is_file()


def test_a_reference_of_other_tasks_is_refused_before_any_work(runs: Path):
    toy = str(runs / "toy.yaml")
    gate = f"gates.g={{reference: {runs / 'toy'}, at_most: 1.05}}"
    (runs / "unfinished").mkdir()
    for override, sentence in (
        ("tasks.burgers.make.trajectories=20", "a run of other tasks: burgers has other data there"),
        ("tasks={advection: {make: {equation: advection, trajectories: 9}}}", "advection is not among them"),
        ("data.seed=3", "whose data have the seed 0, not 3"),
        (f"gates.g.reference={runs / 'unfinished'}", "which is no finished run"),
    ):
        with pytest.raises(UserError, match=sentence):
            pipeline.run(toy, ["name=other", gate, override], runs)
        findings = findings_of(toy, ["name=other", gate, override], runs, 1)
        assert sentence in next(finding.says for finding in findings if finding.level == "red")
    assert not (runs / "other").exists()


def test_a_reference_with_other_test_trajectories_is_bounded_by_both_intervals(runs: Path):
    config = load_run(runs / "toy.yaml", [f"gates.g={{reference: {runs / 'toy'}, at_most: 1.05}}"])
    of = references(config.gates, config.tasks, config.data_seed)
    theirs = json.loads((runs / "toy" / "metrics.json").read_text())["tasks"]["burgers"]["rollout"]["nrmse"]
    metrics = {"burgers": {"rollout": {"nrmse": entry(0.6, 0.5, 0.7)}}}
    errors = {"burgers": {"rollout": {"operator": [0.6, 0.6], "persistence": [7.0, 7.0]}}}
    (verdict,) = judged(config.gates, metrics, errors, "operator", of)
    low, high = theirs["ci95"]
    assert math.isclose(verdict.low, 0.5 / high) and math.isclose(verdict.high, 0.7 / low)
