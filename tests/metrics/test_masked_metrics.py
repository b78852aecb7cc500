"""Cells outside the domain do not count, whatever they hold."""

import math

import pytest
import torch

from ups.fields import Boundary, Channel, Grid, Invariant, TaskSpec
from ups.metrics import MetricContext, correlation, metrics, nrmse, pooled_nrmse, power_spectrum, spectral_error, vrmse

GRID = Grid.cell_centred((8, 8))
SPEC = TaskSpec(
    "flow", 2, (Channel("u"), Channel("v")), Boundary.all("periodic", 2), dt=0.1, invariants=(Invariant("v"),)
)
MASK = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)) < 0.7
TIMES = torch.tensor([0.1, 0.2, 0.3]).expand(3, -1)


def fields(seed):
    return torch.randn(3, 3, 8, 8, 2, generator=torch.Generator().manual_seed(seed))


def outside(field, value):
    """The field with a value in every cell that is no part of the domain."""
    return torch.where(MASK[:, None, ..., None], field, value)


@pytest.mark.parametrize("name", [name for name in metrics() if name != "balance"])  # which no masked task has
def test_what_excluded_cells_hold_changes_no_digit(name):
    context = MetricContext(SPEC, TIMES, GRID, MASK)
    clean, other = (metrics()[name](outside(fields(0), a), outside(fields(1), b), context) for a, b in ((0, 0), (9, 7)))
    broken = metrics()[name](outside(fields(0), math.nan), outside(fields(1), math.inf), context)
    for same in (other, broken):
        torch.testing.assert_close(clean, same, atol=0, rtol=0, equal_nan=True)
    # 8 points have no wave of 13 or more; all else differs from the same cells without a mask
    assert clean.isnan().all() if name == "spectral_high" else clean.isfinite().all()
    if name not in ("spectral_high", "correlation_time"):
        assert not torch.equal(clean, metrics()[name](fields(0), fields(1), MetricContext(SPEC, TIMES, GRID)))


def test_means_are_over_the_cells_that_count():
    prediction, truth = fields(0).double(), fields(1).double()
    inside = MASK[1]
    p, y = prediction[1, 2, ..., 0][inside], truth[1, 2, ..., 0][inside]
    assert float(nrmse(prediction, truth, MASK)[1, 2, 0]) == pytest.approx(float((p - y).norm() / y.norm()))
    assert float(correlation(prediction, truth, MASK)[1, 2, 0]) == pytest.approx(
        float(torch.corrcoef(torch.stack([p, y]))[0, 1])
    )
    spread = truth[1, :, inside][..., 0].var(correction=0).sqrt()
    assert float(vrmse(prediction, truth, MASK)[1, 2, 0]) == pytest.approx(
        float((p - y).square().mean().sqrt() / spread)
    )


def test_a_mask_that_leaves_nothing_out_is_none():
    whole = torch.ones_like(MASK)
    for metric in (nrmse, vrmse, pooled_nrmse, correlation):
        torch.testing.assert_close(metric(fields(0), fields(1), whole), metric(fields(0), fields(1)))


def test_masked_spectra_keep_the_sum_of_squares():
    shares = spectral_error(fields(0), fields(1), MASK)[..., :2].square().sum(-1)
    torch.testing.assert_close(shares, nrmse(fields(0), fields(1), MASK).square())
    wave = torch.cos(2 * math.pi * GRID.positions[0]).expand(8, 8).T.expand(3, 1, 8, 8)[..., None]
    assert torch.equal(power_spectrum(outside(wave, 5.0), MASK)[1], power_spectrum(wave, MASK)[1])
