"""One model for a range of lead times: what its samples are, what they count for, and what a run reports of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from small import draws_of, prepared

import ups
from ups import pipeline
from ups.data.sampler import Sampler, TaskShare
from ups.distributed.runtime.settings import RuntimeConfig
from ups.training.settings import SHORTEST, TrainingConfig
from ups.training.stages.operator import OperatorStage

RUN = {
    "name": "leads",
    "tasks": {
        "advection": {
            "make": {
                "equation": "advection",
                "trajectories": 12,
                "values": {"beta": [0.4]},
                "settings": {"points": 32, "frames": 9, "duration": 0.8},
            }
        }
    },
    "stages": {"operator": {"width": 8, "depth": 1, "modes": 4, "head": 8}},
    "training": {"steps": 20, "strides": 3, "rollout": [[0.0, 1], [0.5, 2]]},
    "evaluation": {"resamples": 100, "pictures": 1, "solved": 0},
    "runtime": {"threads": 1, "device": "cpu"},
    "data": {"workers": 1},
}


def test_a_number_stands_for_all_strides_up_to_it_most_of_them_1() -> None:
    table = dict(TrainingConfig(strides=8).stride_table())
    assert list(table) == list(range(1, 9)) and table[1] == SHORTEST
    assert sum(table.values()) == pytest.approx(1.0)
    assert table[2] / table[8] == pytest.approx(4.0)
    assert dict(TrainingConfig(strides=1).stride_table()).keys() == {1}
    assert TrainingConfig().stride_table() == ((1, 1.0),)


def test_a_samples_loss_is_its_own_whatever_the_lead_times_beside_it(tmp_path: Path) -> None:
    spec, tasks = prepared(tmp_path)
    model, store = spec.build(0), tasks["advection"].store
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    one, several = (OperatorStage(model, TrainingConfig(strides=s), RuntimeConfig(device="cpu")) for s in (1, 3))
    sampler = Sampler((TaskShare("advection", store.trajectories, store.frames, 1.0),), seed=0, batch_size=8)
    part = sampler.indices(0, 1, [(stride, 1.0) for stride in (1, 2, 3)])[0]
    assert set(part.strides.tolist()) == {1, 2, 3}
    together = several.loss(store.gather(part), draws_of(store.gather(part))).total.detach()
    for i, (piece, stride) in enumerate(zip(part.micro_batches(1), part.strides.tolist(), strict=True)):
        alone = store.gather(piece)
        assert float(alone.times[0, 1] - alone.times[0, 0]) == pytest.approx(0.1 * stride)
        assert float(together[i]) == pytest.approx(
            float(one.loss(alone, draws_of(alone)).total.detach()) / stride, rel=1e-5
        )


def test_a_run_of_several_lead_times_reports_half_steps_and_takes_any_in_between(tmp_path: Path) -> None:
    (tmp_path / "leads.yaml").write_text(yaml.safe_dump(RUN))
    pipeline.run(str(tmp_path / "leads.yaml"), [], tmp_path)
    entry = json.loads((tmp_path / "leads" / "metrics.json").read_text())["tasks"]["advection"]["one_step"][
        "half_steps"
    ]
    assert entry["model"] == entry["operator"] > 0 and "persistence" not in entry
    assert entry["ci95"][0] <= entry["model"] <= entry["ci95"][1]
    assert "two half steps against one whole" in (tmp_path / "leads" / "report.html").read_text()
    sim, u0 = ups.load(tmp_path / "leads"), torch.sin(2 * torch.pi * torch.arange(32) / 32)
    assert sim.tasks["advection"].leads == pytest.approx((0.1, 0.2, 0.3))
    for dt, warned in ((0.1, False), (0.17, False), (0.3, False), (0.05, True), (0.4, True)):
        notes = sim.rollout(u0, steps=1, dt=dt, conditions={"beta": 0.4}).warnings
        assert any("outside the lead times" in note for note in notes) == warned
