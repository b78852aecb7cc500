import math

import pytest
import torch

from ups.metrics import bootstrap_interval


def test_the_interval_of_coin_flips_by_hand():
    # N flips of a fair coin: the mean of a resample is binomial with σ = 0.5/√N; 95 % is ±1.96 σ. The ends are
    # quantiles of R draws, known to √(0.025·0.975/R) / (density φ(1.96)/σ = 0.0584/σ), and lie on a lattice of 1/N.
    count, resamples = 400, 4000
    values = torch.arange(count) % 2.0
    low, high = bootstrap_interval(values, seed=0, resamples=resamples)
    sigma = 0.5 / math.sqrt(count)
    sampling = math.sqrt(0.025 * 0.975 / resamples) / 0.0584 * sigma
    tolerance = 4 * sampling + 1 / count
    assert low.item() == pytest.approx(0.5 - 1.96 * sigma, abs=tolerance)
    assert high.item() == pytest.approx(0.5 + 1.96 * sigma, abs=tolerance)


def test_the_interval_covers_the_true_mean_about_95_times_in_100():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(100, 500, generator=generator)  # 500 experiments of 100 samples with mean 0
    low, high = bootstrap_interval(values, seed=1)
    covered = ((low <= 0) & (high >= 0)).double().mean().item()
    # binomial deviation √(.95·.05/500) = 0.0097; the percentile bootstrap at N = 100 undercovers by about 0.005
    assert 0.945 - 4 * 0.0097 < covered < 0.945 + 4 * 0.0097


def test_the_seed_alone_decides():
    values = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    first, again, other = (bootstrap_interval(values, seed)[0] for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_same_value_everywhere_leaves_no_doubt():
    low, high = bootstrap_interval(torch.full((9, 2), 3.0), seed=0)
    torch.testing.assert_close(low, torch.full((2,), 3.0, dtype=torch.float64))
    torch.testing.assert_close(high, torch.full((2,), 3.0, dtype=torch.float64))


def test_one_nan_sample_spoils_the_interval():
    assert all(math.isnan(end) for end in bootstrap_interval(torch.tensor([1.0, math.nan, 2.0]), seed=0))
