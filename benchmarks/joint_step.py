"""What a training step of many tasks costs beside steps of the same tasks one by one.

    python benchmarks/joint_step.py universal                                    (one GPU: two minutes)
    python benchmarks/joint_step.py universal --profile 5 stages.operator.experts=4

Each task's own network, of the same settings and the samples a step that it would have alone, is timed by itself; then
the joint model. Its samples a second are set beside those of the same samples one task after the other. The roofline is
that of `ups bench`: FLOP and bytes of unfused operations, beside what the device was measured to do.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

from ups.bench import roofline
from ups.distributed.runtime.start import Runtime
from ups.pipeline.config import load_run
from ups.pipeline.data import data_of
from ups.pipeline.trainings import compared_plans, stage_plans
from ups.training.capture import CapturedStep
from ups.training.fit import Plan
from ups.training.trainer import Trainer

BLOCKS, SECONDS = 5, 0.3
SPECIALIST = "compare.specialist={architecture: spectral, per_task: true}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as in `ups run`")
    parser.add_argument("--trajectories", type=int, default=60, help="made of each task")
    parser.add_argument("--profile", type=int, default=0, metavar="STEPS", help="list the kernels of so many steps")
    parser.add_argument("--joint-only", action="store_true")
    options = parser.parse_intermixed_args()
    overrides = [SPECIALIST, *options.overrides]
    names = list(load_run(options.config, overrides).tasks)
    overrides += [f"tasks.{name}.make.trajectories={options.trajectories}" for name in names]
    config = load_run(options.config, overrides)
    with tempfile.TemporaryDirectory() as folder, Runtime.start(config.runtime, config.seed) as runtime:
        tasks, _ = data_of(runtime, config, Path(folder))
        ceilings = roofline.measure(runtime.device)
        plans = {} if options.joint_only else compared_plans(config, tasks, Path(folder))["specialist"]
        print("| step | samples | ms | samples/s | × roofline | parameters |\n|---|---|---|---|---|---|", flush=True)
        alone = {name: _timed(name, plan, runtime, ceilings, 0) for name, plan in plans.items()}
        plan = next(iter(stage_plans(config, tasks, Path(folder)).values()))
        counts, seconds = _timed("joint", plan, runtime, ceilings, options.profile)
    if alone:
        one_by_one = sum(counts[name] * own / part[name] for name, (part, own) in alone.items())
        print(f"\njoint / one by one: {one_by_one / seconds:.2f} of the samples a second")


def _timed(
    title: str, plan: Plan, runtime: Runtime, ceilings: roofline.Ceilings, profiled: int
) -> tuple[dict[str, int], float]:
    """The samples of each task in a step, and a step's seconds."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = replace(plan, directory=Path(folder)).trainer(runtime)
        counts = {part.task: len(part) for part in trainer._indices(0)}
        seconds = _seconds_per_step(trainer, runtime.device)
        if profiled:
            _print_kernels(trainer, profiled)
        parameters = sum(p.numel() for p in trainer.model.parameters())
        least = ceilings.roofline(*_counted(trainer, runtime))
        total = sum(counts.values())
        print(
            f"| {title} | {total} | {1e3 * seconds:.2f} | {total / seconds:.0f} | {seconds / least:.1f} | "
            f"{parameters / 1e6:.2f} M |",
            flush=True,
        )
        trainer.events.close()
    return counts, seconds


def _seconds_per_step(trainer: Trainer, device: torch.device) -> float:
    for _ in range(5):
        trainer.step()
    blocks, steps = [], 3
    while len(blocks) < BLOCKS:
        roofline.synchronise(device)
        began = time.perf_counter()
        for _ in range(steps):
            trainer.step()
        roofline.synchronise(device)
        seconds = time.perf_counter() - began
        if seconds < SECONDS:
            steps *= 2
        else:
            blocks.append(seconds / steps)
    return median(blocks)


def _counted(trainer: Trainer, runtime: Runtime) -> tuple[float, int]:
    """FLOP and bytes of one step, run eagerly."""
    step = trainer.stepper.eager if isinstance(trainer.stepper, CapturedStep) else trainer.stepper

    def work() -> None:
        step.gradients(list(trainer.micro_batches(0)), runtime)
        step.update(0, 0.0)

    counts = roofline.count_step(work, trainer.model, trainer.optimiser)
    return counts.flop, counts.moved


def _print_kernels(trainer: Trainer, steps: int) -> None:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as traced:
        for _ in range(steps):
            trainer.step()
        torch.cuda.synchronize()
    kernels = [k for k in traced.key_averages() if k.self_device_time_total > 0]
    kernels.sort(key=lambda kernel: -kernel.self_device_time_total)
    total, calls = sum(k.self_device_time_total for k in kernels), sum(k.count for k in kernels)
    print(f"{calls / steps:.0f} kernels a step, {1e-3 * total / steps:.2f} ms of them together")
    for k in kernels[:45]:
        print(f"{1e-3 * k.self_device_time_total / steps:8.3f} ms {k.count / steps:6.0f} × {k.key[:150]}")


if __name__ == "__main__":
    main()
