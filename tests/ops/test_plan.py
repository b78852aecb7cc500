"""What a run will take: counted, measured, fitted, and said with what it rests on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ups.cli.main import app
from ups.distributed.runtime.settings import RuntimeConfig
from ups.errors import UserError
from ups.ops.plan import Phase, Room, estimate, recommended
from ups.ops.rates import DeviceRates, Links, StepRates, fitted, keep, kept, workspaces
from ups.ops.step_cost import Cost
from ups.pipeline import plan as planning
from ups.pipeline.config import load_run
from ups.pipeline.plan import device_name, plan

TOY = """
name: toy
tasks: {burgers: {make: {equation: burgers, trajectories: 10, settings: {points: 32, frames: 9, duration: 0.5}}}}
stages: {operator: {width: 8, depth: 1, modes: 4, head: 8}}
training: {steps: 1000, batch_size: 8, rollout: [[0, 1]], optimiser: adamw}
runtime: {device: cpu, threads: 1}
"""
KIND = "spectral float32 adamw"
RATES = StepRates(1e-6, 1e-9, 1e-9, 0.0, 1e12, 0.1, 0.0, 0.0, ("burgers",), "today")
COST = Cost(1e6, 4e6, 2e7, 3e7, 8e6, 4e6, 10, 2e9, 1000, 3e8, 4e6, 5e7)


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "toy.yaml").write_text(TOY)
    return str(tmp_path / "toy.yaml")


def test_rates_are_found_again_from_steps_that_have_them() -> None:
    costs = [
        replace(COST, flop=f * 1e9, operations=n, moved=m * 1e8) for f, n, m in ((1, 9, 2), (8, 20, 3), (3, 50, 9))
    ]
    seconds = [2e-3 * c.operations + 1e-12 * c.flop + 3e-11 * c.moved for c in costs]
    *rates, error = fitted(costs, seconds)
    assert rates == pytest.approx([2e-3, 1e-12, 3e-11]) and error < 1e-9
    operation, flop, byte, error = fitted(costs, [1e-12 * c.flop for c in costs])
    assert (operation, byte) == pytest.approx((0, 0), abs=1e-12) and flop == pytest.approx(1e-12)


def test_memory_beyond_the_count_grows_with_the_model() -> None:
    costs = [replace(COST, state=state) for state in (1e7, 2e7, 6e7)]
    peaks = [COST.peak + 1e6 + 0.5 * cost.state for cost in costs]
    assert workspaces(costs, peaks) == pytest.approx((1e6, 0.5))
    assert workspaces(costs, [COST.peak + 3e6, COST.peak + 2e6, COST.peak + 1e6]) == (3e6, 0.0)
    rates = replace(RATES, workspace=1e6, workspace_share=0.5)
    assert Room(None, 7e6, rates).needed(costs[0]) == COST.peak + 7e6 + 1e6 + 5e6


def test_an_estimate_is_the_arithmetic_of_its_phases() -> None:
    links, room = Links(within=1e9, beyond=1e8, latency=1e-3), Room(4e7, 0.0, RATES)
    phases = [Phase(0.5, COST), Phase(0.5, replace(COST, flop=4e9))]
    found = estimate("operator", "ddp", 16, phases, room, links, 3600, price=2.0)
    computing, sending = 1e-6 * 1000 + 1e-9 * 3e9 + 1e-9 * 3e8, 10e-3 + 8e-3 + 40e-3
    assert found.computing == pytest.approx(computing) and found.sending == pytest.approx(sending)
    assert found.step == pytest.approx((0.9 * computing + sending, 1.1 * computing + sending))
    assert found.price == pytest.approx(2.0 * 16 * found.step[1]) and found.flop_in_all == 16 * 3e9 * 3600
    hidden = estimate("operator", "hsdp", 16, phases, room, links, None, seconds=60.0)
    assert hidden.step is not None and hidden.step[0] == pytest.approx(0.9 * computing)
    assert hidden.steps == int(60 / hidden.step[1]) and hidden.seconds == 60
    faster = replace(hidden, step=(1.0, 2.0))
    assert recommended([found, faster]) is faster
    assert recommended([found, replace(faster, fits=False)]) is found
    unknown = estimate("operator", "ddp", 16, phases, room, Links(within=1e9), 3600)
    assert unknown.step is None and unknown.seconds is None


def test_a_gpu_needs_what_recording_a_step_takes() -> None:
    assert planning.recorded(COST, RuntimeConfig(), 3).peak == 5e7 + 2 * 4e6
    assert planning.recorded(COST, RuntimeConfig(strategy="fsdp2"), 3) is COST
    assert planning.recorded(COST, RuntimeConfig(capture="off"), 3) is COST


def test_a_plan_counts_what_it_may_and_says_what_it_does_not_know(toy: str, tmp_path: Path) -> None:
    found = plan(toy, [], tmp_path / "runs", 2, 2)
    assert [row.strategy for row in found.rows] == ["ddp", "fsdp2", "hsdp"]
    assert all(row.peak > row.state > 0 and row.step is None for row in found.rows)
    assert found.rows[0].beyond and found.rows[2].within > found.rows[0].within
    assert any("no rates of spectral" in line for line in found.assumptions)
    assert not (tmp_path / "runs").exists()
    here = device_name(load_run(toy, []).runtime)
    keep(DeviceRates(here, 8 * found.rows[0].peak, False, "", {KIND: RATES}))
    known = plan(toy, [], tmp_path / "runs", 1, 1, price=1.5)
    (ddp,) = known.rows
    assert ddp.step is not None and ddp.step[0] < ddp.step[1] and ddp.fits
    assert ddp.price == pytest.approx(1.5 * 1000 * ddp.step[1] / 3600)
    assert ddp.largest is not None and ddp.largest.parameters > ddp.parameters
    assert any("off by 10% at most" in line for line in known.assumptions)


def test_a_plan_of_one_rank_is_drawn_as_its_name_says(toy: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.pdf"
    answer = CliRunner().invoke(app, ["plan", toy, "--runs", str(tmp_path / "runs"), "--plot", str(path)])
    assert path.read_bytes().startswith(b"%PDF") and "parameters on 1 rank, " in answer.stdout


def test_what_is_measured_is_kept_for_plans(toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "SIZES", planning.SIZES[:2])
    arguments = [
        "plan",
        toy,
        "--runs",
        str(tmp_path / "runs"),
        "--measure",
        "--json",
        "--plot",
        str(tmp_path / "p.png"),
    ]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    (row,) = told["plans"]
    assert row["step"][0] > 0 and told["recommended"] == {"operator": "ddp"} and (tmp_path / "p.png").stat().st_size
    rates = kept(device_name(load_run(toy, []).runtime))
    assert rates is not None and set(rates.steps) == {KIND} and rates.memory == told["device_memory"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpus", "16"], "batch_size is 8 for 16 ranks"),
        (["--gpus", "512", "--nodes", "16"], "4096 at most"),
        (["--price", "0"], "--price is 0"),
        (["--within", "0"], "--within is 0"),
        (["--within", "nan"], "--within is nan"),
        (["--beyond", "inf"], "--beyond is inf"),
        (["--plot", "plan.jpg"], "plan.jpg: a picture's name ends in .png, .pdf, .svg"),
        (["--plot", "none/plan.png"], "there is no folder none"),
        (["--device", "abacus"], "nothing is known of the device 'abacus'"),
        (["tasks={}"], "tasks"),
    ],
)
def test_bad_plans_are_one_sentence(toy: str, tmp_path: Path, arguments: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        CliRunner().invoke(app, ["plan", toy, *arguments, "--runs", str(tmp_path)], catch_exceptions=False)
    assert "\n" not in str(refused.value).strip()
