"""What the step's protocol costs, and how our replicated step compares with torch's DistributedDataParallel.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node=2 benchmarks/protocol.py
    UPS_SHARE_DEVICE=1 torchrun --standalone --nproc-per-node=2 benchmarks/protocol.py --device cuda     (one GPU)
    UPS_SHARE_DEVICE=1 torchrun --standalone --nproc-per-node=2 benchmarks/protocol.py --captured
    torchrun --standalone --nproc-per-node=1 benchmarks/protocol.py --captured

Both are measured in one process, step by step in turn, so that a slow moment of the machine hits both sides; the CPU
time of the process beside the wall's, which other processes lengthen. What the supervisor takes: `supervisor.py`.
Captured steps are handed to the GPU ahead of time, so they are measured in blocks of many.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ups.data.settings import DataConfig, MakeConfig, TaskConfig
from ups.data.sources import open_source
from ups.distributed import vote as voting
from ups.distributed.faults.heartbeat import Heartbeat
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.models.saved import ModelSpec
from ups.track.tracker import Silent
from ups.training.data import TaskData, prepare
from ups.training.ema import EMA
from ups.training.losses import relative_error
from ups.training.optimisers import build_optimiser, learning_rate
from ups.training.settings import TrainingConfig
from ups.training.stages.operator import OperatorStage
from ups.training.trainer import Trainer

WARM_UP = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--captured", action="store_true", help="captured steps only, on a GPU")
    options = parser.parse_args()
    device = "cuda" if options.captured else options.device
    with tempfile.TemporaryDirectory() as folder:
        shared = Path(folder)
        run = Path(tempfile.gettempdir()) / f"protocol_{os.environ['MASTER_PORT']}"  # the same on every rank
        config = RuntimeConfig(device=device, threads=1, capture="on" if options.captured else "off")
        with Runtime.start(config, 0, run) as runtime:
            task = _task(runtime, run)
            rows = (
                (_captured_overhead, _captured_speed) if options.captured else (_overhead, _replica_check, _against_ddp)
            )
            lines = [row(runtime, task, shared) for row in rows]
            if runtime.rank == 0:
                where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
                print(f"\n{where}, torch {torch.__version__}, {runtime.size} ranks\n")
                print("| what | with (ms) | without (ms) | ratio | ratio of CPU times |\n|---|---|---|---|---|")
                print("\n".join(lines))
            dist.barrier()
        if runtime.rank == 0:
            shutil.rmtree(run)


def _task(runtime: Runtime, folder: Path) -> TaskData:
    make = MakeConfig(
        equation="burgers",
        trajectories=64,
        values={"nu": [0.02]},
        settings={"points": 128, "frames": 11, "duration": 0.5},
    )
    (folder / "data").mkdir(exist_ok=True)
    source = runtime.in_turn(
        "open",
        lambda: open_source(
            "burgers", TaskConfig(make=make), DataConfig(workers=1), folder / "data", 0, lambda *_: None
        ),
    )
    return prepare(runtime, source, 1.0, {1}, folder / "store")


def _trainer(runtime: Runtime, task: TaskData, folder: Path, batch: int, **operator: int) -> Trainer:
    spec = ModelSpec("spectral", operator, (task.learned,))
    config = TrainingConfig(steps=10**6, batch_size=batch, noise=0.002)
    stage = OperatorStage(spec.build(0), config, runtime.config)
    return Trainer(runtime, stage, {"burgers": task}, config, 0, folder, {}, Silent())


def _compare(
    name: str, runtime: Runtime, ours: Callable[[], object], other: Callable[[], object], pairs: int, block: int = 1
) -> str:
    """Median milliseconds a step of both, block by block in turn, and their ratio with its standard error; the ratio of
    the medians of CPU times.
    """
    times: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    warm = max(2, WARM_UP // block)
    for number in range(2 * (warm + pairs)):
        step = (ours, other)[number % 2]
        began, used = time.perf_counter(), time.process_time()
        for _ in range(block):
            step()
        if runtime.device.type == "cuda":
            torch.cuda.synchronize()
        cpu[number % 2].append(time.process_time() - used)
        times[number % 2].append((time.perf_counter() - began) * 1e3 / block)
    draws = torch.randint(pairs, (1000, pairs), generator=torch.Generator().manual_seed(0))

    def ratio(one: list[float], other: list[float]) -> str:
        a, b = torch.tensor(one[warm:]), torch.tensor(other[warm:])
        spread = (a[draws].median(1).values / b[draws].median(1).values).std()
        return f"{a.median() / b.median():.4f} ± {spread:.4f}"

    a, b = (statistics.median(t[warm:]) for t in times)
    return f"| {name} | {a:.2f} | {b:.2f} | {ratio(*times)} | {ratio(*cpu)} |"


def _overhead(runtime: Runtime, task: TaskData, folder: Path) -> str:
    """The same step with its vote and heartbeats, and without."""
    trainer = _trainer(runtime, task, folder, 64, width=48, depth=4, modes=32)

    def bare() -> None:
        with _no_protocol():
            trainer.step()

    return _compare("vote and heartbeats, against none", runtime, trainer.step, bare, 400)


def _replica_check(runtime: Runtime, task: TaskData, folder: Path) -> str:
    """What comparing replicas adds to the mean step: its own time, once in so many steps."""
    trainer, every = _trainer(runtime, task, folder, 64, width=48, depth=4, modes=32), 100
    assert runtime.config.replica_check_every == every
    seconds: dict[str, list[tuple[float, float]]] = {"step": [], "check": []}
    for _ in range(WARM_UP + 100):
        for name, work in (("step", trainer.step), ("check", trainer._compare_replicas)):
            began, used = time.perf_counter(), time.process_time()
            work()
            seconds[name].append((time.perf_counter() - began, time.process_time() - used))
    (step, step_cpu), (check, check_cpu) = (
        [1e3 * statistics.median(t) for t in zip(*times[WARM_UP:], strict=True)] for times in seconds.values()
    )
    ratios = f"{1 + check / every / step:.4f} | {1 + check_cpu / every / step_cpu:.4f}"
    return f"| comparing replicas, in every {every}th step | {step + check / every:.2f} | {step:.2f} | {ratios} |"


@contextmanager
def _no_protocol(pace: int = 2**30) -> Iterator[None]:
    """Within, nobody votes or marks; `pace` is what the ranks would have agreed on."""
    vote, mark = voting.vote, Heartbeat.mark
    voting.vote = lambda ballot, runtime: ballot._replace(pace=pace)
    Heartbeat.mark = lambda self, phase, step=None: None
    try:
        yield
    finally:
        voting.vote, Heartbeat.mark = vote, mark


def _captured_overhead(runtime: Runtime, task: TaskData, folder: Path) -> str:
    """The same, captured, in blocks of about a second, which is how often ranks vote. Two trainers, as the steps in
    which each votes depend on its own pace.
    """
    ours, other = (_trainer(runtime, task, folder, 64, width=48, depth=4, modes=32) for _ in range(2))

    def bare() -> None:
        with _no_protocol(pace=1):
            other.step()

    return _compare("captured: vote and heartbeats, against none", runtime, ours.step, bare, 10, 500)


def _captured_speed(runtime: Runtime, task: TaskData, folder: Path) -> str:
    """A captured step against the same step run eagerly, at width 40."""
    batch, size = 64, {"width": 40, "depth": 3, "modes": 32, "head": 32}
    usual = replace(runtime, config=runtime.config.model_copy(update={"capture": "off"}))
    captured, eager = (_trainer(rt, task, folder, batch, **size) for rt in (runtime, usual))
    line = _compare(f"captured, against eager, batch {batch}", runtime, captured.step, eager.step, 15, 20)
    rates = [batch / float(ms) * 1e3 for ms in line.split("|")[2:4]]
    return f"{line.rstrip('| ')}; {rates[0]:,.0f} against {rates[1]:,.0f} samples/s |"


def _against_ddp(runtime: Runtime, task: TaskData, folder: Path) -> str:
    """Our whole step against torch's DDP with the same model, data, clipping, optimiser and averages."""
    size = {"width": 242, "depth": 4, "modes": 16}
    ours = _trainer(runtime, task, folder, 2 * 8, **size)
    theirs = _trainer(runtime, task, folder, 2 * 8, **size)
    count = sum(p.numel() for p in theirs.model.parameters())
    wrapped = DistributedDataParallel(theirs.model, gradient_as_bucket_view=True)
    optimiser = build_optimiser(theirs.model, theirs.config)
    averages, step = EMA(theirs.model, 0.99), 0

    def usual() -> None:
        nonlocal step
        optimiser.zero_grad(set_to_none=True)
        micro = next(iter(theirs.micro_batches(step)))
        batch = micro.mapped(lambda tensor: tensor.to(runtime.device)).read()
        lead = (batch.times[:, 1] - batch.times[:, 0]).to(batch.values.dtype)
        static = batch.values.new_zeros(*batch.values[:, 0, ..., 0].shape, 0)
        prediction = wrapped("burgers", batch.values[:, :1], static, batch.parameters, lead, batch.grid)
        relative_error(prediction, batch.values[:, 1]).mean().backward()
        nn.utils.clip_grad_norm_(theirs.model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(theirs.config, step)
        optimiser.step()
        averages.update(averages.share(step))
        step += 1

    return _compare(
        f"our ddp step at {count / 1e6:.1f}M parameters, against torch's DDP", runtime, ours.step, usual, 60
    )


if __name__ == "__main__":
    main()
