"""Every architecture takes static fields, forcings and masks as channels beside the state."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ups.data.prepare.statistics import Scale, Statistics
from ups.errors import UserError
from ups.fields import Boundary, Channel, Grid, Invariant, TaskSpec
from ups.models.given import given_channels
from ups.models.network import refuse_conditions
from ups.models.saved import ModelSpec, TrainedTask

FLOW = TaskSpec(
    "flow", 2, (Channel("u"), Channel("rho", "log")), Boundary.all("periodic", 2), static=("c",), forcings=("f", "g"),
    masked=True, dt=0.1, invariants=(Invariant("u"), Invariant("rho")),
)  # fmt: skip
GRID = Grid.cell_centred((16, 16))
UNIT = Scale(0.0, 1.0, 1.0, (0.1,), (-1.0, 1.0))
SCALES = Statistics("flow", 1, 0.1, (1,), {"u": UNIT, "rho": UNIT}, {"c": UNIT, "f": UNIT, "g": UNIT})
LEARNED = TrainedTask(FLOW, GRID, SCALES, {}, (0.1,))
MASK = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0)) < 0.8
SMALL = {
    "spectral": {"width": 8, "depth": 1, "modes": 4},
    "pdet_stack": {"width": 8, "depth": 1, "heads": 2},
    "pdet_unet": {"width": 8, "depth": 1, "heads": 2},
    "fno": {"width": 8, "modes": 4, "depth": 1},
    "unet": {"width": 4},
}


def fields(*shape: int, seed: int = 0) -> Tensor:
    drawn = 0.3 * torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed))
    mask = MASK.reshape(3, *(1,) * (drawn.dim() - 3), 16, 16)
    return drawn.where(mask, 0.0)


def test_given_channels_are_named_in_their_order() -> None:
    assert FLOW.given == ("static_c", "forcing_f", "forcing_f_end", "forcing_g", "forcing_g_end", "mask")
    timed, constant, static = fields(4, 16, 16), fields(16, 16, seed=1), fields(16, 16, seed=2)[..., None]
    given = given_channels(static, [timed, constant], MASK, 2)
    assert torch.equal(given[..., :1], static)
    assert torch.equal(given[..., 1:3], timed[:, 2:4].movedim(1, -1))
    assert torch.equal(given[..., 3], given[..., 4]) and torch.equal(given[..., 5] > 0, MASK)
    assert given_channels(static, [], None) is static  # a task without them is what it was


@pytest.mark.parametrize("architecture", SMALL)
def test_every_architecture_uses_them_and_leaves_what_is_outside_zero(architecture: str) -> None:
    model = ModelSpec(architecture, SMALL[architecture], (LEARNED,)).build(0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    history = fields(1, 2, 16, 16, seed=3).movedim(2, -1)
    timed = fields(2, 16, 16, seed=4).requires_grad_()
    given = given_channels(fields(16, 16, seed=5)[..., None], [timed, fields(16, 16, seed=6)], MASK)
    after = model("flow", history, given, {}, torch.full((3,), 0.1), GRID)
    assert float(after.detach().abs().amax(-1)[~MASK].max()) == 0 and not torch.equal(after, history[:, 0])
    (gradient,) = torch.autograd.grad(after.square().sum(), timed)
    assert (gradient[:, 0][MASK] != 0).any() and (gradient[:, 1][MASK] != 0).any()
    if architecture == "spectral":  # which keeps the means, of the cells inside, of plain fields and of logarithms
        before, now = (x.detach().double() for x in (history[:, 0], after))
        count = MASK.flatten(1).sum(1)
        for change in (lambda x: x[..., 0], lambda x: x[..., 1].exp().where(MASK, 0.0)):
            kept, made = (change(x).flatten(1).sum(1) / count for x in (before, now))
            torch.testing.assert_close(made, kept, atol=1e-5, rtol=1e-5)


def test_what_takes_no_forcings_or_masks_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"compare.mine takes no forcings, .*'flow' has f, g.*tasks.flow.drop=\[f, g\]"):
        refuse_conditions("compare.mine", (), [FLOW])
    with pytest.raises(UserError, match=r"takes no mask.*drop=\[mask\]"):
        refuse_conditions("compare.mine", ("forcings",), [FLOW])
    refuse_conditions("compare.mine", (), [replace(FLOW, forcings=(), masked=False)])
