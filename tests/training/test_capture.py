"""Steps replayed as CUDA graphs: the same path as eager ones, to the last bit, and eager where graphs cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small
import torch
from torch import Tensor

from ups.distributed.faults import injection
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import GaveUp, UserError
from ups.models.saved import ModelSpec
from ups.track.jsonl import read_events
from ups.training.capture import CapturedStep
from ups.training.trainer import Trainer

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captured")
    small.prepared(folder)
    return folder


def train(
    data: Path,
    run: Path,
    capture: str,
    act: Callable[[Trainer], Any] = Trainer.fit,
    runtime: dict[str, Any] | None = None,
    **changes: Any,
) -> tuple[Trainer, dict[str, Tensor]]:
    """`act` on a trainer of both tasks with deterministic kernels; rollouts grow longer after half of the steps."""
    settings = {"device": "cuda", "threads": 1, "deterministic": True, "capture": capture} | (runtime or {})
    with Runtime.start(RuntimeConfig(**settings), 0, run) as rt:
        trainer = small.small_trainer(rt, data, run, **({"precision": "float32"} | changes))
        act(trainer)
        return trainer, {name: small.whole(tensor).cpu() for name, tensor in trainer._tensors().items()}


def kinds(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run / "events.jsonl") if event["kind"] == kind]


def different(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@on_a_gpu
@pytest.mark.parametrize(
    ("runtime", "changes"),
    [
        ({}, {}),
        ({"placement": "mapped"}, {"precision": "float64"}),
        ({"micro_batch": 2}, {"strides": {1: 1.0, 2: 1.0}}),
        ({"checkpoint_activations": True}, {"precision": "bfloat16", "noise": 0.0}),
        ({}, {"optimiser": "muon"}),
    ],
    ids=["plain", "float64 from mapped files", "micro-batches and strides", "recomputed bfloat16", "Muon"],
)
def test_captured_steps_are_eager_steps_bit_for_bit(data: Path, tmp_path: Path, runtime, changes) -> None:
    trainer, captured = train(data, tmp_path / "captured", "on", runtime=runtime, **changes)
    _, eager = train(data, tmp_path / "eager", "off", runtime=runtime, **changes)
    assert isinstance(trainer.stepper, CapturedStep)
    assert len(trainer.stepper.recordings) == 2 and trainer.stepper.replayed  # one for each length of rollout
    assert different(captured, eager) == []
    losses = [[event["loss"] for event in kinds(tmp_path / name, "step")] for name in ("captured", "eager")]
    assert losses[0] == losses[1] and math.isfinite(losses[0][-1])


@on_a_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [("pdet_stack", {}), ("pdet_unet", {"window": 16}), ("pdet_unet", {"window": 9, "channels": "separate"})],
)
def test_transformers_are_captured_too(
    data: Path, tmp_path: Path, architecture: str, settings: dict[str, Any], precision: str, monkeypatch
) -> None:
    spec, stores = small.prepared(data)
    sizes = {"width": 16, "depth": 2, "heads": 2, "head": 8, "conditions": 8}
    described = ModelSpec(architecture, sizes | settings, spec.tasks)
    monkeypatch.setattr(small, "prepared", lambda folder: (described, stores))
    runs = [train(data, tmp_path / capture, capture, precision=precision)[1] for capture in ("on", "off")]
    assert different(*runs) == []


@on_a_gpu
@pytest.mark.parametrize("task", [0, 1], ids=["advection", "darcy"])
@pytest.mark.parametrize(
    ("baseline", "settings"),
    [("fno", {"width": 8, "modes": 4, "depth": 2, "padding": 0.125}), ("unet", {"width": 8})],
    ids=["fno", "unet"],
)
def test_the_baselines_are_captured_too(
    data: Path, tmp_path: Path, baseline: str, settings: dict[str, Any], task: int, monkeypatch
) -> None:
    spec, stores = small.prepared(data)
    learned = spec.tasks[task]
    described = ModelSpec(baseline, settings, (learned,))
    monkeypatch.setattr(small, "prepared", lambda folder: (described, {learned.spec.name: stores[learned.spec.name]}))
    runs = [train(data, tmp_path / capture, capture)[1] for capture in ("on", "off")]
    assert different(*runs) == []


@on_a_gpu
def test_recording_a_step_leaves_no_trace(data: Path, tmp_path: Path) -> None:
    seen: list[dict[str, Tensor]] = []

    def act(trainer: Trainer) -> None:
        for _ in range(5):
            trainer.step()
        seen.append({name: tensor.clone() for name, tensor in trainer._tensors().items()})
        trainer.stepper.gradients(trainer.micro_batches(15), trainer.runtime)  # rollouts of two steps: a new shape
        assert not trainer.stepper.replayed
        seen.append(trainer._tensors())

    train(data, tmp_path, "on", act)
    words = {4: torch.int32, 8: torch.int64}
    before, after = ({n: t.detach().view(words[t.element_size()]) for n, t in state.items()} for state in seen)
    assert different(before, after) == []


@on_a_gpu
def test_a_step_is_recorded_again_when_products_are_rounded_otherwise(data: Path, tmp_path: Path) -> None:
    def act(trainer: Trainer) -> None:
        for precision in ("highest", "high", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            trainer.step()

    before = torch.get_float32_matmul_precision()
    try:
        captured, ours = train(data, tmp_path / "captured", "on", act)
        _, eager = train(data, tmp_path / "eager", "off", act)
    finally:
        torch.set_float32_matmul_precision(before)
    assert isinstance(captured.stepper, CapturedStep) and len(captured.stepper.recordings) == 2
    assert not different(ours, eager)


@on_a_gpu
def test_a_run_goes_on_captured_or_eager_from_either_s_checkpoint(data: Path, tmp_path: Path) -> None:
    def to_step(last: int) -> Callable[[Trainer], None]:
        def act(trainer: Trainer) -> None:
            while trainer.state.step < last:
                trainer.step()
            trainer.save(wait=True)

        return act

    whole = train(data, tmp_path / "whole", "off", to_step(18))[1]
    for first, second in (("on", "off"), ("off", "on")):
        run = tmp_path / f"{first} then {second}"
        train(data, run, first, to_step(7))
        resumed, tensors = train(data, run, second, to_step(18))
        assert [event["step"] for event in kinds(run, "resumed")] == [7]
        assert isinstance(resumed.stepper, CapturedStep) == (second == "on")
        assert different(tensors, whole) == []


@on_a_gpu
def test_a_step_that_cannot_be_captured_runs_eagerly_and_says_why(data: Path, tmp_path: Path) -> None:
    def act(trainer: Trainer) -> None:
        stage, loss = trainer.stage, trainer.stage.loss

        def waits(batch, noise=None):
            parts = loss(batch, noise)
            assert parts.total.sum().item() > 0  # a graph cannot wait for the GPU
            return parts

        stage.loss = waits
        trainer.fit()

    with pytest.warns(UserWarning, match="could not be captured"):
        _, fallen = train(data, tmp_path / "auto", "auto", act)
    _, eager = train(data, tmp_path / "off", "off")
    assert different(fallen, eager) == []
    assert ["captur" in event["reason"] for event in kinds(tmp_path / "auto", "eager")] == [True]
    with pytest.raises(RuntimeError, match="captur"):
        train(data, tmp_path / "on", "on", act)


@on_a_gpu
def test_a_fault_within_a_pass_turns_capture_off_and_one_between_passes_does_not(
    data: Path, tmp_path: Path, monkeypatch
) -> None:
    for place, expected in (("loss", ["a fault is to be injected"]), ("update", [])):
        monkeypatch.setattr(injection, "_FAULTS", injection.parse(f"term at {place} rank 0 step 10000"))
        train(data, tmp_path / place, "auto", steps=2)
        reasons = [event["reason"] for event in kinds(tmp_path / place, "eager")]
        assert [reason[: len(start)] for reason, start in zip(reasons, expected, strict=True)] == expected


@on_a_gpu
def test_skipped_steps_are_named_and_counted_while_steps_are_replayed(data: Path, tmp_path: Path) -> None:
    def act(trainer: Trainer) -> None:
        whole, bad = trainer.micro_batches, {3, 4, 12}

        def some_without_numbers(step: int):
            for micro in whole(step):
                values = micro.samples.values * (math.nan if step in bad else 1.0)
                yield replace(micro, samples=replace(micro.samples, values=values))

        trainer.micro_batches = some_without_numbers
        trainer.fit()
        assert trainer.state.skipped == 0

    captured, eager = (
        train(data, tmp_path / capture, capture, act, {"placement": "mapped"})[1] for capture in ("on", "off")
    )
    assert different(captured, eager) == []
    for capture in ("on", "off"):
        assert [event["step"] for event in kinds(tmp_path / capture, "skipped")] == [3, 4, 12]


@on_a_gpu
def test_twenty_skipped_steps_in_a_row_end_a_captured_run(data: Path, tmp_path: Path) -> None:
    def act(trainer: Trainer) -> None:
        whole = trainer.micro_batches
        trainer.micro_batches = lambda step: (
            replace(m, samples=replace(m.samples, values=m.samples.values * math.nan)) for m in whole(step)
        )
        with pytest.raises(GaveUp, match="not finite in 20 steps in a row, up to step 19"):
            trainer.fit()

    train(data, tmp_path, "on", act, {"placement": "mapped"}, steps=100)


@on_a_gpu
def test_a_step_that_does_not_fit_while_it_is_recorded_is_taken_in_smaller_parts(data: Path, tmp_path: Path) -> None:
    """Out of memory in the eager passes before a recording follows the eager protocol."""

    def act(trainer: Trainer) -> None:
        loss, full = trainer.stage.loss, [True]

        def once_too_large(batch, noise=None):
            if full[0] and batch.task == "darcy":
                full[0] = False
                raise torch.OutOfMemoryError("out of memory, on purpose")
            return loss(batch, noise)

        trainer.stage.loss = once_too_large
        trainer.fit()

    trainer, tensors = train(data, tmp_path / "small", "on", act, precision="float64")
    _, whole = train(data, tmp_path / "whole", "on", precision="float64")
    assert trainer.micro == {"advection": 4, "darcy": 1}
    assert max(float((tensors[n] - whole[n]).abs().max()) for n in whole) <= 1e-10
    assert [event["task"] for event in kinds(tmp_path / "small", "out_of_memory")] == ["darcy"]


def test_capture_is_refused_on_a_cpu_where_it_is_demanded(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runtime\.capture is on, but only steps on a GPU"):
        train(data, tmp_path, "on", runtime={"device": "cpu"})


def test_a_cpu_runs_eagerly_without_a_word(data: Path, tmp_path: Path) -> None:
    train(data, tmp_path, "auto", runtime={"device": "cpu"}, steps=1)
    assert kinds(tmp_path, "eager") == []
