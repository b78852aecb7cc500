"""Evaluation in pieces: the numbers of the whole, the same digits on any number of ranks, no more read than needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from small import Solved

from ups.data.prepare.statistics import statistics
from ups.data.sources import Source
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import Advection
from ups.evaluation import evaluate as judging
from ups.evaluation.evaluate import Evaluation, evaluate
from ups.fields import Batch
from ups.metrics import nrmse, power_spectrum
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import one_step, rollout

EQUATION = Advection(points=16, beta=0.4, frames=5, duration=0.5)
COUNT = 11


class Counted(Solved):
    """Knows how many bytes of values it was asked for at once, at most, and how often each trajectory was read."""

    def __init__(self) -> None:
        super().__init__(EQUATION, COUNT)
        self.most, self.reads = 0, [0] * COUNT

    def read(self, indices, frames: slice) -> Batch:
        batch = super().read(indices, frames)
        self.most = max(self.most, batch.values.nbytes)
        for index in indices:
            self.reads[index] += 1
        return batch


def learned() -> TrainedTask:
    data, spec = Solved(EQUATION, 2), EQUATION.task()
    return TrainedTask(spec, data.grid, statistics(data, spec), {"beta": (0.4, 0.4)}, (0.125, 0.25))


def predictors(task: TrainedTask) -> dict[str, OperatorPredictor]:
    """Two networks that do something."""
    made = {}
    for seed, name in enumerate(("operator", "other")):
        model = ModelSpec("spectral", {"width": 8, "depth": 1, "modes": 4, "head": 8}, (task,)).build(seed)
        torch.nn.init.normal_(model.network.head.outer["u"], generator=torch.Generator().manual_seed(seed))
        made[name] = OperatorPredictor(model.eval(), [task])
    return made


def judged(data: Solved, runtime: Runtime | None = None, solvers: bool = True, **changes: Any) -> Evaluation:
    beside = ((EQUATION, data),) if solvers else ()
    source = Source(EQUATION.task(), data, data, {"advection": data}, beside)
    how = {"seed": 0, "resamples": 100, "pictures": 3, "training_seconds": 1.0, "solved": 4} | changes
    task = learned()
    return evaluate(predictors(task), "operator", task, source, "advection", runtime=runtime, **how)


def pieces_of(trajectories: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PIECE_BYTES", trajectories * 5 * 16 * 4)


def test_numbers_in_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Counted()
    whole = judged(data)
    pieces_of(3, monkeypatch)
    data = Counted()
    parts = judged(data)
    assert data.most == 3 * 5 * 16 * 4
    for kind, table in whole.metrics.items():
        for metric, entry in table.items():
            for who in ("model", "other", "persistence"):
                if entry.get(who) is not None:  # 16 points have no high waves
                    assert parts.metrics[kind][metric][who] == pytest.approx(entry[who], rel=1e-5, abs=1e-9), metric
    for name, array in whole.arrays.items():
        assert np.allclose(parts.arrays[name], array, rtol=1e-4, atol=1e-6, equal_nan=True), name
    own = predictors(learned())["operator"]
    expected = nrmse(rollout(own, "advection", data.batch), data.batch.values[:, 1:])
    assert whole.metrics["rollout"]["nrmse"]["model"] == pytest.approx(float(expected.mean()), rel=1e-6)
    assert whole.arrays["growth_operator"][1:] == pytest.approx(expected.mean((0, 2)).numpy(), rel=1e-6)
    single = nrmse(one_step(own, "advection", data.batch), data.batch.values[:, 1:])
    assert whole.errors["one_step"]["operator"] == pytest.approx(single.mean((1, 2)).tolist(), rel=1e-6)
    last = power_spectrum(data.batch.values[:, -1:])[1].mean((0, 1, 3))
    assert whole.arrays["spectrum_truth"] == pytest.approx(last.numpy(), rel=1e-6)
    assert whole.metrics["one_step"]["half_steps"]["model"] > 0


def test_each_trajectory_is_read_once_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more is the first piece, for channels that are zero throughout, and those of pictures and solvers."""
    pieces_of(2, monkeypatch)
    data = Counted()
    judged(data, solvers=False, pictures=1)
    assert data.reads == [3, 2, *[1] * (COUNT - 2)]


def test_pictures_of_large_fields_have_fewer_frames_and_curves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "PICTURE_BYTES", 3 * 2 * 16 * 4)
    found = judged(Counted(), pictures=2).arrays
    assert found["frames"].tolist() == [0, 2, 4] and found["truth"].shape == (2, 3, 16, 1)
    assert found["prediction_other"].shape == (2, 3, 16, 1) and found["growth_other"].shape == (5,)
    assert np.array_equal(found["prediction_other"][:, 0], found["truth"][:, 0])


def on_a_rank(folder: Path) -> tuple[dict[str, Any], dict[str, Any], list[str], int]:
    """The numbers, the errors, the names of arrays, and how often this rank read a trajectory."""
    judging.PIECE_BYTES = 2 * 5 * 16 * 4
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0, folder) as runtime:
        data = Counted()
        data.batch = masked(data.batch)
        found = judged(data, runtime, solvers=False, pictures=1)
        return found.metrics, found.errors, sorted(found.arrays), sum(data.reads)


def masked(batch: Batch) -> Batch:
    """With cells of each trajectory's own left out."""
    mask = torch.rand(batch.values[:, 0, ..., 0].shape, generator=torch.Generator().manual_seed(1)) < 0.8
    return replace(batch, mask=mask)


def test_no_digit_depends_on_the_number_of_ranks_and_each_reads_its_share(tmp_path: Path) -> None:
    (alone,) = run_ranks(1, on_a_rank, tmp_path)
    assert alone[0]["rollout"]["nrmse"]["model"] > 0
    for size in (2, 3):
        ranks = run_ranks(size, on_a_rank, tmp_path)
        assert all(rank[:2] == alone[:2] for rank in ranks)
        assert ranks[0][2] == alone[2] and not any(rank[2] for rank in ranks[1:])
        assert all(rank[3] < COUNT for rank in ranks)


def test_a_masked_task_is_measured_within_its_mask() -> None:
    data = Counted()
    mask = torch.ones(COUNT, 16, dtype=torch.bool)
    mask[:, :4] = False
    data.batch = replace(data.batch, mask=mask)
    inside = judged(data, solved=0)
    spoiled = Counted()
    spoiled.batch = replace(data.batch, values=torch.where(mask[:, None, :, None], data.batch.values, 1e6))
    persistence = judged(spoiled, solved=0).metrics["rollout"]["nrmse"]["persistence"]
    assert persistence == pytest.approx(inside.metrics["rollout"]["nrmse"]["persistence"], rel=1e-12)
