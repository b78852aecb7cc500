"""The frames that a test set gives are what rollouts start from; those after them are predicted and scored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from standing import TASK, Standing, exact_model, learned

from ups.data.sources import Source
from ups.data.views import View
from ups.evaluation.evaluate import Evaluation, evaluate
from ups.fields import Dataset
from ups.metrics import nrmse
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import one_step

EXACT = 1e-12
"""Rounding of a dozen steps in float64."""


def judged(test: Dataset) -> Evaluation:
    predictors = {"operator": OperatorPredictor(exact_model(), [learned()])}
    source = Source(TASK, test, test, {"standing": test})
    rest = {"seed": 0, "resamples": 20, "pictures": 2, "training_seconds": 1.0}
    return evaluate(predictors, "operator", learned(), source, "standing", **rest)


def test_a_model_that_needs_two_frames_is_given_them() -> None:
    assert judged(Standing(given=2)).metrics["rollout"]["nrmse"]["model"] < EXACT
    assert judged(Standing(given=1)).metrics["rollout"]["nrmse"]["model"] > 0.1  # a wave at rest, for all it knows


def test_persistence_holds_the_last_given_frame() -> None:
    data = Standing(given=3)
    expected = nrmse(data.values[:, 2:3].expand(-1, 5, -1, -1), data.values[:, 3:]).mean()
    found = judged(data).metrics["rollout"]["nrmse"]["persistence"]
    assert found == pytest.approx(float(expected), rel=1e-12)


def test_a_published_view_s_given_frames_are_not_scored() -> None:
    data = Standing(frames=17)
    data.values[:, 0] = torch.randn(5, 16, 1, dtype=torch.float64)  # given, but older than any history
    found = judged(View(data, frame_stride=1, frames=12, given=3))
    assert found.metrics["rollout"]["nrmse"]["model"] < EXACT
    assert found.arrays["growth_operator"].shape == (12,) and not found.arrays["growth_operator"][:3].any()
    assert found.arrays["growth_persistence"][3:].all()
    assert np.array_equal(found.arrays["prediction_operator"][:, :3], found.arrays["truth"][:, :3])


def test_one_step_predicts_every_frame_but_the_first_whatever_is_given() -> None:
    batch = Standing().read(range(5), slice(None))
    predicted = one_step(OperatorPredictor(exact_model(), [learned()]), "standing", batch)
    errors = nrmse(predicted, batch.values[:, 1:]).mean((0, 2))
    assert errors.shape == (7,) and float(errors[0]) > 0.1 and float(errors[1:].max()) < EXACT
    scores = [judged(Standing(given=given)).metrics["one_step"]["nrmse"] for given in (1, 3)]
    assert scores[0] == scores[1]
