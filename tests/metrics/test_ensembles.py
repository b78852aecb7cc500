"""Scores of ensembles against closed forms, brute force and ensembles that are right by construction."""

from __future__ import annotations

import math

import pytest
import torch

from ups.metrics.ensembles import coverage, crps, energy_score, rank_histogram, spread_and_skill


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_crps_of_a_gaussian_is_the_closed_form() -> None:
    """N(μ, σ²) at y: σ ( w (2Φ(w) − 1) + 2φ(w) − 1/√π ), w = (y − μ)/σ (Gneiting et al. 2005)."""
    mean, sigma, y = 0.3, 0.7, 1.1
    members = mean + sigma * drawn(400_000, 1, 1, 1, 1)
    w = torch.tensor((y - mean) / sigma, dtype=torch.float64)
    density = torch.exp(-(w**2) / 2) / math.sqrt(2 * math.pi)
    exact = sigma * (w * torch.erf(w / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    assert float(crps(members, torch.full((1, 1, 1, 1), y))) * y == pytest.approx(float(exact), rel=5e-3)


def test_crps_is_that_of_its_definition_over_all_pairs() -> None:
    members, truth = drawn(5, 2, 3, 4, 2), drawn(2, 3, 4, 2, seed=1)
    pairs = sum((a - b).abs() for i, a in enumerate(members) for j, b in enumerate(members) if i != j)
    plain = (members - truth).abs().mean(0) - pairs / (2 * 5 * 4)
    expected = plain.mean(2) / truth.square().mean(2).sqrt()
    torch.testing.assert_close(crps(members, truth), expected)


def test_crps_is_fair_to_small_ensembles() -> None:
    """Its mean over many truths is that of an infinite ensemble, 1/√π for a standard normal, with 2 members too."""
    truth = drawn(1, 1, 200_000, 1)
    for count in (2, 3, 16):
        size = float(truth.square().mean().sqrt())
        found = float(crps(drawn(count, 1, 1, 200_000, 1, seed=count), truth)) * size
        assert found == pytest.approx(1 / math.sqrt(math.pi), rel=1e-2)


def test_of_one_member_crps_is_the_mean_error_and_the_energy_score_nrmse() -> None:
    member, truth = drawn(1, 2, 3, 8, 1), drawn(2, 3, 8, 1, seed=1)
    size = truth.square().mean(2).sqrt()
    torch.testing.assert_close(crps(member, truth), (member[0] - truth).abs().mean(2) / size)
    torch.testing.assert_close(energy_score(member, truth), (member[0] - truth).square().mean(2).sqrt() / size)


def test_the_energy_score_is_that_of_its_definition_over_all_pairs() -> None:
    members, truth = drawn(4, 2, 1, 6, 1), drawn(2, 1, 6, 1, seed=1)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(-2).sqrt()

    pairs = sum(norm(a - b) for i, a in enumerate(members) for j, b in enumerate(members) if i != j)
    expected = (norm(members - truth).mean(0) - pairs / (2 * 4 * 3)) / norm(truth)
    torch.testing.assert_close(energy_score(members, truth), expected)


def test_the_energy_score_of_one_point_is_its_crps() -> None:
    members, truth = drawn(6, 3, 2, 1, 1), drawn(3, 2, 1, 1, seed=1)
    torch.testing.assert_close(energy_score(members, truth), crps(members, truth))


@pytest.mark.parametrize("count", [2, 16])
def test_spread_is_skill_where_truth_is_one_more_draw(count: int) -> None:
    members, truth = drawn(count, 1, 1, 400_000, 1), drawn(1, 1, 400_000, 1, seed=1)
    spread, skill = spread_and_skill(members, truth)
    assert float((spread / skill).sqrt()) == pytest.approx(1, abs=0.01)
    spread, skill = spread_and_skill(0.5 * members, truth)
    assert float((spread / skill).sqrt()) < 0.65


@pytest.mark.parametrize(("count", "level", "expected"), [(19, 0.9, 0.9), (16, 0.5, 0.5), (16, 0.9, 15 / 17)])
def test_intervals_cover_what_they_say_where_truth_is_one_more_draw(count: int, level: float, expected: float) -> None:
    members, truth = drawn(count, 1, 1, 200_000, 1), drawn(1, 1, 200_000, 1, seed=1)
    assert float(coverage(members, truth, level)) == pytest.approx(expected, abs=5e-3)


def test_ranks_are_uniform_where_truth_is_one_more_draw_and_at_the_ends_where_members_agree_too_much() -> None:
    members, truth = drawn(4, 1, 1, 100_000, 1), drawn(1, 1, 100_000, 1, seed=1)
    ranks = rank_histogram(members, truth) / 100_000
    assert torch.allclose(ranks, torch.full((5,), 0.2, dtype=torch.float64), atol=6e-3)
    narrow = rank_histogram(0.1 * members, truth) / 100_000
    assert float(narrow[0] + narrow[-1]) > 0.8


def test_masked_cells_count_for_nothing() -> None:
    members, truth = drawn(5, 2, 1, 6, 1), drawn(2, 1, 6, 1, seed=1)
    mask = torch.tensor([[True, True, True, False, False, False]]).expand(2, -1)
    part, whole = (members[..., :3, :], truth[..., :3, :]), (members, truth)
    for score in (crps, energy_score):
        torch.testing.assert_close(score(*whole, mask), score(*part))
    torch.testing.assert_close(spread_and_skill(*whole, mask), spread_and_skill(*part))
    torch.testing.assert_close(coverage(*whole, 0.5, mask), coverage(*part, 0.5))
    assert torch.equal(rank_histogram(*whole, mask), rank_histogram(*part))


def test_members_that_are_no_numbers_make_no_good_score() -> None:
    members, truth = drawn(3, 1, 1, 4, 1), drawn(1, 1, 4, 1, seed=1)
    members[0, 0, 0, 0, 0] = math.nan
    assert crps(members, truth).isnan().all() and energy_score(members, truth).isnan().all()
