"""The order of training and its noise are functions of (seed, step) and of nothing else."""

import math
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ups.data.sampler import Sampler, _permutation, mix, mix_each
from ups.errors import UserError

sizes = st.integers(1, 40)
shares = st.floats(0.01, 100.0)
task_lists = st.lists(st.tuples(sizes, st.integers(1, 30), shares), min_size=1, max_size=5)


def sampler_of(tasks, seed=0, extra=3):
    named = tuple((f"task{i}", *task) for i, task in enumerate(tasks))
    return Sampler(named, seed=seed, batch_size=len(named) + extra)


def same(a, b):
    return (
        (a.task, a.frames) == (b.task, b.frames)
        and torch.equal(a.ids, b.ids)
        and torch.equal(a.strides, b.strides)
        and torch.equal(a.starts, b.starts)
        and torch.equal(a.slots, b.slots)
    )


def test_the_hash_is_fixed_for_all_time():
    # A changed hash silently reorders every resumed run: these values may never change.
    assert mix(0) == 0xE220A8397B1DCDAF  # splitmix64's first output for seed 0, a published value
    assert mix(1, 2, 3) == mix(1, 2, 3) != mix(3, 2, 1)
    assert mix(5) != mix(5, 0) != mix(0, 5)
    assert mix(-1) == mix(2**64 - 1)


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62), min_size=1, max_size=8))
def test_the_vectorised_hash_equals_the_scalar_one(seed, values):
    assert mix_each(mix(seed, 7), np.array(values)).tolist() == [mix(seed, 7, v) for v in values]


@given(task_lists, st.integers(0, 60))
def test_batch_size_is_split_exactly_and_no_task_is_left_out(tasks, extra):
    sampler = sampler_of(tasks, extra=extra)
    assert sum(sampler.counts) == sampler.batch_size
    assert min(sampler.counts) >= 1


def test_shares_are_kept_by_largest_remainder():
    tasks = (("a", 9, 9, 5.0), ("b", 9, 9, 3.0), ("c", 9, 9, 2.0))
    assert Sampler(tasks, 0, 10).counts == (5, 3, 2)
    assert Sampler(tasks, 0, 16).counts == (8, 5, 3)  # quotas 8.0, 4.8, 3.2
    assert Sampler((("a", 9, 9, 1e6), ("b", 9, 9, 1e-6)), 0, 8).counts == (7, 1)


@settings(max_examples=60)
@given(task_lists, st.integers(0, 2**63), st.integers(0, 20), st.integers(1, 3))
def test_every_trajectory_is_seen_exactly_once_an_epoch(tasks, seed, extra, epochs):
    sampler = sampler_of(tasks, seed, extra)
    for part, (task, count) in enumerate(zip(sampler.tasks, sampler.counts, strict=True)):
        steps = math.ceil(epochs * task.trajectories / count)
        walk = torch.cat([sampler.indices(step, 0)[part].ids for step in range(steps)]).tolist()
        for epoch in range(epochs):
            here = walk[epoch * task.trajectories : (epoch + 1) * task.trajectories]
            assert sorted(here) == list(range(task.trajectories))


@settings(max_examples=60)
@given(task_lists, st.integers(0, 2**63), st.integers(0, 10**9), st.integers(0, 6))
def test_windows_lie_inside_their_trajectories(tasks, seed, step, window):
    tasks = [(n, frames if frames > window else 1, share) for n, frames, share in tasks]
    sampler = sampler_of(tasks, seed)
    for task, part in zip(sampler.tasks, sampler.indices(step, window, ((1, 1.0), (2, 1.0), (4, 1.0))), strict=True):
        last = part.starts + (part.frames - 1) * part.strides
        assert part.frames == (1 if task.frames == 1 else window + 1)
        assert int(part.starts.min()) >= 0 and int(last.max()) < task.frames
        assert torch.equal(part.windows[:, -1], last)
        assert int(part.ids.min()) >= 0 and int(part.ids.max()) < task.trajectories


@settings(max_examples=60)
@given(task_lists, st.integers(0, 2**63), st.integers(0, 10**6), st.integers(1, 9))
def test_ranks_take_disjoint_parts_that_make_up_the_same_batch(tasks, seed, step, size):
    sampler = sampler_of(tasks, seed, extra=7)
    whole = sampler.indices(step, 0, ((1, 1.0), (2, 1.0)))
    slots = torch.cat([part.slots for part in whole])
    assert slots.tolist() == list(range(sampler.batch_size))
    for part in whole:
        pieces = [part.padded(rank, size) for rank in range(size)]
        real = [int(piece.weights.sum()) for piece in pieces]
        assert max(real) - min(real) <= 1
        for name in ("ids", "starts", "strides", "slots"):
            own = [getattr(piece, name)[:count] for piece, count in zip(pieces, real, strict=True)]
            assert torch.equal(torch.cat(own), getattr(part, name))


@settings(max_examples=40)
@given(task_lists, st.integers(0, 2**63), st.lists(st.integers(0, 500), min_size=2, max_size=6))
def test_a_step_does_not_depend_on_the_steps_before_it(tasks, seed, steps):
    sampler = sampler_of(tasks, seed)
    walked = {step: sampler.indices(step, 0) for step in steps}
    for step in reversed(steps):
        _permutation.cache_clear()
        restarted = sampler_of(tasks, seed).indices(step, 0)
        assert all(same(a, b) for a, b in zip(walked[step], restarted, strict=True))


def test_another_process_sees_the_same_batch():
    # Python salts str hashes per process; the order must not hang on them.
    expression = (
        "[(p.ids.tolist(), p.starts.tolist(), p.strides.tolist()) for p in "
        "Sampler((('advection', 100, 41, 1.0), ('darcy', 50, 1, 0.5)), 3, 6).indices(17, 4, ((1, .5), (2, .5)))]"
    )
    code = f"from ups.data.sampler import Sampler; print({expression})"
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == str(eval(expression))


def test_seeds_epochs_and_tasks_differ_in_order():
    n = 50
    first = Sampler((("a", n, 1, 1.0), ("b", n, 1, 1.0)), seed=0, batch_size=2 * n)
    orders = [first.indices(0, 0)[0], first.indices(0, 0)[1], first.indices(1, 0)[0]]
    orders.append(Sampler(first.tasks, seed=1, batch_size=2 * n).indices(0, 0)[0])
    assert len({tuple(part.ids.tolist()) for part in orders}) == 4


def test_adding_a_task_keeps_the_order_of_the_others():
    alone = Sampler((("a", 30, 1, 1.0),), seed=4, batch_size=5)
    joined = Sampler((("z", 9, 1, 1.0), ("a", 30, 1, 1.0)), seed=4, batch_size=10)
    assert torch.equal(alone.indices(11, 0)[0].ids, joined.indices(11, 0)[1].ids)


def test_start_frames_are_uniform():
    sampler = Sampler((("a", 1000, 20, 1.0),), seed=0, batch_size=1000)
    starts = torch.cat([sampler.indices(step, 4)[0].starts for step in range(20)])
    counts = torch.bincount(starts, minlength=16).double()
    expected = len(starts) / 16
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert len(counts) == 16
    assert abs(chi2 - 15) < 4 * math.sqrt(2 * 15)  # chi² with 15 degrees of freedom, 4 sigma


def test_strides_follow_their_weights_and_skip_what_does_not_fit():
    sampler = Sampler((("long", 10, 41, 1.0), ("short", 10, 7, 1.0), ("steady", 10, 1, 1.0)), seed=0, batch_size=12)
    steps, table = 1000, ((1, 1.0), (2, 2.0), (8, 1.0))
    drawn, mixed = [Counter() for _ in range(3)], 0
    for step in range(steps):
        for counter, part in zip(drawn, sampler.indices(step, 3, table), strict=True):
            counter.update(part.strides.tolist())
            mixed += len(set(part.strides.tolist())) > 1
    for stride, probability in ((1, 0.25), (2, 0.5), (8, 0.25)):
        assert abs(drawn[0][stride] - 4 * steps * probability) < 5  # evenly spread, not left to chance
    assert set(drawn[1]) == {1, 2} and set(drawn[2]) == {1}
    assert mixed > 1.9 * steps  # nearly every step of the two moving tasks has samples of several lead times


def test_another_table_of_strides_keeps_the_trajectories_and_a_single_stride_the_starts():
    sampler = Sampler((("a", 30, 41, 1.0),), seed=4, batch_size=9)
    tables = (((1, 1.0),), ((1, 7.0),), ((1, 1.0), (2, 1.0)))
    one, heavier, several = (sampler.indices(5, 1, table)[0] for table in tables)
    assert same(one, heavier)
    assert torch.equal(one.ids, several.ids)


def test_a_batch_without_a_sample_of_every_task_is_refused():
    with pytest.raises(UserError, match="batch_size is 1 for 2 tasks"):
        Sampler((("a", 5, 5, 1.0), ("b", 5, 5, 1.0)), seed=0, batch_size=1)


def test_a_window_longer_than_the_trajectory_is_refused():
    with pytest.raises(UserError, match="5 frames, too few for 5 steps"):
        Sampler((("a", 5, 5, 1.0),), seed=0, batch_size=1).indices(0, 5)
