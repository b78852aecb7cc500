"""Whether rounding changes a rollout's error: the same model trained in each precision, seed by seed.

    python benchmarks/precision.py --device cuda --steps 20000 --trajectories 4000     (minutes on a GPU)
    python benchmarks/precision.py --steps 300 --trajectories 60 --points 64 --seeds 2  (minutes on one core)

Burgers at ν = 0.001; nRMSE of rollouts from the first frame of test trajectories, with averaged weights. "as trained":
the rollout computes in the precision of training; "in float32": as `ups.load` does. The interval is that of the ratio
to float32, by bootstrap over test trajectories (each with its error averaged over seeds): rounding is harmless where it
contains 1 or lies below. The ratios of single seeds show how much of a difference is chance in training itself.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ups.config.schema import DataConfig, MakeConfig, RuntimeConfig, TaskConfig, TrainingConfig
from ups.data.sources import Source, open_source
from ups.distributed.parallel import blocks
from ups.distributed.runtime import Runtime
from ups.metrics import nrmse
from ups.metrics.bootstrap import central, draws
from ups.models.saved import ModelSpec
from ups.rollout.predict import read_all, rollout
from ups.track.tracker import Silent
from ups.training.fit import Prepared, prepare
from ups.training.trainer import Trainer

PRECISIONS = {"float32": {}, "tf32": {"tf32": True}, "bfloat16": {}, "bfloat16 and tf32": {"tf32": True}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--trajectories", type=int, default=100)
    parser.add_argument("--points", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    widths = {"spectral": {"modes": 32}, "pdet_stack": {"heads": max(1, options.width // 32)}}
    names = [name for name in PRECISIONS if options.device == "cuda" or "tf32" not in name]
    print("| architecture | precision | nRMSE as trained | in float32 | ratio to float32 (95 %) | each seed |")
    print("|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for architecture, own in widths.items():
            settings = {"width": options.width, "depth": 4} | own
            exact: Tensor | None = None
            for name in names:
                tried = [
                    trained(Path(folder), architecture, settings, name, seed, options) for seed in range(options.seeds)
                ]
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


def trained(
    folder: Path, architecture: str, settings: dict[str, Any], name: str, seed: int, options: argparse.Namespace
) -> tuple[Tensor, Tensor]:
    """The error of each test trajectory: in the precision of training, and in float32."""
    config = RuntimeConfig(device=options.device, threads=1, **PRECISIONS[name])
    precision = "bfloat16" if name.startswith("bfloat16") else "float32"
    training = TrainingConfig.model_validate(
        {"steps": options.steps, "batch_size": options.batch, "learning_rate": 2e-3, "precision": precision}
        | {"validate_every": options.steps, "checkpoint_every": options.steps}
    )
    run = folder / f"{architecture}_{name}_{seed}".replace(" ", "_")
    run.mkdir()
    with Runtime.start(config, seed) as runtime:
        source, task = burgers(runtime, folder, options)
        spec = ModelSpec(architecture, settings, (task.learned,))
        stores = {"burgers": task.store}
        trainer = Trainer(
            runtime,
            spec.build(seed),
            stores,
            {"burgers": 1.0},
            training,
            seed,
            run,
            {},
            lambda model: {"burgers": (0.0, 1.0)},
            Silent(),
        )
        trainer.fit()
        test = read_all(source.tests["burgers"])
        with trainer.ema.applied():
            as_trained = errors(trainer, task, test)
            for block in blocks(trainer.model):
                block.products = None
            torch.set_float32_matmul_precision("highest")
            return as_trained, errors(trainer, task, test)


def errors(trainer: Trainer, task: Prepared, test: Any) -> Tensor:
    prediction = rollout(trainer.model, task.learned, test)
    return nrmse(prediction, test.values[:, 1:]).reshape(len(test), -1).mean(1)


def burgers(runtime: Runtime, folder: Path, options: argparse.Namespace) -> tuple[Source, Prepared]:
    make = MakeConfig(
        equation="burgers",
        trajectories=options.trajectories,
        values={"nu": [0.001]},
        settings={"points": options.points, "frames": 21, "duration": 1.0},
    )
    (folder / "data").mkdir(exist_ok=True)
    source = open_source("burgers", TaskConfig(make=make), DataConfig(workers=1), folder / "data", 0, lambda *_: None)
    return source, prepare(runtime, source, 1.0, {1: 1.0}, folder / "store")


if __name__ == "__main__":
    main()
