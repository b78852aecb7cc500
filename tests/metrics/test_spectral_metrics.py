import math
from itertools import pairwise

import pytest
import torch

from ups.metrics import BANDS, nrmse, power_spectrum, spectral_error


def wave(points, k, amplitude=1.0):
    x = torch.arange(points, dtype=torch.float64) / points
    return (amplitude * torch.cos(2 * math.pi * k * x)).reshape(1, 1, points, 1)


def test_an_error_of_one_wave_lies_in_that_waves_band():
    truth = wave(64, 1, math.sqrt(2))  # ⟨y²⟩ = 1
    for band, k in ((0, 4), (1, 5), (1, 12), (2, 13), (2, 31)):
        error = spectral_error(truth + wave(64, k, 0.2), truth).flatten()
        expected = torch.zeros(3, dtype=torch.float64)
        expected[band] = 0.2 / math.sqrt(2)  # rms of 0.2 cos
        torch.testing.assert_close(error, expected, atol=1e-14, rtol=0)


def test_the_bands_follow_each_other_without_gap():
    assert BANDS[0][1] == 0
    assert BANDS[-1][2] == math.inf
    assert all(earlier[2] == later[1] for earlier, later in pairwise(BANDS))


@pytest.mark.parametrize("space", [(64,), (63,), (32, 40), (33, 32), (28, 29, 30)])
def test_the_squares_of_the_bands_sum_to_nrmse_squared(space):
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(2, 1, *space, 2, generator=generator, dtype=torch.float64)
    prediction = truth + torch.randn(2, 1, *space, 2, generator=generator, dtype=torch.float64)
    error = spectral_error(prediction, truth)
    torch.testing.assert_close(error.square().sum(-1), nrmse(prediction, truth).square(), rtol=1e-10, atol=0)


def test_a_band_the_grid_cannot_hold_is_nan_and_not_perfect():
    error = spectral_error(wave(16, 1, 1.1), wave(16, 1)).flatten()
    assert error[0].item() == pytest.approx(0.1, abs=1e-12)
    assert error[1].item() == pytest.approx(0.0, abs=1e-12)
    assert error[2].isnan()


def test_a_nan_prediction_has_nan_in_every_band():
    prediction = wave(64, 1)
    prediction[0, 0, 3] = math.nan
    assert spectral_error(prediction, wave(64, 1)).isnan().all()
    assert power_spectrum(prediction)[1].isnan().any()


def test_the_power_spectrum_of_one_wave_by_hand():
    k, power = power_spectrum(wave(32, 3, 2.0) + 5.0)
    assert k.tolist() == list(range(17))
    expected = torch.zeros(17, dtype=torch.float64)
    expected[0], expected[3] = 25.0, 2.0  # mean², amplitude² / 2
    torch.testing.assert_close(power.flatten(), expected, atol=1e-12, rtol=0)


def test_the_power_spectrum_is_the_same_in_every_direction():
    along_x = wave(32, 5).reshape(1, 1, 32, 1, 1).expand(1, 1, 32, 32, 1)
    diagonal = wave(32, 3).reshape(1, 1, 32, 1, 1) * wave(32, 4).reshape(1, 1, 1, 32, 1)  # |k| = 5
    for field, energy in ((along_x, 0.5), (along_x.transpose(2, 3), 0.5), (diagonal, 0.25)):
        _, power = power_spectrum(field)
        assert power[0, 0, 5, 0].item() == pytest.approx(energy, abs=1e-12)
        assert power.sum().item() == pytest.approx(energy, abs=1e-12)


def test_the_power_spectrum_sums_to_the_mean_square():
    field = torch.randn(2, 3, 50, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, power = power_spectrum(field)
    torch.testing.assert_close(power.sum(2), field.square().mean(2), rtol=1e-12, atol=0)
