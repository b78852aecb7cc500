"""Training knows how many frames rollouts start from: validation gives as many, and some samples have no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import draws_of
from standing import TASK, Standing, exact_model, learned, window

from ups.data.sources import Source
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.models.saved import TrainedTask
from ups.training.data import prepare
from ups.training.settings import TrainingConfig
from ups.training.stages.operator import FEW_FRAMES, OperatorStage


def stage(given: int) -> OperatorStage:
    return OperatorStage(exact_model(), TrainingConfig(noise=0.0), RuntimeConfig(device="cpu"), [learned(given)])


def test_validation_starts_from_the_frames_given() -> None:
    batch = Standing().read(range(5), slice(None))
    errors = {given: stage(given).validate(batch, draws_of(batch)) for given in (1, 2, 3)}
    assert float(errors[1].errors.min()) > 0.05
    assert float(errors[2].errors.max()) < 1e-12 and float(errors[3].errors.max()) < 1e-12
    assert not torch.equal(errors[2].trivial, errors[3].trivial)  # persistence starts from the last given one too


def test_where_one_frame_is_given_a_share_of_samples_starts_from_one() -> None:
    batch = window(400)
    errors = stage(1).loss(batch, draws_of(batch)).total
    share = float((errors > 1e-6).double().mean())
    assert share == pytest.approx(FEW_FRAMES, abs=0.07)  # three standard deviations of 400 draws
    assert float(stage(2).loss(batch, draws_of(batch)).total.max()) < 1e-12


def test_the_number_of_given_frames_is_the_validation_data_s_and_is_saved(tmp_path: Path) -> None:
    data, validation = Standing(6), Standing(3, given=3)
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as runtime:
        task = prepare(runtime, Source(TASK, data, validation, {}), 1.0, {1}, tmp_path, workers=1)
    assert task.learned.given == 3
    described = task.learned.to_dict()
    assert TrainedTask.from_dict(described).given == 3
    del described["given"]  # as of checkpoints before there was such a number
    assert TrainedTask.from_dict(described).given == 1
