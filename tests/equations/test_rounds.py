"""Steps that a GPU takes many at a time are the steps that a CPU takes one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ups.equations import Compressible1D, Compressible2D, ShallowWater
from ups.equations.schemes import muscl
from ups.equations.schemes.euler import Gas, conserved
from ups.equations.schemes.muscl import Balance, blocks, cover, in_rounds
from ups.equations.shallow_water import Water
from ups.errors import UserError

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a GPU")


def started(equation: Compressible1D | Compressible2D, rows: int) -> tuple[Gas, torch.Tensor]:
    u = conserved(equation.start(0, range(rows)))
    return equation.gas(u.shape[2:]), u


def dam_breaks() -> tuple[Water, torch.Tensor]:
    u = ShallowWater(points=16).start(0, range(6))
    return Water("shallow_water", (5 / 16, 5 / 16)), u


PROBLEMS = {
    "waves": (*started(Compressible1D(points=32), 12), 0.05),
    "shocks": (*started(Compressible1D(points=32, initial="shock", boundary_kind="open", eta=1e-8, zeta=0.0), 6), 0.05),
    "some stiff": (*started(Compressible2D(points=16), 12), 0.05),
    "all stiff": (*started(Compressible2D(points=16, eta=0.3, zeta=0.1, M=1.0), 6), 0.05),
    "water": (*dam_breaks(), 0.3),
}
"""Balance, start, interval: trajectories that need different numbers of steps and of stages."""


class NothingOnTheHost(TorchDispatchMode):
    """Refuses what a recording on a GPU cannot hold: reading a value, and shapes or tensors that come from the host."""

    refused = ("_local_scalar_dense", "nonzero", "lift_fresh", "_to_copy", "index", "masked_select", "unique")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__.split(".")[0] not in self.refused, f"{func} waits for the host"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounds_take_the_steps_of_a_loop(problem: str) -> None:
    balance, u, interval = PROBLEMS[problem]
    assert torch.equal(in_rounds(balance, u, interval, [4, 2, 1]), cover(balance, u, interval))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_step_that_is_recorded_asks_nothing_of_the_host(problem: str) -> None:
    balance, u, interval = PROBLEMS[problem]
    remaining = torch.full((len(u),), interval, dtype=torch.float64)
    stages = int(balance.stages(u, remaining / muscl._next_step(balance, u, remaining)[0]).max())
    step = muscl._ordinary_step(balance, stages)
    with NothingOnTheHost():
        moved, left, stuck = step(u, remaining, torch.zeros(len(u), dtype=torch.bool))
    assert not stuck.all() and torch.equal(left < remaining, ~stuck)
    assert torch.equal((moved != u).flatten(1).any(1), ~stuck)


class Hasty(Gas):
    """Steps twice as long as allowed, which some states do not bear."""

    def longest(self, u: torch.Tensor) -> torch.Tensor:
        return 2 * super().longest(u)


def test_a_step_that_would_empty_a_cell_is_taken_by_the_host() -> None:
    """Gas torn apart to the verge of vacuum, whose first step is one of first order, between gases at rest."""
    x = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    torn = torch.stack((1 + 0.9 * (8 * torch.pi * x).sin().sign(), torch.full_like(x, 1e-6), 3 * (x * 6.28).sin()))
    torn[1, ::7] = 10.0
    still = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)[:, None].expand(3, 64)
    u, gas = conserved(torch.stack((still, torn, still))), Hasty("gas", (1 / 64,), "periodic", 0.0, 0.0)
    assert gas.attempt(u, gas.longest(u), 0)[1].tolist() == [True, False, True]
    reached = in_rounds(gas, u, 0.01, [4])
    assert torch.equal(reached, cover(gas, u, 0.01)) and not torch.equal(reached[1], u[1])


def test_too_few_stages_leave_a_row_where_it_is() -> None:
    gas, u = started(Compressible2D(points=16, eta=0.3, zeta=0.1), 4)
    dt = gas.longest(u)
    stages = gas.stages(u, dt)
    for given in (0, int(stages.min()) - 2, int(stages.max())):
        assert torch.equal(gas.attempt(u, dt, given)[1], stages <= given)


def test_an_interval_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muscl, "_MOST_STEPS", 10)
    gas, u = started(Compressible1D(points=32), 4)
    for way in (cover, lambda *given: in_rounds(*given, [4])):
        with pytest.raises(UserError, match="10 steps did not cover a time of 1"):
            way(gas, u, 1.0)


def test_more_stages_than_are_taken_are_refused() -> None:
    gas = Gas("gas", (1e-3,), "periodic", 10.0, 10.0)
    u = conserved(torch.tensor([1e-3, 1e-4, 0.0], dtype=torch.float64)[None, :, None].expand(1, 3, 16))
    for way in (cover, lambda *given: in_rounds(*given, [4])):
        with pytest.raises(UserError, match="stages a step; give a smaller eta"):
            way(gas, u, 1.0)


def test_blocks_hold_every_waiting_row_once() -> None:
    steps = torch.tensor([5, 0, 9, 7, 3, 0, 1, 2])
    stages = torch.tensor([0, 3, 0, 6, 7, 0, 0, 0])
    found = [(block.tolist(), size, most) for block, size, most in blocks(steps, stages, [2, 1])]
    assert found == [([2, 0], 2, 0), ([7, 6], 2, 0), ([3, 4], 2, 7)]
    sizes = [size for _, size, _ in blocks(torch.ones(300).long(), torch.zeros(300).long(), [64, 32, 16])]
    assert sizes == [64, 64, 64, 64, 32, 16]  # 44 rows are left for the last two


@pytest.mark.parametrize("stages", range(1, 402, 2))
def test_a_block_is_given_enough_stages_and_not_half_as_many_again(stages: int) -> None:
    given = muscl._enough(stages)
    assert given % 2 == 1 and max(3, stages) <= given <= max(3, 1.5 * stages)


@GPU
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_gpu_arrives_where_a_cpu_does(problem: str) -> None:
    """To rounding, which steepening waves amplify: a hundred steps, by less than a factor 10⁴ in all."""
    balance, u, interval = PROBLEMS[problem]
    there, here = cover(balance, u.cuda(), interval).cpu(), cover(balance, u, interval)
    assert (there - here).abs().max() < 1e4 * 2**-52 * here.abs().max()


@GPU
@pytest.mark.parametrize("problem", PROBLEMS)
def test_on_a_gpu_a_trajectory_does_not_depend_on_its_batch(problem: str) -> None:
    balance, u, interval = PROBLEMS[problem]
    together = cover(balance, u.cuda(), interval)
    assert torch.equal(together[1:3], cover(balance, u[1:3].cuda(), interval))


def test_balances_that_are_equal_share_their_recordings() -> None:
    gas: Balance = Compressible1D().gas((128,))
    assert gas == Compressible1D().gas((128,)) and hash(gas) == hash(Compressible1D().gas((128,)))
    assert gas != Compressible1D(eta=0.1).gas((128,))
