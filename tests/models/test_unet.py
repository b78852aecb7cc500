"""The U-Net baseline in one to three dimensions, with and without walls."""

from __future__ import annotations

from pathlib import Path

import pytest
import small
import torch

from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, Side, TaskSpec
from ups.models.baselines.unet import UNet, padded
from ups.models.saved import ModelSpec
from ups.track.jsonl import read_events

TANK = Boundary(((Side("periodic"), Side("periodic")), (Side("value"), Side("open"))))
WAVES = TaskSpec("waves", 1, (Channel("u"),), Boundary.all("periodic", 1), 1 / 16, parameters=("beta",), dt=0.1)
ROD = TaskSpec("rod", 1, (Channel("u"),), Boundary.all("flux", 1), 1 / 16, parameters=("beta",), dt=0.1, history=2)
FLOW = TaskSpec("flow", 2, (Channel("u"),), Boundary.all("value", 2), 1 / 8, static=("a",), steady=True)
BASIN = TaskSpec("basin", 2, (Channel("u"),), TANK, 1 / 8, parameters=("beta",), dt=0.1)

DUCT = TaskSpec("duct", 3, (Channel("u"),), Boundary((*TANK.sides, *TANK.sides[:1])), parameters=("beta",), dt=0.1)


def given(task: TaskSpec, n: int) -> tuple:
    torch.manual_seed(1)
    grid = Grid.cell_centred((n,) * task.dimension)
    conditions = {"parameter_beta": torch.rand(2), "lead": torch.full((2,), 0.1)}
    static = torch.randn(2, *grid.shape, len(task.static))
    return task.name, torch.randn(2, task.history, *grid.shape, 1), static, conditions, grid


@pytest.mark.parametrize("task", [WAVES, ROD, FLOW, BASIN, DUCT], ids=lambda t: t.name)
def test_an_untrained_unet_changes_nothing_and_learns_with_every_parameter(task: TaskSpec) -> None:
    torch.manual_seed(0)
    points = 16 if task.dimension == 3 else 32
    network = UNet(task, (points,) * task.dimension, width=8)
    assert len(network.down) == 4
    assert not network(*given(task, points)).any()
    torch.nn.init.normal_(network.last.weight)
    network(*given(task, points)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_beyond_the_domain_each_side_is_continued_its_own_way() -> None:
    x = torch.arange(1.0, 7.0).view(1, 1, 2, 3)
    expected = torch.tensor([[0, 4, 5, 6, 6], [0, 1, 2, 3, 3], [0, 4, 5, 6, 6], [0, 1, 2, 3, 3]], dtype=torch.float)
    assert torch.equal(padded(x, TANK)[0, 0], expected)


def test_a_periodic_unet_commutes_with_shifts_by_its_coarsest_cell() -> None:
    """But for its coordinates, which are blinded here."""
    torch.manual_seed(0)
    network = UNet(WAVES, (32,), width=8).double()
    torch.nn.init.normal_(network.last.weight)
    network.inputs.coordinates = lambda grid, like: like.new_zeros(1, 32)
    name, history, static, conditions, grid = given(WAVES, 32)
    rest = static.double(), {k: v.double() for k, v in conditions.items()}, grid
    still, moved = (network(name, h, *rest) for h in (history.double(), history.double().roll(8, 2)))
    assert torch.allclose(moved, still.roll(8, 1), rtol=0, atol=1e-12)
    assert not torch.allclose(moved, still, atol=1e-3)


@pytest.mark.parametrize(("points", "levels"), [(32, 4), (12, 3), (10, 2), (9, 1)])
def test_a_grid_that_cannot_be_halved_three_times_has_fewer_levels(points: int, levels: int) -> None:
    network = UNet(WAVES, (points,), width=8)
    assert len(network.down) == levels
    assert network(*given(WAVES, points)).shape == (2, points, 1)


def test_another_grid_that_cannot_be_halved_as_often_is_refused() -> None:
    network = UNet(WAVES, (32,), width=8)
    assert network(*given(WAVES, 64)).shape == (2, 64, 1)
    with pytest.raises(UserError, match="20 points along x; give it a multiple of 8"):
        network(*given(WAVES, 20))


def test_training_lowers_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, stores = small.prepared(tmp_path / "data")
    alone = ModelSpec("unet", {"width": 8}, spec.tasks[:1]), {"advection": stores["advection"]}
    monkeypatch.setattr(small, "prepared", lambda folder: alone)
    settings = {"steps": 60, "learning_rate": 1e-2, "rollout": [(0.0, 1)], "noise": 0.0, "precision": "float32"}
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as rt:
        trainer = small.small_trainer(rt, tmp_path / "data", tmp_path / "run", **settings)
        first = trainer.stepper.gradients(trainer.micro_batches(0), rt)
        trainer.fit()
    last = [e for e in read_events(tmp_path / "run" / "events.jsonl") if e["kind"] == "step"][-1]["parts"]
    assert last["advection"] < 0.6 * float(first["advection"])
