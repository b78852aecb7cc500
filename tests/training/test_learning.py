"""Losses, schedule, averages and the loop: each moves what it claims to move, and a resumed run is the same run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import small
import torch
from torch import Tensor

from ups import checkpoint
from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.statistics import Scale, Statistics
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import GaveUp, Stopped, UserError
from ups.fields import Batch, Channel
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec
from ups.track.jsonl import read_events
from ups.training.data import TaskData
from ups.training.ema import EMA
from ups.training.losses import LossParts, relative_error
from ups.training.optimisers import learning_rate
from ups.training.restore import restored
from ups.training.settings import TrainingConfig
from ups.training.stages.operator import OperatorStage
from ups.training.trainer import Trainer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def prepared(data: Path) -> tuple[ModelSpec, dict[str, TaskData]]:
    return small.prepared(data)


def trainer(data: Path, folder: Path, runtime: Runtime, steps: int = 12, scores=None, **changes) -> Trainer:
    marks = [score for score in scores or [] for _ in small.EQUATIONS] if scores else None  # all tasks alike
    settings = {"steps": steps, "batch_size": 6, "clip": 1.0, "ema": 0.99, "precision": "float32"}
    settings |= {"validate_every": 4, "checkpoint_every": 4} | changes
    return small.small_trainer(runtime, data, folder, marks=marks, **settings)


@pytest.fixture
def runtime():
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as started:
        yield started


def awake(spec: ModelSpec) -> Tensor:
    """A model whose zero-initialised layers are filled: at zero, a last layer hides the gradient of all before it."""
    model = spec.build(0)
    for parameter in model.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def window(tasks: dict[str, TaskData], task: str, frames: int) -> Batch:
    from ups.data.sampler import Sampler

    store = tasks[task].store
    sampler = Sampler(((task, store.trajectories, store.frames, 1.0),), 0, 3)
    return store.gather(sampler.indices(0, frames - 1)[0])


def loss_of(model: Propagator, batch: Batch, noise: float = 0.0) -> LossParts:
    return small.operator_stage(model, noise).loss(batch, small.draws_of(batch))


def test_the_relative_error_of_a_hand_computed_pair() -> None:
    truth = torch.tensor([[3.0, 4.0], [0.0, 0.0]])[..., None]
    guess = torch.tensor([[3.0, 1.0], [0.0, 0.03]])[..., None]
    # 3/5; and against nothing: 0.03 / (0.01 √2)
    assert relative_error(guess, truth).tolist() == pytest.approx([0.6, 0.03 / (0.01 * 2**0.5)])


def test_the_relative_error_has_its_optimum_at_the_truth() -> None:
    truth = torch.randn(4, 6, 1)
    guess = torch.zeros_like(truth).requires_grad_()
    optimiser = torch.optim.Adam([guess], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        relative_error(guess, truth).sum().backward()
        optimiser.step()
    assert float(relative_error(guess.detach(), truth).max()) < 0.05


@pytest.mark.parametrize("term", ["step_1", "step_2"])
def test_each_rollout_term_moves_every_parameter_its_task_uses(prepared, term: str) -> None:
    spec, tasks = prepared
    model = awake(spec)
    loss = loss_of(model, window(tasks, "advection", 3))
    loss.parts[term].mean().backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    alien = (
        "bounded",
        "static",
        "wall",
        "steady",
        "value",
        "place.2",
        "spacing_1",
        "length_1",
        "stencil.y",
        "gates.task_darcy",
    )
    assert [n for n in still if not any(word in n for word in alien)] == []


def test_the_second_step_is_trained_through_the_first(prepared) -> None:
    """Cutting the graph between the two steps changes the gradient: a rollout loss is more than two one-step losses."""
    spec, tasks = prepared
    batch = window(tasks, "advection", 3)
    whole = awake(spec)
    loss_of(whole, batch).parts["step_2"].mean().backward()
    cut = awake(spec)
    cut.load_state_dict(whole.state_dict())
    with torch.no_grad():
        lead = (batch.times[:, 1] - batch.times[:, 0]).float()
        static = batch.values.new_zeros(3, 32, 0)
        first = cut("advection", batch.values[:, :1], static, batch.parameters, lead, batch.grid)
    second = replace(batch, values=torch.stack([first, batch.values[:, 2]], 1), times=batch.times[:, :2])
    loss_of(cut, second).total.mean().backward()
    ours, theirs = (dict(m.named_parameters())["network.stem.bias"].grad for m in (whole, cut))
    assert ours is not None and theirs is not None
    assert not torch.allclose(ours, theirs, rtol=1e-2, atol=0)


def test_the_steady_loss_moves_every_parameter_its_task_uses(prepared) -> None:
    spec, tasks = prepared
    model = awake(spec)
    loss = loss_of(model, window(tasks, "darcy", 1))
    loss.parts["steady"].mean().backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    # The state of a steady problem starts at zero, so rows that multiply it cannot move.
    alien = ("periodic", "parameter_beta", "lead", "place.1", "field_u", "task_advection")
    assert [n for n in still if not any(word in n for word in alien)] == []


def test_noise_reaches_the_loss_in_proportion_to_the_sample(prepared) -> None:
    spec, tasks = prepared
    batch = window(tasks, "advection", 2)
    quiet, loud = (loss_of(spec.build(0), batch, noise).total.mean().item() for noise in (0.0, 0.5))
    # The untrained model is persistence: its error grows by about the noise, half of each sample's rms.
    assert loud > quiet + 0.05


def test_the_schedule_warms_up_and_ends_at_zero(prepared) -> None:
    config = TrainingConfig(steps=100, learning_rate=0.01, warmup=10, rollout=[(0.0, 1), (0.7, 2), (0.9, 4)])
    assert learning_rate(config, 0) == pytest.approx(0.001)
    assert learning_rate(config, 50) == pytest.approx(0.005)
    assert learning_rate(config, 100) == pytest.approx(0.0)
    stage = OperatorStage(prepared[0].build(0), config, RuntimeConfig(device="cpu"))
    assert [stage.window(step).frames for step in (0, 69, 70, 90, 99)] == [1, 1, 2, 4, 4]


def test_the_average_follows_the_weights_and_leaves_them_alone() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    ema = EMA(layer, 0.5)
    torch.nn.init.ones_(layer.weight)
    ema.update(ema.share(1000))
    assert float(ema.averages["weight"]) == pytest.approx(0.5)
    with ema.applied():
        assert layer.weight.item() == pytest.approx(0.5)
    assert layer.weight.item() == 1.0


def test_a_share_that_is_a_tensor_averages_alike_and_a_skipped_step_not_at_all() -> None:
    layer = torch.nn.Linear(3, 5)
    ema, other = EMA(layer, 0.9), EMA(layer, 0.9)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    other.update(torch.tensor(0.1), torch.ones(()))
    assert all(torch.equal(other.averages[name], average) for name, average in ema.averages.items())
    ema.update(0.1)
    other.update(torch.tensor(0.1), torch.zeros(()))
    for name, average in ema.averages.items():
        torch.testing.assert_close(other.averages[name], average)


def test_training_lowers_the_error_below_persistence(data, tmp_path: Path, runtime: Runtime) -> None:
    run = trainer(data, tmp_path, runtime, steps=150, learning_rate=1e-2, rollout=[(0.0, 1)], noise=0.0)
    first = {name: float(value) for name, value in run.stepper.gradients(run.micro_batches(0), runtime).items()}
    run.fit()
    last = [e for e in read_events(tmp_path / "events.jsonl") if e["kind"] == "step"][-1]["parts"]
    assert last["advection"] < 0.5 * first["advection"]
    assert last["darcy"] < 0.5 * first["darcy"]


def weights(folder: Path) -> dict[str, Tensor]:
    return checkpoint.load(folder / "checkpoints")[0]


def test_a_stopped_run_resumes_bit_for_bit(data, tmp_path: Path, runtime: Runtime) -> None:
    trainer(data, tmp_path / "whole", runtime).fit()

    halted = trainer(data, tmp_path / "halted", runtime)

    def stop(step: int, text: str) -> None:
        runtime.stop.asked = step == 6  # the next step's vote tells every rank

    with pytest.raises(Stopped, match="step 7 of 12"):
        halted.fit(stop)
    runtime.stop.asked = False
    again = trainer(data, tmp_path / "halted", runtime)
    assert again.state.step == 7
    again.fit()
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "halted")
    assert whole.keys() == resumed.keys()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


def test_the_best_checkpoint_is_the_one_of_the_lowest_validation_error(data, tmp_path: Path, runtime: Runtime) -> None:
    trainer(data, tmp_path, runtime, steps=16, scores=[0.9, 0.2, 0.5, 0.6]).fit()
    best = checkpoint.find(tmp_path / "checkpoints", "best")
    assert best is not None and best.name == "step_00000008"
    kept = checkpoint.steps(tmp_path / "checkpoints")  # one that is due while another is written comes later
    assert (kept[0], kept[-1]) == (8, 16) and len(kept) <= 3


def test_a_validation_error_that_is_not_a_number_is_never_the_best(data, tmp_path: Path, runtime: Runtime) -> None:
    state = trainer(data, tmp_path, runtime, scores=[math.nan, 0.7, math.nan]).fit()
    assert (state.best_step, state.best) == (8, pytest.approx(0.7))


def test_one_hard_task_does_not_decide_for_all(data, tmp_path: Path, runtime: Runtime) -> None:
    """Errors of the two tasks at steps 4, 8 and 12: the first gets ten times better, the second a tenth worse."""
    errors = [0.1, 2.0, 0.03, 2.1, 0.01, 2.2]
    state = small.small_trainer(
        runtime, data, tmp_path, marks=errors, steps=12, batch_size=6, validate_every=4, checkpoint_every=4
    ).fit()
    assert state.best_step == 12


def test_in_doubt_the_last_weights_are_kept(data, tmp_path: Path, runtime: Runtime) -> None:
    state = trainer(data, tmp_path, runtime, scores=[0.8, 0.500, 0.505]).fit()
    assert (state.best_step, state.best) == (12, pytest.approx(0.505))


def test_a_training_without_one_finite_validation_gives_up_also_when_it_is_resumed(
    data, tmp_path: Path, runtime: Runtime
) -> None:
    for scores in ([math.nan] * 3, []):
        with pytest.raises(GaveUp, match="no validation in its 12 steps was a finite number; lower training"):
            trainer(data, tmp_path, runtime, scores=scores).fit()


def test_a_training_that_was_once_finite_keeps_those_weights(data, tmp_path: Path, runtime: Runtime) -> None:
    assert trainer(data, tmp_path, runtime, scores=[0.8, math.nan, math.nan]).fit().best_step == 4


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_noted(data, tmp_path: Path, runtime: Runtime) -> None:
    run = trainer(data, tmp_path, runtime)
    run.step()
    before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
    whole = run.micro_batches
    run.micro_batches = lambda step: (
        replace(m, samples=replace(m.samples, values=torch.full_like(m.samples.values, math.nan))) for m in whole(step)
    )
    run.step()
    assert all(torch.equal(before[n], p) for n, p in run.model.named_parameters())
    assert read_events(tmp_path / "events.jsonl")[-1]["kind"] == "skipped"
    with pytest.raises(GaveUp, match="not finite in 20 steps"):
        for _ in range(30):
            run.step()


def test_a_hard_batch_of_one_task_does_not_shrink_what_the_others_learn(data, tmp_path: Path, runtime: Runtime) -> None:
    """Each task's gradient is clipped by its own norm: the step's is their mean."""
    run = trainer(data, tmp_path, runtime, clip=0.1)
    run.stepper.gradients(run.micro_batches(0), runtime)
    easy, hard = run.stepper.of_tasks
    run.stepper.of_tasks[1] = [None if g is None else 1e6 * g for g in hard]
    expected = []
    for one, other in zip(easy, run.stepper.of_tasks[1], strict=True):
        parts = []
        for gradient, task in ((one, easy), (other, run.stepper.of_tasks[1])):
            norm = math.sqrt(sum(float(g.double().square().sum()) for g in task if g is not None))
            parts.append(0.0 if gradient is None else gradient * min(1.0, 0.1 / norm) / 2)
        expected.append(None if one is None and other is None else parts[0] + parts[1])
    run.stepper.update(0, 0.0)
    for parameter, gradient in zip(run.stepper.parameters, expected, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        if gradient is not None:
            assert torch.allclose(parameter.grad, gradient, rtol=1e-4, atol=1e-9)


def test_an_untrained_model_loses_about_one_on_any_transient_task(prepared) -> None:
    """Losses are in units of persistence's error, whatever the size of a task's changes."""
    spec, tasks = prepared
    assert loss_of(spec.build(0), window(tasks, "advection", 2)).total.mean().item() == pytest.approx(1, rel=0.3)


def test_frozen_parameters_stay_as_they_are_and_cost_nothing(
    data, tmp_path: Path, runtime: Runtime, monkeypatch
) -> None:
    build = ModelSpec.build

    def with_frozen_blocks(self: ModelSpec, seed: int = 0) -> Propagator:
        model = build(self, seed)
        model.network.blocks.requires_grad_(False)
        return model

    monkeypatch.setattr(ModelSpec, "build", with_frozen_blocks)
    run = trainer(data, tmp_path, runtime, steps=4)
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    run.fit()
    moved = {name for name, p in run.model.named_parameters() if not torch.equal(p, before[name])}
    frozen = {name for name in before if "blocks" in name}
    assert moved and frozen and not moved & frozen
    tensors, _ = checkpoint.load(tmp_path / "checkpoints")
    assert frozen <= {name.removeprefix("model.") for name in tensors}, "a checkpoint holds the whole module"
    assert not [name for name in tensors if "blocks" in name and not name.startswith("model.")]
    assert not {id(run.model.get_parameter(name)) for name in frozen} & {id(p) for p in run.optimiser.state}


def test_validation_draws_the_same_whenever_it_comes(data, tmp_path: Path, runtime: Runtime, monkeypatch) -> None:
    """Scores of two steps differ by their weights alone; two streams differ, and so does the loss's of that name."""
    run = trainer(data, tmp_path, runtime, steps=4)

    def spied(name: str) -> list[Tensor]:
        ask, seen = getattr(run.stage, name), []

        def drawing(batch, draws):
            seen.append(draws.normal("one", (2,)))
            assert not torch.equal(seen[-1], draws.normal("other", (2,)))
            return ask(batch, draws)

        monkeypatch.setattr(run.stage, name, drawing)
        return seen

    losses, validations = spied("loss"), spied("validate")
    for _ in range(2):
        run._validate()
        run.step()
    tasks = len(small.EQUATIONS)
    assert all(torch.equal(before, now) for before, now in zip(validations[:tasks], validations[tasks:], strict=True))
    assert len({tuple(drawn[0].tolist()) for drawn in [*losses, validations[0]]}) == 2 * tasks + 1


def test_a_checkpoint_of_another_model_is_refused(data, tmp_path: Path, runtime: Runtime, monkeypatch) -> None:
    trainer(data, tmp_path, runtime, steps=4).fit()
    spec, stores = small.prepared(data)
    wider = ModelSpec("spectral", small.SETTINGS | {"width": 10}, spec.tasks)
    monkeypatch.setattr(small, "prepared", lambda folder: (wider, stores))
    with pytest.raises(UserError, match="of another model"):
        trainer(data, tmp_path, runtime)


def test_normalised_fields_come_back_under_log_and_identity() -> None:
    spec = replace(small.EQUATIONS[0][0].task(), channels=(Channel("density", "log"), Channel("u")))
    scales = {"density": Scale(0.3, 2.0, 2.1), "u": Scale(0.1, 0.5, 0.7)}
    units = Normaliser(spec, Statistics("advection", 1, 0.1, (), scales))
    fields = torch.rand(2, 5, 2) + 0.5
    assert torch.allclose(units.physical(units.normalise(fields)), fields, rtol=1e-5)
    assert units.normalise(torch.tensor([[math.e, 1.4]])).tolist()[0] == pytest.approx([(1 - 0.3) / 2.0, 2.0])


def test_checkpoints_say_enough_to_rebuild_the_model(data, tmp_path: Path, runtime: Runtime) -> None:
    trainer(data, tmp_path, runtime, steps=4).fit()
    tensors, manifest = checkpoint.load(tmp_path / "checkpoints")
    assert {f"model.{name}" for name in restored(tmp_path).trainable().state_dict()} <= tensors.keys()
    assert manifest.content["stage"]["kind"] == "operator"
