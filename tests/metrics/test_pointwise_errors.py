import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import unchecked

from ups.metrics import boundary_rmse, max_error, nrmse, pooled_nrmse, relative_l2, vrmse

ROUND_OFF = 1e-12  # float64 means of at most a few hundred numbers of order one


def field(*values):
    """One sample, one time, one channel on a line."""
    return torch.tensor(values, dtype=torch.float64).reshape(1, 1, -1, 1)


def random_fields(seed, shape=(3, 4, 8, 8, 2)):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(shape, generator=generator, dtype=torch.float64)
    return truth + 0.1 * torch.randn(shape, generator=generator, dtype=torch.float64), truth


def test_nrmse_by_hand():
    # e = (0, 4, 3, 0): ⟨e²⟩ = 25/4; y = (3, 4, 0, 0): ⟨y²⟩ = 25/4
    assert nrmse(field(3, 8, 3, 0), field(3, 4, 0, 0)).item() == pytest.approx(1.0, abs=ROUND_OFF)
    # e = (1, 1), y = (2, 2)
    assert nrmse(field(3, 3), field(2, 2)).item() == pytest.approx(0.5, abs=ROUND_OFF)


def test_nrmse_keeps_samples_times_and_channels_apart():
    truth = torch.ones(2, 3, 5, 2)
    prediction = truth.clone()
    prediction[1, 2, :, 0] += 0.25
    expected = torch.zeros(2, 3, 2, dtype=torch.float64)
    expected[1, 2, 0] = 0.25
    torch.testing.assert_close(nrmse(prediction, truth), expected, atol=ROUND_OFF, rtol=0)


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 100))
def test_relative_errors_do_not_depend_on_the_unit(scale, seed):
    prediction, truth = random_fields(seed)
    for metric in (nrmse, pooled_nrmse, vrmse, relative_l2):
        torch.testing.assert_close(
            metric(scale * prediction, scale * truth), metric(prediction, truth), rtol=1e-10, atol=0
        )
    torch.testing.assert_close(
        max_error(scale * prediction, scale * truth), scale * max_error(prediction, truth), rtol=1e-10, atol=0
    )


def test_a_large_mean_flatters_nrmse_and_not_vrmse():
    prediction, truth = random_fields(0)
    assert (nrmse(prediction + 100, truth + 100) < 0.1 * nrmse(prediction, truth)).all()
    torch.testing.assert_close(vrmse(prediction + 100, truth + 100), vrmse(prediction, truth), rtol=1e-10, atol=0)


def test_vrmse_by_hand_uses_the_variance_over_space_and_time():
    # two frames (0, 0) and (2, 2): mean 1, variance 1 though each frame has none; errors 0 and 0.5
    truth = torch.tensor([[0.0, 0.0], [2.0, 2.0]]).reshape(1, 2, 2, 1)
    prediction = truth + torch.tensor([0.0, 0.5]).reshape(1, 2, 1, 1)
    assert vrmse(prediction, truth).flatten().tolist() == pytest.approx([0.0, 0.5], abs=ROUND_OFF)


def test_pooled_nrmse_by_hand_is_not_ruled_by_a_sample_near_zero():
    truth = torch.tensor([[1.0, 1.0], [0.001, 0.001]]).reshape(2, 1, 2, 1)
    prediction = truth + 0.01
    # ⟨e²⟩ = 1e-4, ⟨y²⟩ = (1 + 1e-6) / 2; float32 inputs hold 0.01 to 1e-7 of 1
    assert pooled_nrmse(prediction, truth).item() == pytest.approx(0.01 / math.sqrt((1 + 1e-6) / 2), rel=1e-5)
    assert nrmse(prediction, truth).mean() > 5


def test_max_error_by_hand():
    assert max_error(field(1, -5, 2), field(1, 1, 4)).item() == 6


def test_boundary_rmse_by_hand_sees_the_edge_alone():
    truth = torch.zeros(1, 1, 3, 4, 1)
    prediction = truth.clone()
    prediction[0, 0, 1, 1:3] = 100  # the interior
    assert boundary_rmse(prediction, truth).item() == 0
    prediction[0, 0, 0, 0] = 2  # one of the ten points on the edge
    assert boundary_rmse(prediction, truth).item() == pytest.approx(math.sqrt(4 / 10), abs=ROUND_OFF)
    assert boundary_rmse(field(3, 9, 9, 4), field(0, 0, 0, 0)).item() == pytest.approx(math.sqrt(12.5), abs=ROUND_OFF)


def test_relative_l2_by_hand_joins_times_and_channels():
    truth = torch.tensor([3.0, 0.0, 0.0, 4.0]).reshape(1, 2, 1, 2)
    prediction = truth + torch.tensor([0.0, 0.6, 0.8, 0.0]).reshape(1, 2, 1, 2)
    assert relative_l2(prediction, truth).item() == pytest.approx(0.2, rel=1e-6)


def test_a_zero_truth_gives_inf_for_an_error_and_nan_for_none():
    for metric in (nrmse, pooled_nrmse, vrmse, relative_l2):
        assert metric(field(1, 0), field(0, 0)).isinf().all()
        assert metric(field(0, 0), field(0, 0)).isnan().all()


@pytest.mark.parametrize("metric", [nrmse, pooled_nrmse, vrmse, max_error, boundary_rmse, relative_l2])
def test_a_nan_prediction_scores_nan(metric):
    prediction, truth = random_fields(1)
    prediction[1, 2, 0, 3, 1] = math.nan
    assert metric(prediction, truth).isnan().any()
    prediction[1, 2] = math.nan
    per_sample = metric(prediction[1:2, 2:3], truth[1:2, 2:3])
    assert per_sample.isnan().all()


def test_shapes_that_would_broadcast_are_refused():
    with unchecked(), pytest.raises(ValueError, match="prediction has shape"):
        nrmse(torch.zeros(1, 1, 8, 1), torch.zeros(4, 1, 8, 1))


def test_small_float32_fields_do_not_underflow():
    truth = torch.full((1, 1, 4, 1), 1e-30)
    assert nrmse(1.5 * truth, truth).item() == pytest.approx(0.5, rel=1e-6)
