"""A steady task whose coefficient is known in part: operator, codec and steady stage, made small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small import SETTINGS, Solved, draws_of
from torch import Tensor

import ups
from ups import pipeline
from ups.data.prepare.statistics import statistics
from ups.distributed.runtime.settings import RuntimeConfig
from ups.equations import Advection, Darcy, Equation
from ups.errors import UserError
from ups.fields import Dataset, Grid
from ups.models.codec import Codec
from ups.models.corrector import Guess
from ups.models.geometry import Frame
from ups.models.saved import ModelSpec, TrainedTask
from ups.models.trunk import Trunk, TrunkSettings
from ups.rollout.predict import steady
from ups.training.settings import TrainingConfig
from ups.training.stages.codec import CodecStage, CodecStageSettings
from ups.training.stages.distilled import DistilledSettings, build_distilled
from ups.training.stages.operator import OperatorStage
from ups.training.stages.steady import SteadySettings, SteadyStage, build_steady

RUN = """
tasks: {darcy: {make: {equation: darcy, trajectories: 16, settings: {points: 16}}, known: 0.1}}
stages:
  operator: {width: 8, depth: 1, modes: 4}
  codec: {width: 8, depth: 1, cell: 4}
  steady: {on: [operator, codec], width: 8, depth: 1, steps: 1}
training: {steps: 10, validate_every: 5, batch_size: 4}
evaluation: {members: 3, resamples: 100, solved: 2}
data: {workers: 1}
runtime: {threads: 1}
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("steady")
    (folder / "partial.yaml").write_text(RUN)
    pipeline.run(str(folder / "partial.yaml"), [], folder)
    return folder / "partial"


def stage_of(equation: Equation, known: tuple[str, ...] = (), made: bool = True, **settings: Any) -> SteadyStage:
    """Untrained, of a task of its own."""
    data: Dataset = Solved(equation, 4)  # pyright: ignore[reportAssignmentType]
    spec = equation.task()
    if made:
        spec = ups.TaskSpec(**{**vars(spec), "source": {"equation": spec.name, "settings": vars(equation)}})
    scales = statistics(data, spec)
    spec = ups.TaskSpec(**{**vars(spec), "static": known or spec.static})
    ranges = {name: (value, value) for name, value in equation.parameters.items()}
    learned = TrainedTask(spec, data.grid, scales, ranges, () if spec.steady else (spec.dt or 0.0,))
    training = TrainingConfig()
    operator = OperatorStage(ModelSpec("spectral", SETTINGS, (learned,)).build(0), training, RuntimeConfig(), [learned])
    sizes = CodecStageSettings(width=8, depth=1, cell=4, compression=4)
    codec = CodecStage(Codec([learned], sizes), sizes, [learned])
    parents = {"operator": operator, "codec": codec}
    own = SteadySettings(width=8, depth=1, steps=1, **settings)
    return build_steady("steady", own, training, (learned,), 0, parents, dict.fromkeys(parents, "checksum"))


def conditions(points: int = 16) -> dict[str, Tensor]:
    a, known = torch.ones(points, points), torch.zeros(points, points)
    known[::3, ::3] = 1.0
    return {"a_known": a * known, "known": known}


def test_samples_of_a_steady_task_are_judged_as_an_ensemble_beside_dressed_regression(whole: Path) -> None:
    metrics = json.loads((whole / "metrics.json").read_text())
    found = metrics["tasks"]["darcy"]["one_step"]
    assert metrics["state"] == "finished" and metrics["model"] == "steady"
    assert found["crps"].keys() >= {"steady", "operator", "dressed", "persistence"}
    assert "perturbed" not in found["crps"]
    assert found["spread_skill"]["steady"] > 0 and found["spread_skill"]["operator"] == 0
    assert found["balance"]["operator"] > 0  # of the whole coefficient, which no model knows
    assert (whole / "report.html").stat().st_size > 10_000


def test_a_simulator_samples_solutions_from_what_is_known(whole: Path) -> None:
    sim = ups.load(whole)
    result = sim.rollout(conditions=conditions(), members=4, seed=1)
    assert result.values.shape == (4, 1, 16, 16, 1)
    assert float(result.values.std(0).mean()) > 0
    assert torch.equal(result.values, sim.rollout(conditions=conditions(), members=4, seed=1).values)
    assert torch.equal(sim.rollout(conditions=conditions()).values, sim.rollout(conditions=conditions(), seed=5).values)
    assert sim.rollout(conditions=conditions(32), members=2).values.shape == (2, 1, 32, 32, 1)


@pytest.mark.parametrize("members", [0, 10**6])
def test_no_members_or_a_million_are_refused(whole: Path, members: int) -> None:
    with pytest.raises(UserError, match="members is"):
        ups.load(whole).rollout(conditions=conditions(), members=members)


def test_samples_are_refined_by_the_equation_in_its_own_units() -> None:
    equation = Darcy(points=16, beta=0.5)
    batch, errors = equation.solve(1, range(3)), []
    for iterations in (0, 3, 30):
        predicted = steady(stage_of(equation, refine=iterations).predictor(), "darcy", batch)
        errors.append(equation.energy(batch.static["a"], (predicted - batch.values)[:, 0, ..., 0]))
    assert bool((errors[0] > 3 * errors[1]).all()) and bool((errors[1] > 100 * errors[2]).all())
    torch.testing.assert_close(predicted, batch.values, rtol=1e-4, atol=1e-5)


def test_every_parameter_of_the_flow_learns_and_nothing_else() -> None:
    stage = stage_of(Darcy(points=16))
    for parameter in (*stage.model.parameters(), *stage.operator.model.parameters()):
        torch.nn.init.normal_(parameter, std=0.1)  # zero at first, so that what leads to them has no gradient yet
    stage.operator.model.requires_grad_(False)
    learned = stage.tasks[0]
    batch = learned.normaliser.batch(Darcy(points=16).solve(0, range(4)))
    loss = stage.loss(batch, draws_of(batch))
    assert set(loss.parts) == {"flow", "size"}
    loss.total.mean().backward()
    assert not [name for name, p in stage.model.named_parameters() if p.grad is None or not p.grad.any()]
    assert all(p.grad is None for parent in stage.parents().values() for p in parent.module.parameters())
    scores = stage.validate(batch, draws_of(batch))
    torch.testing.assert_close(scores.trivial, stage.operator.validate(batch, draws_of(batch)).errors)


def test_a_steady_flow_can_be_distilled() -> None:
    teacher = stage_of(Darcy(points=16), refine=1)
    student = build_distilled("distilled", DistilledSettings(), TrainingConfig(), {"steady": teacher}, {"steady": ""})
    batch = teacher.tasks[0].normaliser.batch(Darcy(points=16).solve(0, range(2)))
    assert student.window(0) == teacher.window(0)
    assert student.loss(batch, draws_of(batch)).total.isfinite().all()
    assert student.predictor().chance and student.validate(batch, draws_of(batch)).errors.isfinite().all()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: stage_of(Darcy(points=16), known=("known",), refine=1), "does not tell all of 'a'"),
        (lambda: stage_of(Darcy(points=16), made=False, refine=1), "settings of the equation"),
        (lambda: stage_of(Darcy(points=16, target="transient"), refine=1), "do without refining"),
        (lambda: stage_of(Advection(points=16, frames=3)), "steady tasks"),
    ],
)
def test_what_cannot_be_sampled_or_refined_is_refused_before_training(make: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        make()


def test_a_correction_is_what_the_codec_decodes_up_to_the_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once was damped with the distance to them, four ninths of it were left."""
    stage = stage_of(Darcy(points=16))
    for parameter in (*stage.codec.model.parameters(), *stage.model.parameters()):
        torch.nn.init.normal_(parameter, std=0.1)
    correct, codec = stage.correction(), stage.codec.model
    predicted, noise = torch.rand(2, 16, 16, 1), torch.randn(2, *correct.noise_shape("darcy"))
    monkeypatch.setattr(correct.corrector, "velocity", lambda task, x, *_: torch.zeros_like(x))
    one, guess = torch.ones(2), Guess.solution("darcy", predicted, torch.zeros(2, 16, 16, 1), {})
    context = correct.corrector.context(guess)
    latent, size = codec.encode("darcy", predicted), correct.corrector.size("darcy", one, one, context)
    change = codec.decode("darcy", latent + noise * size[:, None, None]) - codec.decode("darcy", latent)
    torch.testing.assert_close(correct(guess, noise), predicted + change)


def test_points_that_lie_on_walls_stay() -> None:
    codec = stage_of(Darcy(points=16)).codec.model
    like, walls = torch.zeros(1, 16, 16, 1), Grid.nodal((16, 16))
    assert torch.equal(torch.as_tensor(codec.encoder.off_walls("darcy", like)), torch.ones(16, 16, 1))
    frames = {"darcy": Frame(walls, codec.frames["darcy"].boundary, (1, 1))}
    on = torch.as_tensor(Trunk(codec.tasks, frames, TrunkSettings(width=8, depth=1)).off_walls("darcy", like))
    assert not on[0].any() and not on[:, 0].any() and bool((on[1:, 1:] == 1).all())
