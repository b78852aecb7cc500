import base64
import math
from dataclasses import replace

import numpy as np
import pytest
from demo_report import advection_page, darcy_page, vortex_page

from ups.report.animation import ABOVE, BELOW, BROKEN, STEPS, pack, player_data


def unpacked(text, low, high):
    integers = np.frombuffer(base64.b64decode(text), "<u2").astype(float)
    outside = [integers == BROKEN, integers == BELOW, integers == ABOVE]
    return np.select(outside, [math.nan, -math.inf, math.inf], low + (integers - 1) / STEPS * (high - low))


def test_a_packed_field_is_within_half_a_step():
    field = np.random.default_rng(0).uniform(-3, 7, (5, 8))
    step = 10 / STEPS
    assert np.abs(unpacked(pack(field, -3, 7), -3, 7) - field.ravel()).max() <= step / 2 * (1 + 1e-9)


def test_what_is_not_finite_or_outside_is_marked_so_that_its_error_cannot_look_small():
    values = unpacked(pack(np.array([math.nan, math.inf, -9.0, 9.0, 0.0, 1.0]), 0, 1), 0, 1)
    assert np.isnan(values[:2]).all()
    assert values[2:].tolist() == [-math.inf, math.inf, 0, 1]


def test_errors_seen_in_the_player_are_the_real_ones():
    task = advection_page(count=2)
    data = player_data(task, budget=10**6)
    for sample, sequence in zip(task.samples, data["sequences"], strict=True):
        low, high = sequence["ranges"][0]["packing"]
        ups, truth = (unpacked(sequence["fields"][name][0], low, high) for name in ("operator", "truth"))
        real = (sample.predictions["operator"] - sample.truth).ravel()
        assert np.abs((ups - truth) - real).max() <= (high - low) / STEPS * (1 + 1e-9)


def test_the_numbers_beside_the_models_are_the_nrmse_of_the_frame():
    task = advection_page(count=1)
    sample = task.samples[0]
    sequence = player_data(task, budget=10**6)["sequences"][0]
    error, truth = sample.predictions["fno"][7] - sample.truth[7], sample.truth[7]
    assert sequence["nrmse"]["fno"][7][0] == pytest.approx(math.sqrt((error**2).mean() / (truth**2).mean()), rel=1e-12)


def test_the_samples_of_a_steady_task_are_the_frames():
    data = player_data(darcy_page(count=3), budget=10**6)
    (sequence,) = data["sequences"]
    assert sequence["frames"] == ["test 0", "test 1", "test 2"]
    assert len(base64.b64decode(sequence["fields"]["truth"][0])) == 2 * 3 * 64 * 64
    assert len(base64.b64decode(data["statics"][0]["frames"])) == 2 * 3 * 64 * 64
    assert next(m["display"] for m in data["predictors"] if m["name"] == "persistence") == "training mean"


@pytest.mark.parametrize("budget", [50_000, 300_000, 2_000_000])
def test_the_player_keeps_to_its_budget_and_keeps_the_last_frame(budget):
    task = vortex_page(count=2)
    data = player_data(task, budget)
    size = sum(len(base64.b64decode(f)) for s in data["sequences"] for fields in s["fields"].values() for f in fields)
    two_frames = 2 * 2 * 48 * 48 * 4 * 2  # the least that is sent: two frames, four fields, two channels
    assert size <= max(budget, two_frames)
    assert data["sequences"][0]["frames"][-1] == "t = 1"


def test_a_large_field_is_thinned_to_what_a_screen_shows():
    x = np.linspace(0, 1, 200)
    task = darcy_page(count=1)
    truth = np.add.outer(x, x)[None, ..., None]
    sample = replace(task.samples[0], truth=truth, predictions={"operator": truth}, static={})
    data = player_data(replace(task, axes=(x, x), samples=[sample]), budget=10**7)
    assert [len(axis) for axis in data["axes"]] == [50, 50]
    low, high = data["sequences"][0]["ranges"][0]["packing"]
    thin = unpacked(data["sequences"][0]["fields"]["truth"][0], low, high).reshape(50, 50)
    assert np.abs(thin - np.add.outer(data["axes"][0], data["axes"][1])).max() <= (high - low) / STEPS
