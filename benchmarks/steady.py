"""The steady stage on Darcy flow, of several seeds: with 5 % of the coefficient known, and with all of it.

    python benchmarks/steady.py                                      (one H200: the sizes below; else: `ups run steady`)
    python benchmarks/steady.py --seeds 0 1 2
    python benchmarks/steady.py tasks.darcy.make.trajectories=40 tasks.darcy.make.settings.points=16 \
        training.steps=20 stages.codec.training.steps=20 stages.steady.training.steps=20               (a minute)

(One H200: at most 500 s for each seed, estimated: 280 of them are trainings.)

What follows the options are overrides of the packaged configuration. The first table has, with 5 % known, CRPS of the
operator trained on the same partial data, of that operator dressed with Gaussian noise of its validation error, and of
the steady stage; its ratio to the dressed operator (to be at most 0.8); spread over skill and coverage. The second has,
with everything known, the relative energy norm of the error of one-shot regression, of the steady stage without chance,
of the mean of 8 of its members and of that with the least residual, before and after the same iterations of the
equation's solver; how many of these lead from each to a relative residual of 1e-6 (from the stage to be a third fewer
than from zero); and the time of prediction and iterations for each sample, in batches of 64. Both runs of a seed share
its data and its codec. Finished trainings are not run again, and where OUT/steady_SEED.json is there, its numbers are
printed and nothing is run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ups import pipeline
from ups.data.sources import Source, open_source
from ups.equations import Darcy
from ups.errors import UserError
from ups.evaluation.cheap import DRESSED, cheap_ensembles
from ups.fields import Batch
from ups.metrics.ensembles import LEVELS, Members, coverage, crps, spread_and_skill
from ups.models.predictor import Predictor
from ups.pipeline.bench import write_json
from ups.pipeline.config import run_config
from ups.rollout.chosen import Chosen
from ups.rollout.members import ensembles
from ups.rollout.predict import read_all, steady
from ups.training.restore import restored

TASK = "darcy"
REFINE = 4
TOLERANCE = 1e-6
SAMPLES = 64
JUDGED = 256
"""Test samples of ensembles, at most, and validation samples that size the noise of the dressed one."""
MEMBERS = 8
MEAN, CHOSEN = f"mean of {MEMBERS}", f"chosen of {MEMBERS}"
STARTS = ("zero", "operator", "steady", MEAN, CHOSEN)
GPU = [
    f"tasks.{TASK}.make.trajectories=20000",
    f"tasks.{TASK}.make.settings.points=64",
    f"tasks.{TASK}.latent_spacing=null",
    "training.seconds=60",
    "training.steps=2000",
    "training.validate_every=250",
    "training.checkpoint_every=2000",
    "stages.codec.width=48",
    "stages.codec.cell=8",
    "stages.codec.training.seconds=20",
    "stages.codec.training.batch_size=16",
    "stages.steady.width=48",
    "stages.steady.depth=4",
    "stages.steady.training.seconds=70",
    "stages.steady.training.batch_size=16",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("bench"))
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    overrides = [*(GPU if torch.cuda.is_available() else []), *options.overrides]
    results = {seed: finished(overrides, options.out, seed) for seed in options.seeds}
    print("\nseed  CRPS: operator  dressed   steady  / dressed  spread/skill  50 %  90 %")
    for seed, found in results.items():
        own = found["partial"]
        crps = " ".join(f"{own[who]:8.5f}" for who in ("operator", "dressed", "steady"))
        inside = " ".join(f"{own[name]:5.2f}" for name in ("coverage_50", "coverage_90"))
        print(f"{seed:4}        {crps} {own['steady'] / own['dressed']:10.3f} {own['spread_skill']:13.2f} {inside}")
    print(f"\nseed  start       energy norm  after {REFINE}  iterations to {TOLERANCE:g}  fewer  ms a sample")
    for seed, found in results.items():
        for name, own in found["whole"].items():
            fewer = 1 - own["iterations"] / found["whole"]["zero"]["iterations"]
            print(
                f"{seed:4}  {name:11} {own['norm']:11.5f} {own['refined']:8.5f} {own['iterations']:19.1f} {fewer:6.0%} "
                f"{1000 * own['seconds']:12.3f}"
            )


def finished(overrides: list[str], out: Path, seed: int) -> dict[str, Any]:
    """The numbers of a seed: those that are kept, or those of its two runs, which are made or gone on with."""
    path = out / f"steady_{seed}.json"
    if path.is_file():
        known = json.loads(path.read_text())
        if known["asked"] != overrides:
            raise UserError(f"{path} holds results of other settings; choose another --out, or remove it")
        return known["found"]
    some, all_known = out / f"steady_partial_{seed}", out / f"steady_whole_{seed}"
    asked = [*overrides, f"seed={seed}", f"data.root={(out / 'data' / f'seed{seed}').absolute()}"]
    pipeline.train("steady", [*asked, f"name={some.name}"], out)
    if not all_known.is_dir():  # solutions, of which the codec is, do not know what is told of the coefficient
        shutil.copytree(some / "stages" / "codec", all_known / "stages" / "codec", symlinks=True)
    pipeline.train("steady", [*asked, f"tasks.{TASK}.known=null", f"name={all_known.name}"], out)
    found = {"partial": partial(some, seed), "whole": whole(all_known)}
    write_json(path, {"asked": overrides, "found": found})
    return found


def device_here() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def source_of(run: Path) -> Source:
    config = run_config(run)
    return open_source(TASK, config.tasks[TASK], config.data, run / "data", config.data_seed, lambda *_: None)


def partial(run: Path, seed: int) -> dict[str, float]:
    """Of the test samples, in ensembles of as many members."""
    source, device, members = source_of(run), device_here(), run_config(run).evaluation.members
    test, validation = (read_all(data, JUDGED).to(device) for data in (source.tests[TASK], source.validation))
    operator, sampled = (restored(run / "stages" / name).predictor().to(device) for name in ("operator", "steady"))
    dressed = cheap_ensembles({"operator": operator}, TASK, validation, 0, members, seed)[DRESSED]

    def of(predictor: Predictor, count: int = members) -> Members:
        return torch.cat([part for _, part in ensembles(predictor, TASK, test, 0, count, seed)], 1)

    truth, samples = test.values, of(sampled)
    scored = {"operator": of(operator, 1), DRESSED: of(dressed), "steady": samples}
    spread, skill = (values.mean(0) for values in spread_and_skill(samples, truth))
    return {
        **{name: float(crps(made, truth).mean()) for name, made in scored.items()},
        "spread_skill": float((spread / skill).sqrt().mean()),
        **{f"coverage_{100 * level:.0f}": float(coverage(samples, truth, level).mean()) for level in LEVELS},
    }


def whole(run: Path) -> dict[str, dict[str, float]]:
    source = source_of(run)
    equation = source.solvers[0][0]
    assert isinstance(equation, Darcy)
    batch = read_all(source.tests[TASK], SAMPLES).to(device_here())
    a = batch.static["a"]
    solution = equation.steady_state(a)
    size = equation.energy(a, solution)
    rows = {}
    for name in STARTS:
        predict = start_of(run, name, device_here())
        start, prediction = timed(lambda predict=predict: predict(batch))
        counts, solving = timed(lambda start=start: equation.iterations(a, start[..., 0], TOLERANCE))
        errors = [
            float((equation.energy(a, equation.refine(start, batch.static, n)[..., 0] - solution) / size).mean())
            for n in (0, REFINE)
        ]
        rows[name] = {
            "norm": errors[0],
            "refined": errors[1],
            "iterations": float(counts.double().mean()),
            "seconds": (prediction + solving) / len(a),
        }
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
        predictor = Chosen(
            predictor, {TASK: 1.0}, MEMBERS, 1, MEMBERS
        )  # also where the residual does not tell the truth
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
