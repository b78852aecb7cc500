"""What training and its end hold of validation and test sets is bounded in bytes, however large these are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import Solved, operator_stage, prepared

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import statistics
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import Advection
from ups.evaluation import reconstruction
from ups.fields import Batch
from ups.training import data as training_data
from ups.training import validation

EQUATION = Advection(points=16, beta=0.4, frames=5, duration=0.5)
COUNT, FRAME = 12, 16 * 4


class Counted(Solved):
    """Knows how many bytes of values it was asked for, at once at most and in all."""

    def __init__(self) -> None:
        super().__init__(EQUATION, COUNT)
        self.most = self.all = 0

    def read(self, indices, frames: slice) -> Batch:
        batch = super().read(indices, frames)
        self.most, self.all = max(self.most, batch.values.nbytes), self.all + batch.values.nbytes
        return batch


def test_no_more_validation_trajectories_are_held_than_their_bytes_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    data, spec = Counted(), EQUATION.task()
    normaliser = Normaliser(spec, statistics(data, spec))
    whole, fingerprint = training_data.held(data, normaliser)
    assert len(whole) == COUNT
    monkeypatch.setattr(training_data, "PIECE_BYTES", 2 * 5 * FRAME)
    data = Counted()
    parts, same = training_data.held(data, normaliser)
    assert data.most == 2 * 5 * FRAME and same == fingerprint and torch.equal(parts.values, whole.values)
    monkeypatch.setattr(training_data, "VALIDATION_BYTES", 3 * 5 * FRAME)
    data = Counted()
    few, _ = training_data.held(data, normaliser)
    assert data.all == 3 * 5 * FRAME and few.ids.tolist() == [0, 6, 11]


def test_validation_a_few_trajectories_at_a_time_is_that_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, tasks = prepared(tmp_path)
    stage = operator_stage(spec.build(0).double())
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as runtime:
        found = [validation.validate(stage, tasks, runtime, 0, torch.float64)]
        monkeypatch.setattr(validation, "POINTS", 1)
        found.append(validation.validate(stage, tasks, runtime, 0, torch.float64))
    assert found[0].errors == pytest.approx(found[1].errors, rel=1e-12)
    assert found[0].trivial == pytest.approx(found[1].trivial, rel=1e-12)


def test_a_codec_s_floor_reads_only_the_frames_that_it_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Counted()
    assert torch.equal(reconstruction._frames(data, COUNT), data.batch.values)
    monkeypatch.setattr(reconstruction, "BYTES", 2 * 8 * FRAME)  # in double precision: eight frames
    data = Counted()
    assert torch.equal(reconstruction._frames(data, 4), data.batch.values[[0, 4, 7, 11]][:, [0, 3]])
    assert data.all == 8 * FRAME


def test_principal_components_have_all_the_frames_that_there_is_room_for_and_give_back_what_they_span() -> None:
    data = Counted()
    assert torch.equal(reconstruction._frames(data, 4), data.batch.values)  # steady tasks have one frame a trajectory
    normal = torch.randn(60, 16, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for known in (normal[:10], normal[:40]):  # fewer of them than numbers in a field, and more
        mean = known.mean(0)
        rows = torch.linalg.svd((known - mean).flatten(1), full_matrices=False).Vh[:6]
        expected = mean + ((normal - mean).flatten(1) @ rows.T @ rows).unflatten(1, (16, 1))
        torch.testing.assert_close(reconstruction.principal(known, normal, 6), expected)
    torch.testing.assert_close(reconstruction.principal(normal[:40], normal, 99), normal)  # all there are
