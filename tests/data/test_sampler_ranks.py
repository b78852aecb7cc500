"""What each rank computes in a step: the same shapes everywhere, every sample once, and fillers that count nothing."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ups.data.draws import Draws
from ups.data.sampler import Sampler, check_ranks, sampling_shares
from ups.data.settings import SamplingConfig
from ups.errors import UserError
from ups.training.settings import TrainingConfig

tasks = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.floats(0.01, 100)), min_size=1, max_size=4)
ranks = st.integers(1, 12)
micro = st.none() | st.integers(1, 9)


@st.composite
def samplers(draw):
    named = tuple((f"task{i}", *task) for i, task in enumerate(draw(tasks)))
    return Sampler(named, seed=draw(st.integers(0, 2**63)), batch_size=len(named) + draw(st.integers(0, 25)))


def micro_batches(sampler, step, size, micro):
    """All that `size` ranks compute in a step: a list of micro-batches for each rank."""
    parts = sampler.indices(step, 0)
    return [[m for part in parts for m in part.padded(rank, size).micro_batches(micro)] for rank in range(size)]


def real(pieces):
    """(task, slot, id, start) of what counts, in the order of the global batch."""
    samples = (
        zip([m.task] * len(m), m.slots.tolist(), m.ids.tolist(), m.starts.tolist(), m.weights.tolist(), strict=True)
        for m in pieces
    )
    return sorted((sample[:4] for piece in samples for sample in piece if sample[4]), key=lambda sample: sample[1])


@settings(max_examples=80)
@given(samplers(), st.integers(0, 10**6), ranks, micro)
def test_at_each_micro_step_all_ranks_have_the_same_task_and_shape(sampler, step, size, micro):
    rows = micro_batches(sampler, step, size, micro)
    shapes = [[(m.task, m.frames, len(m)) for m in row] for row in rows]
    assert all(shape == shapes[0] for shape in shapes)
    assert {task for task, *_ in shapes[0]} == {task.name for task in sampler.tasks}
    assert max(length for *_, length in shapes[0]) <= (micro or math.inf)
    assert min(length for *_, length in shapes[0]) >= 1


@settings(max_examples=80)
@given(samplers(), st.integers(0, 10**6), ranks, micro)
def test_every_sample_counts_exactly_once_for_any_ranks_and_micro_batch(sampler, step, size, micro):
    whole = [(p.task, s, i, t) for p in sampler.indices(step, 0) for s, i, t in zip(*triple(p), strict=True)]
    rows = micro_batches(sampler, step, size, micro)
    assert real(m for row in rows for m in row) == whole
    assert float(sum(m.weights.sum() for row in rows for m in row)) == sampler.batch_size
    for task, count in zip(sampler.tasks, sampler.counts, strict=True):
        assert sum(float(m.weights.sum()) for row in rows for m in row if m.task == task.name) == count


def triple(part):
    return part.slots.tolist(), part.ids.tolist(), part.starts.tolist()


@settings(max_examples=40)
@given(samplers(), st.integers(0, 10**6), st.lists(st.tuples(ranks, micro), min_size=2, max_size=4))
def test_a_restart_with_other_ranks_or_micro_batch_sees_the_same_batch(sampler, step, layouts):
    restarted = Sampler(sampler.tasks, sampler.seed, sampler.batch_size)
    seen = [real(m for row in micro_batches(restarted, step, *layout) for m in row) for layout in layouts]
    assert all(batch == seen[0] for batch in seen)


@settings(max_examples=40)
@given(samplers(), st.integers(0, 10**6), ranks)
def test_a_filler_is_a_sample_of_the_same_task_and_has_weight_zero(sampler, step, size):
    for part in sampler.indices(step, 0):
        samples = set(zip(*triple(part), strict=True))
        for rank in range(size):
            padded, own = part.padded(rank, size), range(rank * len(part) // size, (rank + 1) * len(part) // size)
            assert padded.weights.dtype == torch.float32 and len(padded) == math.ceil(len(part) / size)
            assert padded.weights.tolist() == [1.0] * len(own) + [0.0] * (len(padded) - len(own))
            assert padded.ids[: len(own)].tolist() == part.ids[own.start : own.stop].tolist()
            assert set(zip(*triple(padded), strict=True)) <= samples
            if 0 < len(own) < len(padded):
                assert padded.slots[-1] == part.slots[own.stop - 1]


@settings(max_examples=20)
@given(samplers(), st.integers(0, 10**6), ranks, micro)
def test_the_noise_of_the_parts_is_the_noise_of_the_whole(sampler, step, size, micro):
    whole = Draws(3, "operator", torch.tensor(step), torch.arange(sampler.batch_size)).normal("noise", (5, 2))
    for row in micro_batches(sampler, step, size, micro):
        for m in row:
            own = Draws(3, "operator", torch.tensor(step), m.slots).normal("noise", (5, 2))
            assert torch.equal(own, whole[m.slots])


def test_more_ranks_than_samples_of_a_task_leave_fillers_only():
    part = Sampler((("a", 9, 1, 1.0),), seed=0, batch_size=2).indices(0, 0)[0]
    rows = [part.padded(rank, 5) for rank in range(5)]
    assert [row.weights.tolist() for row in rows] == [[0.0], [0.0], [1.0], [0.0], [1.0]]
    assert [row.slots.tolist() for row in rows] == [[0], [0], [0], [0], [1]]


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_that_does_not_exist_is_an_error(rank, size):
    part = Sampler((("a", 9, 1, 1.0),), seed=0, batch_size=2).indices(0, 0)[0]
    with pytest.raises(ValueError, match="does not exist"):
        part.padded(rank, size)


def test_a_batch_smaller_than_the_ranks_is_refused():
    check_ranks(4, 4)
    with pytest.raises(UserError, match="batch_size is 3 for 4 ranks"):
        check_ranks(3, 4)


TRAJECTORIES = {"small": 100, "large": 10_000}
COSTS = {"small": 64, "large": 256}


@pytest.mark.parametrize(
    ("sampling", "ratio"),
    [
        ({}, 0.125),
        ({"mode": "shares"}, 0.5),
        ({"mode": "balanced"}, 1.0),
        ({"mode": "proportional"}, 100.0),
        ({"mode": "temperature"}, 10.0),
        ({"mode": "temperature", "temperature": 1.0}, 100.0),
        ({"mode": "temperature", "temperature": 1e9}, 1.0),
    ],
)
def test_shares_follow_the_mode(sampling, ratio):
    shares = sampling_shares(SamplingConfig(**sampling), TRAJECTORIES, {"small": 2.0, "large": 1.0}, COSTS)
    assert shares["large"] / shares["small"] == pytest.approx(ratio)


@given(
    st.dictionaries(st.text("abc", min_size=1), st.integers(1, 10**6), min_size=1, max_size=5),
    st.floats(1.0, 50.0),
)
def test_a_higher_temperature_lies_between_proportional_and_balanced(trajectories, temperature):
    modes = ("proportional", "temperature", "balanced")
    unused = dict.fromkeys(trajectories, 1.0)
    spread = []
    for mode in modes:
        shares = sampling_shares(SamplingConfig(mode=mode, temperature=temperature), trajectories, unused, unused)
        assert list(shares) == list(trajectories)
        spread.append(max(shares.values()) / min(shares.values()))
    assert spread[0] * (1 + 1e-12) >= spread[1] >= spread[2] == 1.0


def test_the_modes_reach_the_batch():
    tasks = product(TRAJECTORIES.items(), [(5,)])
    unused = dict.fromkeys(TRAJECTORIES, 1.0)
    shares = sampling_shares(SamplingConfig(mode="temperature"), TRAJECTORIES, unused, unused)
    sampler = Sampler(tuple((name, n, *f, shares[name]) for (name, n), f in tasks), seed=0, batch_size=22)
    assert sampler.counts == (2, 20)


def test_by_default_tasks_have_their_shares_of_the_work_not_of_the_samples():
    equal = dict.fromkeys(COSTS, 1.0)
    shares = sampling_shares(TrainingConfig().sampling, TRAJECTORIES, equal, COSTS)
    sampler = Sampler(tuple((name, 100, 5, shares[name]) for name in COSTS), seed=0, batch_size=20)
    assert dict(zip(COSTS, sampler.counts, strict=True)) == {"small": 16, "large": 4}
