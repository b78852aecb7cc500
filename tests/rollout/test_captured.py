"""Rollouts replayed as CUDA graphs: the eager result to the last bit, with the weights of the moment."""

from __future__ import annotations

import gc
import warnings
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import small
import torch

from ups.distributed.parallel import blocks
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.fields import Batch
from ups.models.propagator import Propagator
from ups.models.saved import ModelSpec, TrainedTask
from ups.rollout import captured
from ups.rollout.captured import EAGER_STEPS, MOST
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import one_step, rollout, steady
from ups.simulator import Simulator
from ups.track.jsonl import read_events
from ups.training.ema import EMA
from ups.training.stages.operator import OperatorStage

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return small.prepared(tmp_path_factory.mktemp("rollouts"))[0]


def random_model(spec: ModelSpec, device: str = "cuda") -> Propagator:
    """Weights that do something: the untrained model's last layer is zero."""
    model = spec.build(0)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if not parameter.detach().any():
            parameter.data.normal_(std=0.3, generator=generator)
    return model.to(device).requires_grad_(False)


def solved(learned: TrainedTask, count: int) -> Batch:
    """So many trajectories of the task."""
    equation = next(equation for equation, _ in small.EQUATIONS if equation.name == learned.spec.name)
    return equation.solve(5, range(count))


def predicted(predict, model: Propagator, learned: TrainedTask, batch: Batch, capture: bool = True) -> torch.Tensor:
    return predict(OperatorPredictor(model, [learned], capture), learned.spec.name, batch)


def recordings(model: Propagator) -> int:
    graphs = captured._GRAPHS.get(model)
    return len(graphs.recordings) if graphs else 0


@on_a_gpu
@pytest.mark.parametrize("history", [1, 3])
def test_a_captured_rollout_is_the_eager_one_bit_for_bit(spec: ModelSpec, history: int) -> None:
    advection = spec.tasks[0]
    spec = replace(spec, tasks=(replace(advection, spec=replace(advection.spec, history=history)),))
    model, learned = random_model(spec), spec.tasks[0]
    batch = solved(learned, 70)  # one whole chunk and a smaller one
    for predict in (rollout, one_step):
        eager = predicted(predict, model, learned, batch, capture=False)
        first, second = predicted(predict, model, learned, batch), predicted(predict, model, learned, batch)
        assert torch.equal(first, eager) and torch.equal(second, eager)
        assert float((eager[:, -1] - eager[:, 0]).abs().max()) > 0.01
    assert recordings(model) == 2  # one for each size of chunk, for rollouts and single steps alike


@on_a_gpu
def test_the_baseline_and_steady_solves_are_captured_too(spec: ModelSpec) -> None:
    advection, darcy = spec.tasks
    fno = ModelSpec("fno", {"width": 8, "modes": 4, "depth": 2, "padding": 0.125}, (advection,))
    model, batch = random_model(fno), solved(advection, 6)
    assert torch.equal(
        predicted(rollout, model, advection, batch), predicted(rollout, model, advection, batch, capture=False)
    )
    assert recordings(model) == 1
    model, batch = random_model(spec), solved(darcy, 6)
    eager = predicted(steady, model, darcy, batch, capture=False)
    assert all(torch.equal(predicted(steady, model, darcy, batch), eager) for _ in range(EAGER_STEPS + 2))
    assert recordings(model) == 1


@on_a_gpu
def test_weights_that_are_changed_in_place_are_the_ones_used(spec: ModelSpec) -> None:
    model, learned = random_model(spec), spec.tasks[0]
    batch = solved(learned, 4)
    average = EMA(model.requires_grad_(), 0.9)  # it averages what is trained
    model.requires_grad_(False)
    with torch.no_grad():
        for value in average.averages.values():
            value.mul_(0.7)
    before = predicted(rollout, model, learned, batch)
    assert recordings(model) == 1
    with average.applied():
        within = predicted(rollout, model, learned, batch)
        assert torch.equal(within, predicted(rollout, model, learned, batch, capture=False))
    assert not torch.equal(within, before)
    assert torch.equal(predicted(rollout, model, learned, batch), before)
    assert recordings(model) == 1


@on_a_gpu
def test_weights_that_are_moved_are_recorded_anew(spec: ModelSpec) -> None:
    model, learned = random_model(spec), spec.tasks[0]
    batch = solved(learned, 4)
    single = predicted(rollout, model, learned, batch)
    model.double()
    double = predicted(rollout, model, learned, batch)
    assert torch.equal(double, predicted(rollout, model, learned, batch, capture=False))
    assert not torch.equal(double.float(), single.float())
    assert recordings(model) == 1


@on_a_gpu
def test_another_precision_is_recorded_anew(spec: ModelSpec) -> None:
    model, learned = random_model(spec), spec.tasks[0]
    batch = solved(learned, 4)
    exact = predicted(rollout, model, learned, batch)
    for block in blocks(model):
        block.products = torch.bfloat16
    rounded = predicted(rollout, model, learned, batch)
    assert torch.equal(rounded, predicted(rollout, model, learned, batch, capture=False))
    assert not torch.equal(rounded, exact)


def test_a_step_is_bound_to_places_and_precision(spec: ModelSpec) -> None:
    model = spec.build(0)
    torch.set_float32_matmul_precision("highest")  # whatever a training of another test has set
    before = captured.bound_to(model)
    assert captured.bound_to(model) == before
    blocks(model)[0].products = torch.bfloat16  # pyright: ignore[reportArgumentType]
    rounded = captured.bound_to(model)
    torch.set_float32_matmul_precision("high")
    try:
        fast = captured.bound_to(model)
        torch.backends.cuda.matmul.fp32_precision = "ieee"  # the other way to say it: torch refuses to mix them
        assert captured.bound_to(model) not in (fast, before)
    finally:
        torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
    try:
        convolved = captured.bound_to(model)
    finally:
        torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
    moved = captured.bound_to(model.double())
    assert len({str(bound) for bound in (before, rounded, fast, convolved, moved)}) == 5


@on_a_gpu
def test_rollouts_of_one_shape_may_be_interleaved(spec: ModelSpec) -> None:
    model = random_model(spec)
    sim, (learned, _) = Simulator(OperatorPredictor(model, spec.tasks)), spec.tasks
    starts = solved(learned, 2).values[:, 0].cuda()
    alone = [sim.rollout(u0, steps=6, conditions={"beta": 0.4}).values for u0 in starts]
    arguments = (
        torch.zeros(1, 32, 0).cuda(),
        {"beta": torch.tensor([0.4]).cuda()},
        torch.tensor([learned.spec.dt]).cuda(),
    )
    parts = [captured.stepper(model, "advection", u0[None, None], *arguments, learned.grid) for u0 in starts]
    histories = [learned.normaliser.normalise(u0[None, None]) for u0 in starts]
    for _ in range(6):
        histories = [
            step(history, arguments[0], arguments[2])[:, None] for step, history in zip(parts, histories, strict=True)
        ]
    for history, values in zip(histories, alone, strict=True):
        assert torch.equal(learned.normaliser.physical(history)[0, 0], values[-1])


@on_a_gpu
def test_a_simulator_s_rollout_is_captured_and_still_differentiable(spec: ModelSpec) -> None:
    model = random_model(spec)
    sim, learned = Simulator(OperatorPredictor(model, spec.tasks)), spec.tasks[0]
    u0 = solved(learned, 3).values[:, 0].cuda()
    plain = sim.rollout(u0, steps=8, conditions={"beta": 0.4}).values
    assert recordings(model) == 1
    followed = sim.rollout(u0.clone().requires_grad_(), steps=8, conditions={"beta": 0.4}).values
    assert followed.requires_grad and torch.allclose(followed, plain, rtol=1e-4, atol=1e-4)  # other products' order
    followed.square().sum().backward()
    at = torch.tensor([[0.2], [0.71]])
    points = sim.rollout(u0, steps=8, conditions={"beta": 0.4}, at=at).values
    assert points.shape == (3, 8, 2, 1) and recordings(model) == 1
    with torch.inference_mode():
        assert torch.equal(sim.rollout(u0, steps=8, conditions={"beta": 0.4}).values, plain)


@on_a_gpu
def test_graphs_are_few_and_go_with_their_model(spec: ModelSpec) -> None:
    model, learned = random_model(spec), spec.tasks[0]
    batch = solved(learned, MOST + 3)
    for size in range(1, MOST + 4):
        part = batch.select(list(range(size)))
        assert torch.equal(
            predicted(rollout, model, learned, part), predicted(rollout, model, learned, part, capture=False)
        )
        assert recordings(model) <= MOST
    assert recordings(model) == 3  # the first of them was one too many
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@on_a_gpu
def test_a_step_that_cannot_be_captured_runs_eagerly_and_says_why_once(spec: ModelSpec) -> None:
    model, learned = random_model(spec), spec.tasks[0]
    batch = solved(learned, 4)
    eager = predicted(rollout, model, learned, batch, capture=False)

    def wait(module: torch.nn.Module, arguments: tuple) -> None:
        torch.cuda.synchronize()  # which a capture does not allow

    model.register_forward_pre_hook(wait)
    with pytest.warns(UserWarning, match="could not be captured.*run eagerly"):
        assert torch.equal(predicted(rollout, model, learned, batch), eager)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(predicted(rollout, model, learned, batch), eager)
    assert recordings(model) == 0


@on_a_gpu
def test_validation_between_captured_steps_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    scores, ends = [], []
    for capture in (True, False):
        folder = tmp_path / str(capture)
        with Runtime.start(RuntimeConfig(device="cuda", threads=1, deterministic=True), 0, folder) as rt:
            trainer = small.small_trainer(rt, tmp_path / "data", folder, precision="float32", validate_every=4)
            assert isinstance(trainer.stage, OperatorStage)
            trainer.stage.capture = capture  # of its rollouts; steps are captured in either case
            trainer.fit()
            ends.append({name: small.whole(tensor).cpu() for name, tensor in trainer._tensors().items()})
        events = read_events(folder / "events.jsonl")
        scores.append([event["errors"] for event in events if event["kind"] == "validation"])
    assert len(scores[0]) == 5 and scores[0] == scores[1]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_on_a_cpu_nothing_is_recorded(spec: ModelSpec) -> None:
    model, learned = random_model(spec, "cpu"), spec.tasks[0]
    batch = solved(learned, 3)
    assert torch.equal(
        predicted(rollout, model, learned, batch), predicted(rollout, model, learned, batch, capture=False)
    )
    assert recordings(model) == 0
