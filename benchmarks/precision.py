"""Whether rounding changes a rollout's error: the same model trained in each precision, seed by seed.

    python benchmarks/precision.py --device cuda --steps 3000 --trajectories 4000    (four minutes on a large GPU)
    python benchmarks/precision.py --steps 300 --trajectories 100                    (minutes on a CPU)

Burgers of `ups bench`, on a CPU its quick one; nRMSE of rollouts from the first frame of test trajectories, with
averaged weights. "as trained": the rollout computes in the precision of training; "in float32": as `ups.load` does. The
interval is that of the ratio to float32, by bootstrap over test trajectories (each with its error averaged over seeds):
rounding is harmless where it contains 1 or lies below. The ratios of single seeds show how much of a difference is
chance in training itself.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ups.bench.contestants import Setting, Watch
from ups.bench.data import Data, prepare
from ups.bench.tasks import Model, chosen
from ups.bench.trained import Trained
from ups.config.schema import RuntimeConfig
from ups.distributed.parallel import blocks
from ups.distributed.runtime import Runtime
from ups.metrics import nrmse
from ups.metrics.bootstrap import central, draws
from ups.models.propagator import Propagator
from ups.rollout.predict import rollout

PRECISIONS: dict[str, dict[str, tuple[Literal["float32", "bfloat16"], bool]]] = {
    "cpu": {"float32": ("float32", False), "bfloat16": ("bfloat16", False)},
    "cuda": {"float32": ("float32", False), "tf32": ("float32", True), "bfloat16 and tf32": ("bfloat16", True)},
}
"""By name: `training.precision` and `runtime.tf32`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--trajectories", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    architectures = {"spectral": {"modes": 32}, "pdet_stack": {"heads": max(1, options.width // 32)}}
    with tempfile.TemporaryDirectory() as folder:
        data = burgers(Path(folder), options)
        print("| architecture | precision | nRMSE as trained | in float32 | ratio to float32 (95 %) | each seed |")
        print("|---|---|---|---|---|---|", flush=True)
        for architecture, own in architectures.items():
            exact: Tensor | None = None
            for name, (precision, tf32) in PRECISIONS[options.device].items():
                model = Model(architecture, {"width": options.width, "depth": 4} | own, 2e-3, precision=precision)
                tried = [trained(Path(folder), data, model, tf32, seed, options) for seed in range(options.seeds)]
                as_trained, in_float32 = (torch.stack(errors) for errors in zip(*tried, strict=True))
                exact = as_trained if exact is None else exact
                mine, theirs, drawn = as_trained.mean(0), exact.mean(0), draws(exact.shape[1], 0)
                low, high = central(mine[drawn].mean(1) / theirs[drawn].mean(1))
                each = ", ".join(f"{ratio:.2f}" for ratio in (as_trained.mean(1) / exact.mean(1)).tolist())
                print(
                    f"| {architecture} | {name} | {mine.mean():.5f} | {in_float32.mean():.5f} | "
                    f"{mine.mean() / theirs.mean():.3f} ({low:.3f} to {high:.3f}) | {each} |",
                    flush=True,
                )


def burgers(folder: Path, options: argparse.Namespace) -> Data:
    task = chosen(["burgers"], quick=options.device == "cpu")[0]
    with Runtime.start(RuntimeConfig(device=options.device), 0) as runtime:
        return prepare(replace(task, train=options.trajectories, batch_size=options.batch), runtime, folder)


def trained(
    folder: Path, data: Data, model: Model, tf32: bool, seed: int, options: argparse.Namespace
) -> tuple[Tensor, Tensor]:
    """The error of each test trajectory: in the precision of training, and in float32."""
    data = replace(data, task=replace(data.task, models={"ours": model}))
    with Runtime.start(RuntimeConfig(device=options.device, tf32=tf32), seed) as runtime:
        contestant = Trained("ours", Setting(data, runtime, seed, options.steps, folder))
        contestant.train(Watch(lambda step, seconds, model: 0.0, lambda step, text: None))
        judged = contestant.trained()
        as_trained = errors(judged, data)
        for block in blocks(judged):
            block.products = None  # pyright: ignore[reportArgumentType]
        torch.set_float32_matmul_precision("highest")
        in_float32 = errors(judged, data)
        contestant.close()
        return as_trained, in_float32


def errors(model: Propagator, data: Data) -> Tensor:
    with torch.no_grad():
        prediction = rollout(model, data.learned, data.test)
    return nrmse(prediction, data.test.values[:, 1:]).flatten(1).mean(1)


if __name__ == "__main__":
    main()
