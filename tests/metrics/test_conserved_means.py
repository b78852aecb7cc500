import math

import pytest
import torch

from ups.metrics import conserved_error, conserved_rmse


def test_mass_created_by_hand():
    truth = torch.zeros(1, 2, 4, 1, dtype=torch.float64)
    prediction = truth.clone()
    prediction[0, 0, 0] = 4  # mean 1 too much
    prediction[0, 1, :2] = -4  # mean 2 too little
    assert conserved_error(prediction, truth).flatten().tolist() == [1, 2]
    assert conserved_rmse(prediction, truth).item() == pytest.approx(math.sqrt(2.5), abs=1e-12)


def test_moving_mass_about_conserves_it():
    truth = torch.randn(2, 3, 8, 8, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert conserved_error(truth.roll((3, 2), (2, 3)), truth).max() < 1e-15 * 64


def test_a_nan_prediction_conserves_nothing():
    truth = torch.zeros(1, 2, 4, 1)
    prediction = truth.clone()
    prediction[0, 1, 2] = math.nan
    assert conserved_error(prediction, truth).isnan().flatten().tolist() == [False, True]
    assert conserved_rmse(prediction, truth).isnan().all()
