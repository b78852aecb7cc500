r"""The ensembles of `ups run generative`, of several seeds, beside what they have to beat.

    python benchmarks/ensembles.py                                             (two CPU cores: ten minutes a seed)
    python benchmarks/ensembles.py --seeds 0 1 2 --device cuda training.steps=20000 \
        stages.codec.training.steps=8000 stages.corrector.training.steps=12000 stages.distilled.training.steps=4000 \
        tasks.kuramoto_sivashinsky.make.settings.frames=101 \
        tasks.kuramoto_sivashinsky.make.settings.duration=200.0                (one H200: over 8 Lyapunov times)
    python benchmarks/ensembles.py --seeds 0 1 2 --device cuda --config benchmarks/ensembles_vorticity.yaml

What follows the options are overrides of the configuration (`--config`, the packaged one). Starts are known to 1 % of
their rms (`--start`): every predictor is given the same wrong one, and every member begins at its own draw around it.
Beside the corrector with 1, 2, 4 and 8 steps of Heun's method and the distilled one with 1, 2 and 4 stand three
ensembles of as many members, whose operators were trained for as long as all stages of the corrector together:

- dressed: one operator and Gaussian noise of its validation error at each step;
- perturbed: that operator from starts with Gaussian noise, of the size that is best on validation;
- three seeds: operators of three seeds, a third of the time each, which share the members.

The table has CRPS (over the truth's rms) and its ratio to the best of those three, which is to be at most 0.9, spread
over skill (0.8 to 1.25), coverage of 50 % and 90 % intervals, the largest departure of members' late spectra (the last
quarter of the frames) from the truth's in an octave that holds more than 10⁻⁶ of the energy (at most 0.2), and what a
member of a trajectory costs, in milliseconds. Then the departure of every octave, and the bars of distillation: the
share of the corrector's best gain in CRPS over its operator that two steps keep (at least 0.95), and its CRPS over
that of the corrector with two steps (below 1). Finished trainings are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from ups import pipeline
from ups.data.sampler import mix
from ups.data.sources import open_source
from ups.evaluation.cheap import DRESSED, PERTURBED, Perturbed, around, cheap_ensembles
from ups.fields import Batch
from ups.metrics import power_spectrum
from ups.metrics.ensembles import LEVELS, Members, coverage, crps, spread_and_skill
from ups.models.corrector import Correction
from ups.models.predictor import Predictor, State
from ups.models.saved import TrainedTask
from ups.pipeline.config import load_run
from ups.pipeline.trainings import device_seconds
from ups.rollout.corrected import CorrectedPredictor
from ups.rollout.members import ensembles
from ups.rollout.predict import read_all
from ups.training.fit import progress_of
from ups.training.restore import restored, stage_folder

TEACHER, STUDENT = (1, 2, 4, 8), (1, 2, 4)
"""Steps of their samplers."""
SEEDS = "three seeds"
LATE = 4
"""Spectra are of the last of so many parts of a rollout."""
LEAST = 1e-6
"""The part of the energy that an octave must hold to be compared."""


class Around(Perturbed):
    """Members that begin around the start given, and then have whatever chance there is."""

    def sample(self, state: State, lead: Float[Tensor, " B"] | None, seed: int, members: int) -> State:
        if not self.parent.chance:
            return super().sample(state, lead, seed, members)
        state = state if state.members is not None else around(state, self.size, seed, members)
        return self.parent.sample(state, lead, seed, members)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--config", default="generative")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--start", type=float, default=0.01, help="error of the starts, over their rms")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    for seed in options.seeds:
        name = f"{Path(options.config).stem}_{seed}"
        pipeline.run(options.config, [*options.overrides, f"name={name}", f"seed={seed}"], options.runs, page=False)
        others = rivals(options.runs, name, seed)
        for task in load_run(options.runs / name / "config.yaml", []).tasks:
            lines = [*judged(options, options.runs / name, others, task, seed), codec_line(options.runs / name, task)]
            print(f"\n{task}, seed {seed}\n" + "\n".join(lines), flush=True)


def rivals(runs: Path, name: str, seed: int) -> list[Path]:
    """Operators trained for as long as all stages together: one for all of the time, three for a third of it each."""
    config = load_run(runs / name / "config.yaml", [])
    progress = {stage: progress_of(runs / name / "stages" / stage) for stage in config.each_stage()}
    seconds = device_seconds(config, {stage: done for stage, done in progress.items() if done is not None})
    told = yaml.safe_load((runs / name / "config.yaml").read_text())
    told["stages"] = {"operator": told["stages"]["operator"]}
    told["data"] = {**(told.get("data") or {}), "root": str((runs / name / "data").absolute()), "seed": seed}
    found = []
    for number, share in enumerate((1.0, 1 / 3, 1 / 3, 1 / 3)):
        own = f"{name}_{'long' if number == 0 else f'third_{number}'}"
        training = {key: value for key, value in told["training"].items() if key != "steps"}
        changed = {"name": own, "seed": seed + 1000 * number, "training": training | {"seconds": share * seconds}}
        if not (runs / own / "config.yaml").is_file():
            (runs / f"{own}.yaml").write_text(yaml.safe_dump(told | changed, sort_keys=False))
        pipeline.train(str(runs / f"{own}.yaml"), [], runs)
        found.append(runs / own)
    return found


@dataclass(frozen=True)
class Scores:
    """Of an ensemble; `octaves` are the energies of its members' late spectra over the truth's, less one."""

    crps: float
    ratio: float
    inside: tuple[float, ...]
    octaves: tuple[float, ...]
    seconds: float

    @classmethod
    def of(cls, make: Callable[[], Members], test: Batch, given: int) -> Scores:
        began = time.perf_counter()
        members = make()
        seconds = (time.perf_counter() - began) / members.shape[0] / members.shape[1]
        truth = test.values[:, given:]
        spread, skill = (values.mean(0) for values in spread_and_skill(members, truth))
        inside = tuple(float(coverage(members, truth, level).mean()) for level in LEVELS)
        late = max(1, truth.shape[1] // LATE)
        power, right = (
            power_spectrum(frames[:, -late:])[1].mean((0, 1, 3)) for frames in (members.flatten(0, 1), truth)
        )
        return cls(
            float(crps(members, truth).mean()),
            float((spread / skill).sqrt().mean()),
            inside,
            octaves(power, right),
            seconds,
        )


def octaves(power: Float[Tensor, " K"], truth: Float[Tensor, " K"]) -> tuple[float, ...]:
    """Energy / true energy − 1 of the octaves 1, 2 … 3, 4 … 7, … that hold enough."""
    found, first = [], 1
    while first < len(truth):
        own, right = power[first : 2 * first].sum(), truth[first : 2 * first].sum()
        if right > LEAST * truth.sum():
            found.append(float(own / right) - 1)
        first *= 2
    return tuple(found)


def judged(options: Any, run: Path, rivals: list[Path], task: str, seed: int) -> list[str]:
    told = load_run(run / "config.yaml", [])
    source = open_source(task, told.tasks[task], told.data, run / "data", told.data_seed, lambda *_: None)
    operator, corrector, distilled = (
        restored(run / "stages" / stage, told.runtime).predictor().to(options.device)
        for stage in ("operator", "corrector", "distilled")
    )
    long, *thirds = (restored(stage_folder(rival), told.runtime).predictor().to(options.device) for rival in rivals)
    learned, members = operator.tasks[task], options.members
    given, size = learned.given, torch.full((len(learned.spec.channels),), options.start)
    test, validation = (
        off(learned, read_all(data), given, options.start, mix(seed, number))
        for number, data in enumerate((source.tests[task], source.validation))
    )

    def of(predictor: Predictor, count: int = members) -> Members:
        return torch.cat([part for _, part in ensembles(predictor, task, test, given, count, seed)], 1)

    def sampled(predictor: CorrectedPredictor, sampler: str, steps: int) -> Predictor:
        correct = predictor.correct
        correct = Correction(correct.operator, correct.codec, correct.corrector, sampler, steps)
        return Around(CorrectedPredictor(predictor.operator, correct, predictor.horizon), size)

    def of_seeds() -> Members:
        shares = [len(range(place, members, len(thirds))) for place in range(len(thirds))]
        return torch.cat([of(Around(third, size), share) for third, share in zip(thirds, shares, strict=True)])

    made: dict[str, Callable[[], Members]] = {"operator": partial(of, operator, 1)}
    made |= {f"corrector, {n}": partial(of, sampled(corrector, "heun", n)) for n in TEACHER}
    made |= {f"distilled, {n}": partial(of, sampled(distilled, "jumps", n)) for n in STUDENT}
    made |= {
        name: partial(of, predictor)
        for name, predictor in cheap_ensembles({"long": long}, task, validation, given, members, seed).items()
    }
    made[SEEDS] = of_seeds
    return table({name: Scores.of(make, test, given) for name, make in made.items()})


def off(learned: TrainedTask, batch: Batch, given: int, size: float, seed: int) -> Batch:
    """The batch with first frames that are wrong by so much of each channel's rms."""
    units = learned.normaliser.units().to(batch.values)
    noise = torch.randn(batch.values[:, :given].shape, generator=torch.Generator().manual_seed(seed))
    wrong = batch.values[:, :given] + size * units * noise
    return replace(batch, values=torch.cat([wrong, batch.values[:, given:]], 1))


def table(scores: Mapping[str, Scores]) -> list[str]:
    cheapest = min(scores[name].crps for name in (DRESSED, PERTURBED, SEEDS))
    titles = f"{'CRPS':>7} {'/ cheap':>7} {'spread/skill':>12} {'50 %':>5} {'90 %':>5} {'worst octave':>12} {'ms':>6}"
    lines = [f"{'':13} {titles}"]
    for name, own in scores.items():
        worst = max(own.octaves, key=abs)
        lines.append(
            f"{name:13} {own.crps:7.4f} {own.crps / cheapest:7.3f} {own.ratio:12.2f} {own.inside[0]:5.2f} "
            f"{own.inside[1]:5.2f} {worst:12.2f} {1000 * own.seconds:6.2f}"
        )
    lines.append("late spectra over the truth's, less one, octave by octave")
    lines += [f"{name:13} " + " ".join(f"{value:6.2f}" for value in own.octaves) for name, own in scores.items()]
    alone, best = scores["operator"].crps, min(scores[f"corrector, {n}"].crps for n in TEACHER)
    two, teacher = scores["distilled, 2"].crps, scores["corrector, 2"].crps
    lines.append(f"distilled, 2: {(alone - two) / (alone - best):.3f} of the corrector's best gain over the operator")
    return [*lines, f"distilled, 2: {two / teacher:.3f} of the CRPS of the corrector with 2 steps"]


def codec_line(run: Path, task: str) -> str:
    metrics = json.loads((run / "metrics.json").read_text())
    floor, rollout = metrics["reconstruction"]["codec"][task]["nrmse"], metrics["tasks"][task]["rollout"]["nrmse"]
    return (
        f"codec: {floor['codec']:.4f}, {floor['codec'] / floor['pca']:.3f} of as many principal components' (at most "
        f"0.5), {floor['codec'] / rollout['operator']:.3f} of the operator's rollout error (at most 0.2)"
    )


if __name__ == "__main__":
    main()
