"""Faults 21 and 22: another number of ranks or strategy than before, and less data than ranks."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from job import STAGE, Place, difference, make_place, start
from ranks import run_ranks
from small import EQUATIONS, Solved, prepared, small_trainer, whole

from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.track.jsonl import read_events

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    prepared(folder)
    return folder


HALF = 20


def go_on(data: Path, run: Path, until: int, strategy: str) -> tuple[int, list[float], list[list[tuple[str, int]]]]:
    """Train in float32 from where `run` stands and save: the step it began at, each step's loss over all ranks, and the
    samples that counted on this one.
    """
    with Runtime.start(RuntimeConfig(device="cpu", threads=1, strategy=strategy), 0) as rt:  # pyright: ignore[reportArgumentType]
        trainer = small_trainer(rt, data, run, steps=2 * HALF, precision="float32")
        begun, losses, samples = trainer.state.step, [], []
        while trainer.state.step < until:
            micros = list(trainer.micro_batches(trainer.state.step))
            samples.append(
                [
                    (m.samples.task, int(i))
                    for m in micros
                    for i, w in zip(m.samples.ids, m.weights, strict=True)
                    if w > 0
                ]
            )
            sums, _ = trainer.step()
            losses.append(float(rt.sum(torch.stack([sums[task] for task in trainer.stores])).mean()))
        trainer.save(wait=True)
        trainer.events.close()
        return begun, losses, samples


def together(ranks: int, *arguments: Any) -> tuple[int, list[float], list[list[tuple[str, int]]]]:
    """`go_on` on so many ranks: what they agree on, and their samples of each step in one sorted list."""
    answers = run_ranks(ranks, go_on, *arguments)
    assert all(answer[:2] == answers[0][:2] for answer in answers)
    return *answers[0][:2], [sorted(chain(*parts)) for parts in zip(*(a[2] for a in answers), strict=True)]


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], list[Any]]:
    """Losses and samples of 40 steps on two ranks."""
    return together(2, data, tmp_path_factory.mktemp("undisturbed"), 2 * HALF, "ddp")[1:]


@pytest.fixture(scope="module")
def half_trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("half") / "run"
    together(2, data, run, HALF, "ddp")
    return run


@pytest.mark.parametrize(
    ("ranks", "strategy"), [(1, "ddp"), (4, "ddp"), pytest.param(2, "fsdp2", marks=pytest.mark.smoke), (4, "hsdp")]
)
def test_fault_21_on_other_ranks_or_another_strategy_training_goes_on_as_it_would_have(
    data, undisturbed, half_trained, tmp_path, matrix, ranks, strategy
):
    run = shutil.copytree(half_trained, tmp_path / "run")
    begun, losses, samples = together(ranks, data, run, 2 * HALF, strategy)
    assert begun == HALF
    assert samples == undisturbed[1][HALF:] and all(len(each) == 7 for each in samples)
    expected = undisturbed[0][HALF:]
    differs = max(abs(ours - theirs) / theirs for ours, theirs in zip(losses, expected, strict=True))
    assert differs <= 1e-6
    matrix.row(
        21,
        fault=f"resume ddp on 2 ranks as {strategy} on {ranks} (the Trainer in ranks of its own)",
        required="same data order, next 20 losses within 1e-6 relative",
        seen=f"the same samples in every step; float32 losses within {differs:.0e}",
        repeated=HALF - begun,
    )


@pytest.mark.parametrize(("ranks", "strategy"), [(1, "ddp"), (4, "ddp"), (2, "fsdp2"), (4, "hsdp")])
def test_fault_21_the_same_command_with_other_ranks_ends_where_it_would_have(
    place, half_way, reference, matrix, ranks, strategy
):
    stopped, steps = half_way
    shutil.copytree(stopped.runs, place.runs)
    more = ("runtime.shard=2",) if strategy == "hsdp" else ()
    job = start(place, "half", f"runtime.strategy={strategy}", *more, ranks=ranks)
    assert job.wait() == 0, job.said()
    assert job.events("resumed")[-1]["step"] == steps[-1]
    differs = difference(job.run, reference)
    assert differs <= 1e-10
    matrix.row(
        21,
        fault=f"stopped with --gpus 2, the same command again with --gpus {ranks} and {strategy}",
        required="the same end",
        seen=f"resumed at step {steps[-1]}; all numbers of the last checkpoint within {differs:.0e}",
        repeated=steps[-1] - job.events("resumed")[-1]["step"],
    )


UNEVEN = {"advection": 3, "darcy": 5}
"""Validation trajectories: 2 or 4 ranks divide neither number, and 4 ranks are more than 3."""


def with_little(data: Path, run: Path, strategy: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train with two samples of each task a step; the validation scores and the last tensors."""
    with Runtime.start(RuntimeConfig(device="cpu", threads=1, strategy=strategy), 0) as rt:  # pyright: ignore[reportArgumentType]
        tasks = prepared(data)[1]
        held = {e.name: tasks[e.name].learned.normaliser.batch(Solved(e, UNEVEN[e.name]).batch) for e, _ in EQUATIONS}
        trainer = small_trainer(rt, data, run, held, steps=8, batch_size=4, validate_every=4, warmup=1)
        trainer.fit()
        trainer.events.close()
        scores = [event["score"] for event in read_events(run / "events.jsonl") if event["kind"] == "validation"]
        return scores, {name: whole(tensor) for name, tensor in trainer._tensors().items()}


@pytest.fixture(scope="module")
def on_one_rank(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[str, torch.Tensor]]:
    return run_ranks(1, with_little, data, tmp_path_factory.mktemp("one"), "ddp")[0]


@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [(2, "ddp"), (2, "fsdp2"), (4, "ddp"), pytest.param(4, "fsdp2", marks=pytest.mark.smoke)],
)
def test_fault_22_fewer_samples_than_ranks_and_uneven_validation(data, on_one_rank, tmp_path, ranks, strategy):
    expected, tensors = on_one_rank
    for scores, ours in run_ranks(ranks, with_little, data, tmp_path, strategy):
        differ = max(abs(a - b) / b for a, b in zip(scores, expected, strict=True))
        assert len(scores) == 2 and differ <= 1e-10
        numbers = max(float((ours[name] - tensor).abs().max()) for name, tensor in tensors.items())
        assert numbers <= 1e-10


LITTLE = (
    *("training.batch_size=4", "training.sampling.mode=shares", "training.steps=20", "training.validate_every=10"),
    *("tasks.advection.make.trajectories=30", "tasks.darcy.make.trajectories=50"),
)
"""Two samples of each task a step, 3 and 5 validation trajectories."""


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Path]:
    """Its data, and what one rank makes of them."""
    folder = tmp_path_factory.mktemp("little")
    place = make_place(folder, folder / "data")
    job = start(place, "alone", *LITTLE, ranks=1)
    assert job.wait() == 0, job.said()
    return place, job.run


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "ddp"), (4, "ddp"), (4, "fsdp2")])
def test_fault_22_a_job_of_fewer_samples_than_ranks_ends_like_one_rank(little, matrix, ranks, strategy):
    place, alone = little
    job = start(place, f"{strategy}{ranks}", *LITTLE, f"runtime.strategy={strategy}", ranks=ranks)
    assert job.wait() == 0, job.said()
    scores = [event["score"] for event in job.events("validation")]
    expected = [e["score"] for e in read_events(alone / STAGE / "events.jsonl") if e["kind"] == "validation"]
    assert len(scores) == 2
    differ = max(abs(a - b) / b for a, b in zip(scores, expected, strict=True))
    differs = difference(job.run, alone, 20)
    assert job.reports() == [] and differ <= 1e-10 and differs <= 1e-10
    matrix.row(
        22,
        fault=f"2 samples of each task a step, 3 and 5 validation trajectories, with --gpus {ranks} ({strategy})",
        required="defined, no hang",
        seen=f"as with --gpus 1: validation errors within {differ:.0e}, the last checkpoint within {differs:.0e}",
    )
