r"""Whether rounding changes a rollout's error: the same model trained in each precision, seed by seed.

    python benchmarks/precision.py --device cuda --steps 3000 --trajectories 4000    (four minutes on a large GPU)
    python benchmarks/precision.py --steps 300 --trajectories 100                    (minutes on a CPU)
    python benchmarks/precision.py --only spectral --optimiser muon --learning-rate 3e-3 --width 24 --batch 16 \
        --steps 3000 --trajectories 768                                              (a quarter of an hour on two cores)
    python benchmarks/precision.py --device cuda --contestant ours --steps 35000 --seeds 1   (a large GPU, five minutes)

Burgers of `ups bench`, on a CPU its quick one, with `--contestant` its model and batch too; nRMSE of rollouts from the
first frame of test trajectories, with averaged weights. "as trained": the rollout computes in the precision that
training ended with; "in float32": as `ups.load` does. The interval is that of the ratio to float32, by bootstrap over
test trajectories (each with its error averaged over seeds): rounding is harmless where it contains 1 or lies below. The
ratios of single seeds show how much of a difference is chance in training itself.

tf32 is a GPU's. On a CPU it is imitated: the lower 13 bits of every product's factors are cut off, of values, of
gradients and in Muon's iterations alike.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ups.bench.contestants import Setting
from ups.bench.data import Data, prepare
from ups.bench.tasks import Model, chosen
from ups.bench.trained import Trained
from ups.distributed.parallel import blocks
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.metrics import nrmse
from ups.metrics.bootstrap import central, draws
from ups.models.propagator import Propagator
from ups.rollout.operator import OperatorPredictor
from ups.rollout.predict import rollout


class Precision(NamedTuple):
    """`training.precision`, `runtime.tf32`, and the share of the steps after which products are exact."""

    training: Literal["float32", "bfloat16"] = "float32"
    tf32: bool = False
    until: float = 1.0


PRECISIONS = {
    "cpu": {
        "float32": Precision(),
        "bfloat16": Precision("bfloat16"),
        "tf32, imitated": Precision(tf32=True),
        "tf32, imitated, but for the last eighth": Precision(tf32=True, until=7 / 8),
    },
    "cuda": {
        "float32": Precision(),
        "tf32": Precision(tf32=True),
        "tf32, but for the last eighth": Precision(tf32=True, until=7 / 8),
        "bfloat16 and tf32": Precision("bfloat16", tf32=True),
    },
}
_PRODUCTS = {
    torch.ops.aten.mm.default: 0,
    torch.ops.aten.bmm.default: 0,
    torch.ops.aten.addmm.default: 1,
    torch.ops.aten.baddbmm.default: 1,
}
"""Where their factors begin."""


class Cut(TorchDispatchMode):
    """Within, products see ten bits of their factors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        first = _PRODUCTS.get(func)
        if first is not None:
            args = (*args[:first], *(_ten_bits(factor) for factor in args[first : first + 2]), *args[first + 2 :])
        return func(*args, **(kwargs or {}))


def _ten_bits(factor: Tensor) -> Tensor:
    if factor.dtype != torch.float32:
        return factor
    return (factor.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--trajectories", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--optimiser", default="adamw", choices=("adamw", "muon"))
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--only", choices=("spectral", "pdet_stack"))
    parser.add_argument("--contestant", choices=("ours", "fno"))
    options = parser.parse_args()
    task = chosen(["burgers"], quick=options.device == "cpu")[0]
    if options.contestant:
        for name in ("trajectories", "batch", "width", "optimiser", "learning_rate", "only"):
            if getattr(options, name) != parser.get_default(name):
                parser.error(f"--contestant has its own {name}; leave one of the two out")
        models = [task.models[options.contestant]]
    else:
        task = replace(task, train=options.trajectories, batch_size=options.batch)
        own = {"spectral": {"modes": 32}, "pdet_stack": {"heads": max(1, options.width // 32)}}
        models = [
            Model(name, {"width": options.width, "depth": 4} | more, options.learning_rate, options.optimiser)
            for name, more in own.items()
            if options.only in (None, name)
        ]
    with tempfile.TemporaryDirectory() as folder:
        with Runtime.start(RuntimeConfig(device=options.device), 0) as runtime:
            data = prepare(task, runtime, Path(folder))
        print("| architecture | precision | nRMSE as trained | in float32 | ratio to float32 (95 %) | each seed |")
        print("|---|---|---|---|---|---|", flush=True)
        for described in models:
            exact: Tensor | None = None
            for name, precision in PRECISIONS[options.device].items():
                model = replace(described, precision=precision.training)
                tried = [trained(Path(folder), data, model, precision, seed, options) for seed in range(options.seeds)]
                as_trained, in_float32 = (torch.stack(errors) for errors in zip(*tried, strict=True))
                exact = as_trained if exact is None else exact
                mine, theirs, drawn = as_trained.mean(0), exact.mean(0), draws(exact.shape[1], 0)
                low, high = central(mine[drawn].mean(1) / theirs[drawn].mean(1))
                each = ", ".join(f"{ratio:.2f}" for ratio in (as_trained.mean(1) / exact.mean(1)).tolist())
                print(
                    f"| {model.architecture} | {name} | {mine.mean():.5f} | {in_float32.mean():.5f} | "
                    f"{mine.mean() / theirs.mean():.3f} ({low:.3f} to {high:.3f}) | {each} |",
                    flush=True,
                )


def trained(
    folder: Path, data: Data, model: Model, precision: Precision, seed: int, options: argparse.Namespace
) -> tuple[Tensor, Tensor]:
    """The error of each test trajectory: in the precision that training ended with, and in float32."""
    data = replace(data, task=replace(data.task, models={"ours": model}))
    with Runtime.start(RuntimeConfig(device=options.device, tf32=precision.tf32), seed) as runtime, ExitStack() as cut:
        if precision.tf32 and options.device == "cpu":
            cut.enter_context(Cut())
        contestant = Trained("ours", Setting(data, runtime, seed, options.steps, folder))

        contestant.advance(int(precision.until * options.steps))
        if precision.until < 1:
            make_exact(cut)
            contestant.advance(options.steps - int(precision.until * options.steps))
        with contestant.judged() as judged:
            as_trained = errors(judged, data)
            for block in blocks(judged):
                block.products = None  # pyright: ignore[reportArgumentType]
            make_exact(cut)
            in_float32 = errors(judged, data)
        return as_trained, in_float32


def make_exact(cut: ExitStack) -> None:
    """Products are those of float32 from now on."""
    cut.close()
    torch.set_float32_matmul_precision("highest")


def errors(model: Propagator, data: Data) -> Tensor:
    prediction = rollout(OperatorPredictor(model, [data.learned]), data.learned.spec.name, data.test)
    return nrmse(prediction, data.test.values[:, 1:]).flatten(1).mean(1)


if __name__ == "__main__":
    main()
