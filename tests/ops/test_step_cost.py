"""What is counted on a step without numbers is what the step with numbers does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ups.distributed.runtime.settings import RuntimeConfig
from ups.ops.fake import fake_runtime
from ups.ops.step_cost import cost_of, last_micro_batches, step_cost
from ups.pipeline.check import stand_in_tasks
from ups.pipeline.config import load_run
from ups.pipeline.data import look_at_inputs
from ups.pipeline.trainings import compared_plans, stage_plans
from ups.training.kinds import STAGES, StageContext

TOY = """
name: toy
tasks:
  burgers: {make: {equation: burgers, trajectories: 30, settings: {points: 32, frames: 9, duration: 0.5}}}
  darcy: {make: {equation: darcy, trajectories: 30, settings: {points: 16}}}
stages: {operator: {width: 16, depth: 2, modes: 8, head: 16}}
compare: [unet]
training: {steps: 20, batch_size: 8, rollout: [[0, 1], [0.5, 2]], noise: 0.01}
runtime: {device: cpu, threads: 1}
"""


def planned(folder: Path, *overrides: str):
    """A plan each of a stage and of a network beside it, their tasks, and how long these are."""
    (folder / "toy.yaml").write_text(TOY)
    config = load_run(folder / "toy.yaml", overrides)
    outlines = look_at_inputs(config, folder / "run")
    plans = [stage_plans(config, {}, folder)["operator"], compared_plans(config, {}, folder)["unet"]["darcy"]]
    lengths = {name: (outline.trained, len(outline.header.times)) for name, outline in outlines.items()}
    for plan in plans:
        tasks = {name: task for name, task in stand_in_tasks(config, outlines).items() if name in plan.shares}
        yield plan, tasks, {name: lengths[name] for name in tasks}


def test_a_step_without_numbers_needs_the_bytes_of_one_with_numbers(tmp_path: Path) -> None:
    for plan, tasks, lengths in planned(tmp_path):
        without = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu"))
        with fake_runtime(RuntimeConfig(device="cpu"), 1, 8) as runtime:
            learned = tuple(tasks.values())
            context = StageContext(plan.name, plan.settings, learned, plan.training, runtime.config, 0, {}, {})
            stage = STAGES[plan.kind].build(context)
            micros = last_micro_batches(stage, plan, tasks, lengths, runtime)
            real = cost_of(stage, micros, plan, runtime, 8)
        assert (without.parameters, without.held, without.state) == (real.parameters, real.held, real.state)
        assert without.peak == pytest.approx(real.peak, rel=0.02) and without.peak > without.state


def test_replicated_ranks_send_each_task_s_gradients_and_sharded_ones_hold_a_part(tmp_path: Path) -> None:
    _, (plan, tasks, lengths) = planned(tmp_path, "training.optimiser=adamw")
    one = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu"))
    replicated = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu"), 8)
    assert replicated.within == 2 * 4 * one.parameters * 7 / 8
    assert (replicated.beyond, replicated.held) == (0, one.held)
    sharded = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu", strategy="fsdp2"), 8)
    assert sharded.held == pytest.approx(one.held / 8, rel=0.05)
