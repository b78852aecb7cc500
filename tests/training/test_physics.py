"""Losses of a task's equation: zero for the truth, their gradients those of differences; refused where they mean
nothing.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import Solved
from torch import Tensor

from ups.data.draws import Draws
from ups.data.joined import end_to_end
from ups.data.prepare.statistics import statistics
from ups.distributed.runtime.settings import RuntimeConfig
from ups.equations import (
    Burgers,
    Compressible1D,
    Darcy,
    DiffusionReaction,
    Equation,
    KuramotoSivashinsky,
    ShallowWater,
)
from ups.equations.base import balance
from ups.errors import UserError
from ups.fields import Batch
from ups.models.architectures import ARCHITECTURES
from ups.models.saved import ModelSpec, TrainedTask
from ups.pipeline.check import stand_in_tasks
from ups.pipeline.config import load_run
from ups.pipeline.data import look_at_inputs
from ups.training.physics import Physics
from ups.training.settings import PhysicsConfig, TrainingConfig
from ups.training.stages.operator import OperatorStage

ALL = [
    (Burgers(points=32, frames=5, duration=0.2), "balance"),
    (KuramotoSivashinsky(points=32, frames=5, duration=1.0, warm_up=5.0), "balance"),
    (KuramotoSivashinsky(points=32, frames=5, duration=1.0, warm_up=5.0), "conservation"),
    (Compressible1D(points=32, frames=5), "balance"),
    (Compressible1D(points=32, frames=5), "conservation"),
    (DiffusionReaction(points=32, frames=5, duration=0.5), "balance"),
    (DiffusionReaction(points=32, frames=5, duration=0.5), "boundary"),
    (Darcy(points=16), "balance"),
    (Darcy(points=16), "boundary"),
]


def case(equation: Equation, frames: int = 3) -> tuple[TrainedTask, Batch]:
    """A trained task, and windows of its normalised fields."""
    data = Solved(equation, 3)
    told: dict[str, Any] = {"equation": equation.name, "settings": asdict(equation)}  # pyright: ignore[reportArgumentType]
    spec = replace(equation.task(), source=told)
    learned = TrainedTask(spec, data.grid, statistics(data, spec), {}, () if spec.steady else (spec.dt or 0.0,))
    batch = data.read(range(3), slice(0, 1 if spec.steady else frames)).to("cpu", torch.float64)
    return learned, learned.normaliser.batch(batch)


def loss_of(physics: Physics, batch: Batch, errors: Tensor) -> Tensor:
    """Of the truth plus some errors (B T *space C), in the frames after the first, or in a solution."""
    targets = batch.values.unbind(1)[0 if physics.learned.spec.steady else 1 :]
    states = [target + error for target, error in zip(targets, errors.unbind(1), strict=True)]
    leads = [*batch.times.diff(dim=1).unbind(1)]
    return physics.total(physics.losses(states, targets, batch.values[:, 0], leads, batch))


def errors_like(batch: Batch, size: float = 0.01) -> Tensor:
    values = batch.values if batch.values.shape[1] == 1 else batch.values[:, 1:]
    generator = torch.Generator().manual_seed(0)
    return size * torch.randn(values.shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("equation", "name"), ALL, ids=lambda of: of if isinstance(of, str) else of.name)
def test_each_is_zero_for_the_truth_and_its_gradient_is_what_differences_find(equation: Equation, name: str) -> None:
    learned, batch = case(equation)
    physics = Physics.of(learned, PhysicsConfig(**{name: 2.0}), keeps_means=False)
    errors = errors_like(batch)
    assert float(loss_of(physics, batch, torch.zeros_like(errors)).max()) < 1e-5
    at = errors.clone().requires_grad_(True)
    loss = loss_of(physics, batch, at)
    assert float(loss.detach().min()) > 1e-4
    (gradient,) = torch.autograd.grad(loss.sum(), at)
    for direction in (errors_like(batch, 1.0).flip(0, 1), errors):
        step = 1e-6 * direction / direction.norm()
        found = (loss_of(physics, batch, errors + step) - loss_of(physics, batch, errors - step)).sum() / 2
        assert float(found) == pytest.approx(float((gradient * step).sum()), rel=1e-3, abs=1e-12)
    down = loss_of(physics, batch, errors - 1e-4 * gradient / gradient.norm() * errors.norm())
    assert float(down.sum()) < float(loss.detach().sum())
    assert float((gradient * errors).sum()) > 0  # towards the truth it falls


def test_a_steps_balance_is_by_each_samples_own_parameters() -> None:
    """As the metric has it, of prediction less truth."""
    burgers = [Burgers(points=32, frames=5, duration=0.2, nu=nu) for nu in (0.01, 0.1)]
    cases = [case(equation) for equation in burgers]
    learned, batch = cases[0][0], end_to_end([one.select([0]) for _, one in cases])
    source = {**learned.spec.source, "varied": ["nu"]}
    physics = Physics.of(replace(learned, spec=replace(learned.spec, source=source)), PhysicsConfig(balance=1), False)
    errors = errors_like(batch)
    found = loss_of(physics, batch, errors)
    normaliser = learned.normaliser
    wrong = normaliser.physical(torch.cat([batch.values[:, :1], batch.values[:, 1:] + errors], 1))
    true = normaliser.physical(batch.values)
    for i, equation in enumerate(burgers):
        apart = [balance(equation, each[i : i + 1], batch.times[i : i + 1], {}) for each in (wrong, true)]
        ratio = (apart[0] - apart[1]).flatten(2).norm(dim=2) / true[i : i + 1].diff(dim=1).flatten(2).norm(dim=2)
        assert float(found[i]) == pytest.approx(float(ratio.mean()), rel=1e-6)


@pytest.mark.parametrize(
    ("architecture", "equation", "name"),
    [
        ("fno", ALL[1][0], "balance"),
        ("fno", ALL[1][0], "conservation"),
        ("spectral", ALL[1][0], "balance"),
        ("spectral", ALL[5][0], "boundary"),
        ("spectral", ALL[7][0], "balance"),
    ],
)
def test_each_moves_every_parameter_that_the_error_moves(architecture: str, equation: Equation, name: str) -> None:
    """With the error's own gradient taken off, nothing of the term's is zero where the error's is not."""
    learned, batch = case(equation)
    settings = ARCHITECTURES[architecture].settings.model_validate({"width": 4, "depth": 1, "modes": 2}).model_dump()
    model = ModelSpec(architecture, settings, (learned,)).build(0).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    found = []
    for weight in (0.0, 1.0):
        told = {learned.spec.name: {name: weight}}
        training = TrainingConfig.model_validate({"rollout": [(0.0, 2)], "physics": told})
        stage = OperatorStage(model, training, RuntimeConfig(device="cpu"), (learned,))
        loss = stage.loss(batch, Draws(0, "operator", torch.tensor(0), torch.arange(3)))
        assert (name in loss.parts) == bool(weight)
        found.append(torch.autograd.grad(loss.total.sum(), list(model.parameters()), allow_unused=True))
    moved = [
        (name, float((more - less).norm()))
        for (name, _), less, more in zip(model.named_parameters(), *found, strict=True)
        if less is not None and more is not None and less.any()
    ]
    assert moved and not [name for name, size in moved if size == 0]


@pytest.mark.parametrize(
    ("equation", "weights", "keeps", "told"),
    [
        (ALL[1][0], {"conservation": 1.0}, True, "this architecture keeps its means"),
        (ALL[5][0], {"conservation": 1.0}, False, "its equation keeps no mean"),
        (ALL[1][0], {"boundary": 1.0}, False, "the domain has no walls"),
        (ShallowWater(points=32, frames=5, duration=0.1), {"balance": 1.0}, False, "do not tell the rate"),
    ],
)
def test_what_a_task_does_not_have_is_refused(equation: Equation, weights: Any, keeps: bool, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Physics.of(case(equation)[0], PhysicsConfig(**weights), keeps)


def test_data_that_do_not_tell_their_equations_settings_are_refused() -> None:
    learned, _ = case(ALL[1][0])
    learned = replace(learned, spec=replace(learned.spec, source={"equation": "kuramoto_sivashinsky"}))
    with pytest.raises(UserError, match=r"only data that tasks.* makes tell"):
        Physics.of(learned, PhysicsConfig(balance=1.0), False)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("training.physics={darcy: {balance: 1}}", "has physics of 'darcy', which is not among the tasks"),
        ("training.physics={advection: {mass: 1}}", "training.physics.advection.mass is not a known key"),
        ("training.physics={advection: {balance: -1}}", "training.physics.advection.balance is -1"),
        ("stages.codec.training.physics={advection: {balance: 1}}", "training.physics has no effect on a codec"),
    ],
)
def test_weights_of_nothing_are_refused_with_the_configuration(tmp_path: Path, change: str, told: str) -> None:
    text = "tasks: {advection: {make: {equation: advection, trajectories: 20}}}\nstages: {codec: {}, operator: {}}\n"
    (tmp_path / "toy.yaml").write_text(text)
    with pytest.raises(UserError, match=told):
        load_run(str(tmp_path / "toy.yaml"), [change])


def test_the_check_of_a_run_counts_a_step_with_its_physics(tmp_path: Path) -> None:
    made = "{equation: burgers, trajectories: 20, values: {nu: [0.01, 0.1]}, settings: {points: 32, frames: 5}}"
    text = f"tasks: {{burgers: {{make: {made}}}}}\nstages: {{operator: {{width: 4, depth: 1}}}}\n"
    (tmp_path / "toy.yaml").write_text(text)
    config = load_run(str(tmp_path / "toy.yaml"), ["training.physics={burgers: {balance: 1}}"])
    learned = stand_in_tasks(config, look_at_inputs(config, tmp_path))["burgers"]
    assert Physics.of(learned, config.training.physics["burgers"], False).varied == ("nu",)
