"""The cached stage: an operator in a frozen codec's latents, through the one Trainer, judged in fields."""

from __future__ import annotations

import html
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small import Solved, prepared
from torch import Tensor

import ups
from ups import pipeline
from ups.data.draws import Draws
from ups.data.prepare.statistics import statistics
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.fields import Batch, Boundary, Channel, Conditions, Grid, Header, TaskSpec
from ups.models.saved import ModelSpec, TrainedTask
from ups.pipeline.config import load_run
from ups.rollout.latent import LatentPredictor
from ups.rollout.operator import OperatorPredictor
from ups.training.fit import Plan
from ups.training.kinds import STAGES
from ups.training.latents import Latents
from ups.training.restore import restored
from ups.training.settings import TrainingConfig
from ups.training.stages.codec import CodecStageSettings, build_codec
from ups.training.trainer import Trainer

CONFIG = """
name: cheap
tasks:
  advection: {make: {equation: advection, trajectories: 20, settings: {points: 32, frames: 9, duration: 0.8}}}
stages:
  operator: {width: 8, depth: 1, modes: 4, head: 8, conditions: 8}
  codec: {width: 8, depth: 1, modes: 4, training: {steps: 10, batch_size: 16}}
  cheap: {kind: cached, on: [codec], width: 8, depth: 1, modes: 4, head: 8, conditions: 8}
training: {steps: 10, batch_size: 8, warmup: 1, validate_every: 5, precision: float64, rollout: [[0.0, 1], [0.5, 2]]}
evaluation: {resamples: 100, solved: 0}
runtime: {device: cpu, threads: 1}
data: {workers: 1}
"""
OPEN = Boundary.all("open", 2)


class Drawn(Solved):
    """Fields without a meaning, with a coefficient."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(2, 4, 16, 16, 1, generator=generator)
        self.task, self.channels, self.boundary = "wave", ("u",), OPEN
        self.grid, self.times = Grid.cell_centred((16, 16)), 0.1 * torch.arange(4, dtype=torch.float64)
        coefficient = {"c": torch.rand(2, 16, 16, generator=generator)}
        times = self.times.expand(2, -1)
        self.batch = Batch("wave", values, times, self.grid, OPEN, {}, coefficient, torch.arange(2))
        self.header = Header("wave", ("u",), self.grid, self.times, OPEN, static=("c",))


CPU = RuntimeConfig(device="cpu", threads=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cached")
    (folder / "cheap.yaml").write_text(CONFIG)
    pipeline.run(str(folder / "cheap.yaml"), [], folder)
    return folder / "cheap"


def plan_of(kind: str, task: Any, directory: Path, *on: str, **changes: Any) -> Plan:
    given = {"width": 8, "depth": 1, "modes": 4}
    settings = STAGES[kind].settings(given).model_validate(given)
    told = {"steps": 4, "batch_size": 7, "warmup": 1, "clip": 0.2, "ema": 0.9, "precision": "float64", "noise": 0.01}
    training = TrainingConfig(**(told | changes))
    tasks = {"advection": task}
    return Plan(kind, kind, kind, settings, tasks, {"advection": 1.0}, training, 0, directory / kind, on, workers=1)


def trained(folder: Path, run: Path, steps: int = 4) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and the whole state of a cached stage, on whatever ranks the process is; its codec is there."""
    task = prepared(folder)[1]["advection"]
    with Runtime.start(CPU, 0) as runtime:
        (run / "cached").mkdir(parents=True, exist_ok=True)
        trainer = plan_of("cached", task, run, "codec", rollout=[(0.0, 1), (0.5, 2)]).trainer(runtime)
        losses = [float(runtime.sum(trainer.step()[0]["advection"])) for _ in range(steps)]
        trainer.events.close()
        return losses, {name: tensor.detach().clone() for name, tensor in trainer._tensors().items()}


def train_codec(folder: Path, run: Path) -> Trainer:
    with Runtime.start(CPU, 0) as runtime:
        (run / "codec").mkdir(parents=True)
        trainer = plan_of("codec", prepared(folder)[1]["advection"], run, steps=2).trainer(runtime)
        trainer.fit()
        trainer.events.close()
        return trainer


def test_any_number_of_ranks_takes_the_same_path(tmp_path: Path) -> None:
    train_codec(tmp_path, tmp_path / "run")
    losses, state = trained(tmp_path, tmp_path / "run")
    for ranks in run_ranks(2, trained, tmp_path, tmp_path / "run"):
        assert ranks[0] == pytest.approx(losses, abs=1e-10)
        assert all(torch.allclose(ranks[1][name], tensor, rtol=0, atol=1e-10) for name, tensor in state.items())


def test_the_whole_run_shows_what_latents_lose_beside_the_default_operator(whole: Path) -> None:
    metrics = json.loads((whole / "metrics.json").read_text())
    assert metrics["state"] == "finished" and metrics["model"] == "cheap"
    nrmse = metrics["tasks"]["advection"]["rollout"]["nrmse"]
    assert {"operator", "cheap", "persistence"} <= nrmse.keys() and "codec" not in nrmse
    page = html.unescape((whole / "report.html").read_text())
    ratio = f"{nrmse['cheap'] / nrmse['operator']:.3g} times the {nrmse['operator']:.3g} of operator"
    assert f"rollout nRMSE on advection is {nrmse['cheap']:.3g}, {ratio}" in page


def test_untrained_it_is_persistence_but_for_what_the_codec_loses(whole: Path) -> None:
    predictor = ups.load(whole).predictor
    model, codec = predictor.operator.model, predictor.codec
    fields = torch.randn(2, 1, 32, 1, dtype=torch.float64)
    learned = predictor.tasks["advection"]
    grid, lead = learned.grid, torch.full((2,), 0.1, dtype=torch.float64)
    state = predictor.start("advection", fields, Conditions({"beta": 0.4}), grid)
    torch.testing.assert_close(predictor.decode(state), fields[:, 0])  # nothing was asked of the codec yet
    kept = [p.clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.zero_()
    after = predictor.decode(predictor.step(state, lead))
    normalised = learned.normaliser.normalise(fields[:, 0])
    wanted = learned.normaliser.physical(codec.decode("advection", codec.encode("advection", normalised)))
    for parameter, before in zip(model.parameters(), kept, strict=True):
        parameter.copy_(before)
    torch.testing.assert_close(after, wanted)


def test_a_rollout_encodes_once_and_decodes_what_is_asked_for(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim, calls = ups.load(whole), []
    codec = sim.predictor.codec
    for name in ("encode", "decode"):
        plain = getattr(codec, name)
        monkeypatch.setattr(codec, name, lambda *a, p=plain, n=name: (calls.append(n), p(*a))[1])
    result = sim.rollout(torch.randn(32, 1), times=[0.3, 0.6], conditions={"beta": 0.4})
    assert result.values.shape == (2, 32, 1) and calls == ["encode", "decode", "decode"]
    other = sim.rollout(torch.randn(3, 64, 1), steps=1, conditions={"beta": 0.4})
    assert other.values.shape == (3, 1, 64, 1)  # on a grid of its own


def test_a_start_is_encoded_as_the_store_is_with_its_coefficient_and_its_history() -> None:
    data, spec = Drawn(), TaskSpec("wave", 2, (Channel("u"),), OPEN, static=("c",), history=2, dt=0.1)
    learned = TrainedTask(spec, data.grid, statistics(data, spec), {}, (0.1,))
    codec = build_codec((learned,), CodecStageSettings(width=8, depth=1, modes=4, cell=4), 0, "codec")
    latents = Latents(data, learned, codec.model)
    stored = latents.own.normaliser.batch(latents.read([0, 1], slice(0, 2)))
    own = latents.own
    scales = {name: replace(scale, differences=(1.0,)) for name, scale in own.statistics.channels.items()}
    own = replace(own, statistics=replace(own.statistics, channels=scales, strides=(1,)))
    model = ModelSpec("spectral", {"width": 4, "depth": 1, "modes": 2}, (own,)).build()
    predictor = LatentPredictor(OperatorPredictor(model, [own]), codec.model, codec.tasks)
    batch = data.read([0, 1], slice(0, 2))
    with torch.no_grad():
        state = predictor.start("wave", batch.values, Conditions({}, batch.static), data.grid)
        after = predictor.step(state, torch.full((2,), learned.leads[0]))
    assert state.history.shape == (2, 2, 4, 4, 2)
    torch.testing.assert_close(state.history, stored.values)
    torch.testing.assert_close(state.static, torch.stack([stored.static[name] for name in spec.static], -1))
    torch.testing.assert_close(after.history[:, 0], state.history[:, 1])
    assert predictor.decode(after).shape == batch.values[:, 0].shape


def test_its_validation_is_in_fields_beside_persistence(whole: Path) -> None:
    stage = restored(whole / "stages" / "cheap")
    learned = stage.codec.tasks["advection"]
    torch.manual_seed(0)
    frames = torch.randn(2, 3, 32, 1, dtype=torch.float64)
    task = replace(prepared.__wrapped__(whole / "again")[1]["advection"].validation.select([0, 1]))
    batch = replace(task, values=frames, times=task.times[:, :3])
    scores = stage.validate(batch, Draws(0, "cheap", torch.tensor(0), torch.arange(2)))
    errors = (frames[:, 1:] - frames[:, :1]).flatten(2).norm(dim=2) / frames[:, 1:].flatten(2).norm(dim=2)
    torch.testing.assert_close(scores.trivial, errors.mean(1))
    predictor, physical = stage.predictor(), learned.normaliser.physical(frames)
    state = predictor.start("advection", physical[:, :1], Conditions({"beta": 0.4}), learned.grid)
    found = []
    for target in frames[:, 1:].unbind(1):
        state = predictor.step(state, batch.times[:, 1] - batch.times[:, 0])
        error = learned.normaliser.normalise(predictor.decode(state)) - target
        found.append(error.flatten(1).norm(dim=1) / target.flatten(1).norm(dim=1))
    torch.testing.assert_close(scores.errors, torch.stack(found).mean(0))


def test_every_parameter_learns_and_the_codec_stays(tmp_path: Path) -> None:
    codec = train_codec(tmp_path, tmp_path / "run").stage.trainable()
    before = {name: t.clone() for name, t in codec.state_dict().items()}
    _, first = trained(tmp_path, tmp_path / "run", 1)
    _, later = trained(tmp_path, tmp_path / "run", 4)
    moved = [n for n in first if n.startswith("model.") and not torch.equal(first[n], later[n])]
    assert len(moved) == len([n for n in first if n.startswith("model.")])
    assert all(torch.equal(t, before[name]) for name, t in codec.state_dict().items())


def test_a_codec_that_was_trained_again_is_refused(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "cheap")
    shutil.copytree(run / "stages" / "operator", run / "stages" / "codec", dirs_exist_ok=True)
    with pytest.raises(UserError, match="another codec than the one in"):
        ups.load(run)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("stages.cheap.on=[]", r"stages.cheap is on \[\], and a stage of kind cached needs 1 in `on`"),
        ("stages.operator.on=[codec]", "'codec', which is not among the stages before it"),
        ("stages.codec.on=[operator]", "kind codec stands on no other: leave `on` out"),
        ("stages.cheap.freeze=shared", "stages.cheap.freeze is not a known key"),
    ],
)
def test_what_cannot_be_stood_on_is_refused_with_the_configuration(tmp_path: Path, change: str, told: str) -> None:
    (tmp_path / "cheap.yaml").write_text(CONFIG)
    with pytest.raises(UserError, match=told):
        load_run(str(tmp_path / "cheap.yaml"), [change])


def test_an_operator_in_place_of_a_codec_and_a_steady_task_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cheap.yaml").write_text(CONFIG)
    changes = ["stages.operator.training.steps=1", "stages.codec.training.steps=1"]
    with pytest.raises(UserError, match="stage 'cheap' steps through a codec's latents; give `on:"):
        pipeline.train(str(tmp_path / "cheap.yaml"), [*changes, "stages.cheap.on=[operator]"], tmp_path / "runs")
    darcy = "tasks.darcy={make: {equation: darcy, trajectories: 10, settings: {points: 16}}}"
    with pytest.raises(UserError, match="task 'darcy' is steady; leave that task out"):
        pipeline.train(str(tmp_path / "cheap.yaml"), [*changes, darcy, "name=steady"], tmp_path / "runs")
