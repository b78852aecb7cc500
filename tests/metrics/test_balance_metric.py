"""Predictions are judged by the equation too, each sample by its own parameters."""

from dataclasses import replace

import pytest
import torch

from ups.equations import Advection, Darcy, Wave
from ups.metrics import MetricContext, metrics


def context(equation, batch, **changed):
    return MetricContext(
        equation.task(), batch.times, batch.grid, None, equation, batch.parameters, batch.static, **changed
    )


def test_each_sample_is_judged_by_its_own_speed():
    slow, fast = (Advection(points=256, frames=101, beta=beta) for beta in (0.2, 0.4))
    batches = [equation.solve(0, range(2)) for equation in (slow, fast)]
    both = torch.cat([batch.values for batch in batches])
    speeds = {"beta": torch.tensor([0.2, 0.2, 0.4, 0.4], dtype=torch.float64)}
    of = MetricContext(slow.task(), batches[0].times[:1].expand(4, -1), slow.grid, None, slow, speeds)
    true = metrics()["balance"](both, both, of)
    wrong = metrics()["balance"](both, both, replace(of, parameters={"beta": speeds["beta"].flip(0)}))
    still = metrics()["balance"](both[:, :1].expand_as(both), both, of)
    assert (true < 0.2).all() and (wrong > 2 * true).all()
    assert (still > 0.5).all()


def test_zero_has_the_balance_one_in_a_steady_task_and_the_solution_none():
    darcy = Darcy(points=32)
    batch = darcy.solve(0, range(2))
    judged = metrics()["balance"](torch.zeros_like(batch.values), batch.values, context(darcy, batch))
    assert judged == pytest.approx(torch.ones(2).double())
    assert (metrics()["balance"](batch.values, batch.values, context(darcy, batch)) < 1e-2).all()


def test_a_task_whose_frames_do_not_tell_their_rate_has_no_balance():
    batch = Advection(points=64, frames=5).solve(0, range(2))
    known = context(Advection(points=64, frames=5), batch)
    applies = metrics()["balance"].applies
    assert applies(known)
    assert not applies(replace(known, equation=None))
    assert not applies(replace(known, mask=torch.ones(2, 64, dtype=torch.bool)))
    assert not applies(replace(known, times=batch.times[:, :1]))
    assert not Wave.closed
