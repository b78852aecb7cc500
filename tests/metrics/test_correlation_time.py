import math

import pytest
import torch

from ups.metrics import correlation, correlation_time

POINTS = 32
ANGLE = 2 * math.pi * torch.arange(POINTS, dtype=torch.float64) / POINTS
TIMES = torch.tensor([[0.0, 0.5, 1.0, 1.5]])


def turning(phases):
    """cos(x − φ) at each time: its correlation with cos x is cos φ."""
    return torch.stack([torch.cos(ANGLE - phase) for phase in phases]).reshape(1, len(phases), POINTS, 1)


def test_a_wave_out_of_phase_by_hand():
    phases = [0.0, 0.3, math.pi / 3, math.pi]
    value = correlation(turning(phases), turning([0.0] * 4)).flatten()
    assert value.tolist() == pytest.approx([math.cos(phase) for phase in phases], abs=1e-12)


def test_correlation_ignores_scale_and_offset():
    truth, prediction = turning([0.0] * 4), turning([0.1, 0.2, 0.3, 0.4])
    torch.testing.assert_close(correlation(3 * prediction + 7, truth), correlation(prediction, truth))


def test_the_time_is_the_first_below_the_threshold_even_if_the_pattern_returns():
    assert correlation_time(turning([0.0, 0.3, 1.0, 0.0]), turning([0.0] * 4), TIMES).item() == 1.0


def test_a_prediction_that_never_falls_gets_the_last_time():
    assert correlation_time(turning([0.0] * 4), turning([0.0] * 4), TIMES).item() == 1.5


def test_a_constant_prediction_follows_nothing_and_a_constant_truth_decides_nothing():
    constant = torch.full((1, 4, POINTS, 1), 0.1, dtype=torch.float64)
    assert correlation(constant, turning([0.0] * 4)).flatten().tolist() == [0] * 4
    assert correlation_time(constant, turning([0.0] * 4), TIMES).item() == 0
    assert correlation(turning([0.0] * 4), constant).isnan().all()
    assert correlation_time(turning([0.0] * 4), constant, TIMES).item() == 1.5


def test_a_nan_anywhere_gives_no_time():
    prediction = turning([0.0, 0.0, 0.0, 0.0])
    prediction[0, 3, 5] = math.nan
    assert correlation(prediction, turning([0.0] * 4)).isnan().flatten().tolist() == [False, False, False, True]
    assert correlation_time(prediction, turning([0.0] * 4), TIMES).isnan().all()
