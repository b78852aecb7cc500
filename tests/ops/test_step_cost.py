"""What is counted on a step without numbers is what the step with numbers does."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

import pytest
from ranks import run_ranks

from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.ops.fake import fake_runtime
from ups.ops.step_cost import Cost, cost_of, micro_batches, step_cost
from ups.pipeline.check import stand_ins
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
    for plan in plans:
        yield plan, *stand_ins(config, plan, outlines)


def test_a_step_without_numbers_needs_the_bytes_of_one_with_numbers(tmp_path: Path) -> None:
    for plan, tasks, lengths in planned(tmp_path):
        without = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu"))
        with fake_runtime(RuntimeConfig(device="cpu"), 1, 8) as runtime:
            learned = tuple(tasks.values())
            context = StageContext(plan.name, plan.settings, learned, plan.training, runtime.config, 0, {}, {})
            stage = STAGES[plan.kind].build(context)
            micros = micro_batches(stage, plan, tasks, lengths, runtime)
            real = cost_of(stage, micros, plan, runtime, 8)
        assert (without.parameters, without.held, without.state) == (real.parameters, real.held, real.state)
        assert without.peak == pytest.approx(real.peak, rel=0.02) and without.peak > without.state


def test_replicated_ranks_send_each_task_s_gradients_and_sharded_ones_hold_a_part(tmp_path: Path) -> None:
    _, (plan, tasks, lengths) = planned(tmp_path, "training.optimiser=adamw")
    one = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu"))
    replicated = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu"), 8)
    assert replicated.within == 2 * 4 * one.parameters * 7 / 8
    assert (replicated.beyond, replicated.held) == (0, one.held)
    # parameters, averages and two moments, a copy of each, the task's gradients, and these clipped; sums for norms
    assert one.recording == pytest.approx((4 + 4 + 2) * one.held, rel=0.02) and one.gradients == one.held
    sharded = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu", strategy="fsdp2"), 8)
    assert sharded.held == pytest.approx(one.held / 8, rel=0.05)


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("fsdp2", 2), ("hsdp", 4)])
def test_ranks_send_what_ranks_that_do_not_exist_would(tmp_path: Path, strategy: str, ranks: int) -> None:
    """To the byte, as collectives are called, of machines of two ranks; on the wire, where messages have headers, to a
    per cent: of all-reduces, for gloo's reduce-scatter sends more than a ring would.
    """
    plan, tasks, lengths = next(planned(tmp_path))
    told = step_cost(plan, tasks, lengths, RuntimeConfig(device="cpu", strategy=strategy), ranks, 2)
    assert told.within and bool(told.beyond) == (strategy == "hsdp")
    for cost, wire in run_ranks(ranks, _costs_of_a_rank, tmp_path, strategy):
        assert (cost.within, cost.beyond, cost.collectives) == (told.within, told.beyond, told.collectives)
        assert (cost.held, cost.state, cost.flop) == (told.held, told.state, told.flop)
        assert 2 * (told.within + told.beyond) < wire  # of two steps
        assert strategy != "ddp" or wire < 1.01 * 2 * told.within


def _costs_of_a_rank(folder: Path, strategy: str) -> tuple[Cost, int]:
    own = folder / os.environ["RANK"]  # neither reads what the other has half written
    own.mkdir()
    plan, tasks, lengths = next(planned(own))
    with Runtime.start(RuntimeConfig(device="cpu", threads=1, strategy=strategy, shard=2), 0) as runtime:
        stage = STAGES[plan.kind].build(
            StageContext(plan.name, plan.settings, tuple(tasks.values()), plan.training, runtime.config, 0, {}, {})
        )
        before = _sent_by_sockets()
        cost = cost_of(stage, micro_batches(stage, plan, tasks, lengths, runtime), plan, runtime, 2)
        sent = _sent_by_sockets() - before
        runtime.gather(sent)  # the first to leave closes the connections
        return cost, sent


def _sent_by_sockets() -> int:
    """Bytes that this process has written to its connections, by the system's own counts: all sent, less those
    that were sent again, and those that still wait (tcpi_bytes_sent, tcpi_bytes_retrans, tcpi_notsent_bytes).
    """
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue  # a copy of it would stay open: only a socket closes its own
            with socket.socket(fileno=os.dup(int(name))) as connection:
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            continue  # no connection, or closed meanwhile
        (waiting,), (sent, again) = struct.unpack_from("I", told, 144), struct.unpack_from("QQ", told, 200)
        total += sent - again + waiting
    return total
