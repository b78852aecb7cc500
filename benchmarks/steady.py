"""The steady stage on Darcy flow, of several seeds: with 5 % of the coefficient known, and with all of it.

    python benchmarks/steady.py                                      (one H200: three seeds of the sizes below)
    python benchmarks/steady.py --seeds 0                            (two CPU cores: those of `ups run steady`)
    python benchmarks/steady.py --seeds 0 tasks.darcy.make.trajectories=40 tasks.darcy.make.settings.points=16 \
        training.steps=20 stages.codec.training.steps=20 stages.steady.training.steps=20               (a minute)

What follows the options are overrides of the packaged configuration. The first table has, with 5 % known, CRPS of the
operator trained on the same partial data, of that operator dressed with Gaussian noise of its validation error, and of
the steady stage; its ratio to the dressed operator (to be at most 0.8); spread over skill and coverage. The second has,
with everything known, the relative energy norm of the error of one-shot regression, of the steady stage without chance,
of the mean of 8 of its members and of that with the least residual, before and after the same iterations of the
equation's solver; how many of these lead from each to a relative residual of 1e-6 (from the stage to be a third fewer
than from zero); and the time of prediction and iterations for each sample, in batches of 64. Finished seeds are not run
again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ups import pipeline
from ups.data.sources import open_source
from ups.equations import Darcy
from ups.fields import Batch
from ups.pipeline.config import run_config
from ups.rollout.chosen import Chosen
from ups.rollout.members import ensembles
from ups.rollout.predict import read_all, steady
from ups.training.restore import restored

TASK = "darcy"
REFINE = 4
TOLERANCE = 1e-6
SAMPLES = 64
MEMBERS = 8
MEAN, CHOSEN = f"mean of {MEMBERS}", f"chosen of {MEMBERS}"
GPU = [
    f"tasks.{TASK}.make.trajectories=10000",
    f"tasks.{TASK}.make.settings.points=64",
    f"tasks.{TASK}.latent_spacing=null",
    "training.steps=40000",
    "training.validate_every=1000",
    "stages.codec.width=48",
    "stages.codec.cell=8",
    "stages.codec.training.steps=8000",
    "stages.codec.training.batch_size=16",
    "stages.steady.width=48",
    "stages.steady.depth=4",
    "stages.steady.training.steps=12000",
    "stages.steady.training.batch_size=16",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    overrides = [*(GPU if torch.cuda.is_available() else []), *options.overrides]
    for seed in options.seeds:
        for name, own in ((f"steady_partial_{seed}", []), (f"steady_whole_{seed}", [f"tasks.{TASK}.known=null"])):
            pipeline.run("steady", [*overrides, *own, f"name={name}", f"seed={seed}"], options.runs, page=False)
    print("\nseed  CRPS: operator  dressed   steady  / dressed  spread/skill  50 %  90 %")
    for seed in options.seeds:
        print(f"{seed:4}  {partial(options.runs / f'steady_partial_{seed}')}")
    print(f"\nseed  start       energy norm  after {REFINE}  iterations to {TOLERANCE:g}  ms a sample")
    for seed in options.seeds:
        for row in whole(options.runs / f"steady_whole_{seed}"):
            print(f"{seed:4}  {row}")


def partial(run: Path) -> str:
    found = json.loads((run / "metrics.json").read_text())["tasks"][TASK]["one_step"]
    crps = found["crps"]
    numbers = " ".join(f"{crps[who]:8.5f}" for who in ("operator", "dressed", "steady"))
    judged = [found[name]["steady"] for name in ("spread_skill", "coverage_50", "coverage_90")]
    return (
        f"      {numbers} {crps['steady'] / crps['dressed']:10.3f} {judged[0]:13.2f} {judged[1]:5.2f} {judged[2]:5.2f}"
    )


def whole(run: Path) -> list[str]:
    config = run_config(run)
    source = open_source(TASK, config.tasks[TASK], config.data, run / "data", config.data_seed, lambda *_: None)
    equation = source.solvers[0][0]
    assert isinstance(equation, Darcy)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = read_all(source.tests[TASK], SAMPLES).to(device)
    a = batch.static["a"]
    solution = equation.steady_state(a)
    size = equation.energy(a, solution)
    rows = []
    for name in ("zero", "operator", "steady", MEAN, CHOSEN):
        predict = start_of(run, name, device)
        start, prediction = timed(lambda predict=predict: predict(batch))
        counts, solving = timed(lambda start=start: equation.iterations(a, start[..., 0], TOLERANCE))
        errors = [
            float((equation.energy(a, equation.refine(start, batch.static, n)[..., 0] - solution) / size).mean())
            for n in (0, REFINE)
        ]
        cost = 1000 * (prediction + solving) / len(a)
        steps = float(counts.double().mean())
        rows.append(f"{name:11} {errors[0]:11.5f} {errors[1]:8.5f} {steps:19.1f} {cost:12.3f}")
    return rows


def start_of(run: Path, name: str, device: str) -> Callable[[Batch], Tensor]:
    """Zero, what a stage says of a batch without chance, or what is made of a few members of the steady one."""
    if name == "zero":
        return lambda batch: torch.zeros_like(batch.values[:, 0])
    stage = "operator" if name == "operator" else "steady"
    predictor = restored(run / "stages" / stage).predictor().to(device)
    if name == MEAN:
        return lambda batch: torch.cat([m for _, m in ensembles(predictor, TASK, batch, 0, MEMBERS, 0)], 1).mean(0)[
            :, 0
        ]
    if name == CHOSEN:
        predictor = Chosen(predictor, MEMBERS, 1, MEMBERS)
    return lambda batch: steady(predictor, TASK, batch)[:, 0]


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """The result of the second call, and its seconds: the first one makes tables."""
    work()
    began = time.perf_counter()
    found = work()
    found.sum().item()
    return found, time.perf_counter() - began


if __name__ == "__main__":
    main()
