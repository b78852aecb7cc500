"""Draws: standard, independent, and pure functions of what they are named by."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ups.data.draws import Draws


def noise(
    seed: int, step: int | torch.Tensor, ids: torch.Tensor, shape, stream: str = "noise", stage: str = "operator"
):
    return Draws(seed, stage, torch.as_tensor(step), ids).normal(stream, shape)


def test_noise_is_standard_normal():
    z = noise(0, 0, torch.arange(200), (50, 50)).double()
    n = z.numel()
    # Mean and the first even moments of a normal, each within four of its own standard errors.
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((z**power).mean()) - expected) < 4 * math.sqrt(variance / n)
    ranked = z.flatten().sort().values
    distribution = 0.5 * (1 + torch.erf(ranked / math.sqrt(2)))
    gap = (distribution - (torch.arange(n) + 0.5) / n).abs().max()
    assert float(gap) < 2.0 / math.sqrt(n)  # Kolmogorov: exceeded with probability 2 exp(-8) = 7e-4
    assert z.dtype == torch.float64 and bool(z.isfinite().all())


@pytest.mark.parametrize(
    "other",
    [
        lambda: noise(0, 1, torch.arange(16), (64, 64)),
        lambda: noise(1, 0, torch.arange(16), (64, 64)),
        lambda: noise(0, 0, torch.arange(16) + 16, (64, 64)),
        lambda: noise(0, 0, torch.arange(16) + 2**32, (64, 64)),
        lambda: noise(0, 2**32, torch.arange(16), (64, 64)),
        lambda: noise(2**32, 0, torch.arange(16), (64, 64)),
        lambda: noise(0, 0, torch.arange(16), (64, 64), stream="time"),
        lambda: noise(0, 0, torch.arange(16), (64, 64), stage="codec"),
    ],
    ids=[
        "next step",
        "other seed",
        "other ids",
        "high id bits",
        "high step bits",
        "high seed bits",
        "other stream",
        "other stage",
    ],
)
def test_noise_of_another_step_seed_sample_stream_or_stage_is_independent(other):
    here, there = noise(0, 0, torch.arange(16), (64, 64)), other()
    assert abs(float((here * there).mean())) < 4 / math.sqrt(here.numel())


def test_noise_within_a_field_has_no_correlation_at_any_short_lag():
    z = noise(3, 5, torch.arange(8), (4096,))
    for lag in (1, 2, 3, 7, 64, 2048):  # 2048: the two numbers of one Box-Muller pair
        a, b = z[:, :-lag], z[:, lag:]
        assert abs(float((a * b).mean())) < 4 / math.sqrt(a.numel())
        assert abs(float(((a**2 - 1) * (b**2 - 1)).mean())) < 4 * 2 / math.sqrt(a.numel())


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=9),
    st.lists(st.integers(1, 7), min_size=0, max_size=3),
    st.integers(1, 4),
    st.integers(0, 2**40),
)
def test_noise_is_the_same_for_any_split_of_the_batch(ids, shape, size, step):
    ids = torch.tensor(ids)
    whole = noise(9, step, ids, shape)
    assert whole.shape == (len(ids), *shape) and whole.dtype == torch.float32
    parts = [noise(9, step, piece, shape) for piece in ids.split(size)]
    assert torch.equal(torch.cat(parts), whole)


def test_a_large_field_of_noise_is_the_same_when_split_and_repeated():
    ids = torch.arange(7)
    whole = noise(1, 2, ids, (101, 103))
    assert torch.equal(whole, noise(1, 2, ids, (101, 103)))
    assert torch.equal(whole[3:4], noise(1, 2, ids[3:4], (101, 103)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_noise_on_a_gpu_is_the_noise_of_the_cpu():
    ids, step = torch.arange(5, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    noise(1, step, ids, (33, 17))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = noise(1, step, ids, (33, 17))
    for s in (0, 7, 2**33):
        step.fill_(s)
        graph.replay()
        # One unit in the last place: float64 functions differ in their last bit, which can flip one rounding.
        torch.testing.assert_close(captured.cpu(), noise(1, s, ids.cpu(), (33, 17)), rtol=2**-23, atol=1e-30)


def test_uniform_numbers_fill_the_open_interval_evenly():
    u = Draws(0, "operator", torch.tensor(3), torch.arange(500)).uniform("time", (200,)).double()
    ranked = u.flatten().sort().values
    assert float(ranked[0]) > 0 and float(ranked[-1]) < 1
    gap = (ranked - (torch.arange(len(ranked)) + 0.5) / len(ranked)).abs().max()
    assert float(gap) < 2.0 / math.sqrt(len(ranked))
