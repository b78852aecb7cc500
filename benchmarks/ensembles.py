r"""The ensembles of `ups run generative`, of several seeds, beside what they have to beat and what could beat them.

    python benchmarks/ensembles.py                                             (two CPU cores: ten minutes a seed)
    python benchmarks/ensembles.py --device cuda --config benchmarks/ensembles.yaml --seeds 0
    python benchmarks/ensembles.py --device cuda --config benchmarks/ensembles_vorticity.yaml --seeds 0

(The last two: one H200, at most 500 s for each seed, estimated: 290 of them are trainings.)

What follows the options are overrides of the configuration (`--config`, the packaged one). Starts are known to 1 % of
their rms (`--start`): every predictor is given the same wrong one, and every member begins at its own draw around it.
Beside the corrector with 1, 2, 4 and 8 steps of Heun's method and 2 of Euler's, and the distilled one with 1, 2 and 4,
stand three ensembles of as many members, whose operators were trained for as long as all stages of the corrector
together:

- dressed: one operator and Gaussian noise of its validation error at each step;
- perturbed: that operator from starts with Gaussian noise, of the size that is best on validation;
- three seeds: operators of three seeds, which share the members: the corrector's, and two with half of the rest each.

Last stands what none of them can be expected to beat: the equation's own solver from as many starts. Where it is not
below 0.9 of the best of the three, what is not known of the starts is nearly all the error there is.

The table has CRPS (over the truth's rms) and its ratio to the best of those three, which is to be at most 0.9, spread
over skill (0.8 to 1.25), coverage of 50 % and 90 % intervals, the largest departure of members' late spectra (the last
quarter of the frames) from the truth's in an octave that holds more than 10⁻⁶ of the energy (at most 0.2), and what a
member of a trajectory costs, in milliseconds. Then the same ratio Lyapunov time by Lyapunov time, which the solver
measures, the departure of every octave, and the bars of distillation: the share of the corrector's best gain in CRPS
over its operator that two steps keep (at least 0.95), and its CRPS over that of the corrector with two steps (below 1).

Finished trainings are not run again, and where OUT/NAME_SEED_start_SIZE.json is there, its numbers are printed and
nothing is run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from ups import pipeline
from ups.data.sampler import mix
from ups.data.sources import open_source
from ups.equations import Equation
from ups.errors import UserError
from ups.evaluation.cheap import DRESSED, PERTURBED, Perturbed, around, cheap_ensembles
from ups.evaluation.reconstruction import reconstruction
from ups.fields import Batch
from ups.metrics import nrmse, power_spectrum
from ups.metrics.ensembles import LEVELS, Members, coverage, crps, spread_and_skill
from ups.models.corrector import Correction
from ups.models.predictor import Predictor, State
from ups.models.saved import TrainedTask
from ups.pipeline.bench import write_json
from ups.pipeline.config import run_config
from ups.pipeline.trainings import device_seconds
from ups.rollout.corrected import CorrectedPredictor
from ups.rollout.members import ensembles
from ups.rollout.predict import read_all, rollout
from ups.training.fit import progress_of
from ups.training.restore import restored, stage_folder
from ups.training.stages.codec import CodecStage

TEACHER, STUDENT = (1, 2, 4, 8), (1, 2, 4)
"""Steps of their samplers."""
SEEDS, SOLVER = "three seeds", "exact solver"
RIVALS = (DRESSED, PERTURBED, SEEDS)
LATE = 4
"""Spectra are of the last of so many parts of a rollout."""
LEAST = 1e-6
"""The part of the energy that an octave must hold to be compared."""
TINY = 1e-8
"""Of the rms: a difference of two starts that stays small for as long as the solver is asked."""
LONG = 5.0
"""Seconds of an ensemble beside which first use does not count."""


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
    parser.add_argument("--out", type=Path, default=Path("bench"))
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--start", type=float, default=0.01, help="error of the starts, over their rms")
    parser.add_argument("--trajectories", type=int, default=32, help="of the test set, at most")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    results = {seed: finished(options, seed) for seed in options.seeds}
    for task in results[options.seeds[0]]:
        for seed, tasks in results.items():
            print(f"\n{task}, seed {seed}\n" + "\n".join(table(tasks[task])))
        if len(results) > 1:
            print(f"\n{task}, {len(results)} seeds\n" + "\n".join(over_seeds([r[task] for r in results.values()])))


def finished(options: Any, seed: int) -> dict[str, dict[str, Any]]:
    """The numbers of a seed, by task: those that are kept, or those of its runs, which are made or gone on with."""
    name = f"{Path(options.config).stem}_{seed}"
    path = options.out / f"{name}_start_{options.start:g}.json"  # other starts are judged with the same trainings
    asked = [options.members, options.trajectories, *options.overrides]
    if path.is_file():
        known = json.loads(path.read_text())
        if known["asked"] != asked:
            raise UserError(f"{path} holds results of other settings; choose another --out, or remove it")
        return known["tasks"]
    pipeline.train(options.config, [*options.overrides, f"name={name}", f"seed={seed}"], options.out)
    long, *others = rivals(options.out, name, seed)
    tasks = run_config(options.out / name).tasks
    found = {task: judged(options, options.out / name, long, others, task, seed) for task in tasks}
    write_json(path, {"asked": asked, "tasks": found})
    return found


def rivals(out: Path, name: str, seed: int) -> list[Path]:
    """Operators beside the run's own: one trained for as long as all stages together, and two that together with the
    run's own were.
    """
    config = run_config(out / name)
    progress = {stage: progress_of(out / name / "stages" / stage) for stage in config.each_stage()}
    known = {stage: done for stage, done in progress.items() if done is not None}
    seconds, own = device_seconds(config, known), known["operator"]["device_seconds"]
    told = yaml.safe_load((out / name / "config.yaml").read_text())
    stage = told["stages"]["operator"]
    training = {**told["training"], **(stage.pop("training", None) or {})}
    training = {key: value for key, value in training.items() if key != "steps" and value is not None}
    told["stages"] = {"operator": stage}
    told["data"] = {**(told.get("data") or {}), "root": str((out / name / "data").absolute()), "seed": seed}
    found = []
    for number, share in enumerate((seconds, (seconds - own) / 2, (seconds - own) / 2)):
        rival = f"{name}_{'long' if number == 0 else f'other_{number}'}"
        changed = {"name": rival, "seed": seed + 1000 * number, "training": training | {"seconds": share}}
        if not (out / rival / "config.yaml").is_file():
            (out / f"{rival}.yaml").write_text(yaml.safe_dump(told | changed, sort_keys=False))
        pipeline.train(str(out / f"{rival}.yaml"), [], out)
        found.append(out / rival)
    return found


@dataclass(frozen=True)
class Scores:
    """Of an ensemble; `by_time` is its CRPS in each Lyapunov time, `octaves` are the energies of its members' late
    spectra over the truth's, less one.
    """

    crps: float
    by_time: list[float]
    ratio: float
    inside: list[float]
    octaves: list[float]
    seconds: float

    @classmethod
    def of(cls, make: Callable[[], Members], truth: Float[Tensor, "N T *space C"], stretches: list[slice]) -> Scores:
        members, seconds = timed(make)
        each = crps(members, truth).mean((0, 2))
        spread, skill = (values.mean(0) for values in spread_and_skill(members, truth))
        late = max(1, truth.shape[1] // LATE)
        power, right = (
            power_spectrum(frames[:, -late:])[1].mean((0, 1, 3)) for frames in (members.flatten(0, 1), truth)
        )
        return cls(
            float(each.mean()),
            [float(each[stretch].mean()) for stretch in stretches],
            float((spread / skill).sqrt().mean()),
            [float(coverage(members, truth, level).mean()) for level in LEVELS],
            octaves(power, right),
            seconds / members.shape[0] / members.shape[1],
        )


def timed(make: Callable[[], Members]) -> tuple[Members, float]:
    """Seconds of a second call, because the first makes tables and records graphs; of the first where it is long."""
    for call in ("first", "second"):
        began = time.perf_counter()
        members = make()
        if members.is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        if call == "second" or seconds > LONG:
            return members, seconds
    raise AssertionError("the second call returns")


def octaves(power: Float[Tensor, " K"], truth: Float[Tensor, " K"]) -> list[float]:
    """Energy / true energy − 1 of the octaves 1, 2 … 3, 4 … 7, … that hold enough."""
    found, first = [], 1
    while first < len(truth):
        own, right = power[first : 2 * first].sum(), truth[first : 2 * first].sum()
        if right > LEAST * truth.sum():
            found.append(float(own / right) - 1)
        first *= 2
    return found


def judged(options: Any, run: Path, long: Path, others: list[Path], task: str, seed: int) -> dict[str, Any]:
    told = run_config(run)
    source = open_source(task, told.tasks[task], told.data, run / "data", told.data_seed, lambda *_: None)
    stages = {stage: restored(run / "stages" / stage, told.runtime) for stage in told.each_stage()}
    operator, corrector, distilled = (
        stages[stage].predictor().to(options.device) for stage in ("operator", "corrector", "distilled")
    )
    longest, *several = (
        restored(stage_folder(rival), told.runtime).predictor().to(options.device) for rival in (long, *others)
    )
    learned, members = operator.tasks[task], options.members
    given, size = learned.given, torch.full((len(learned.spec.channels),), options.start)
    right = read_all(source.tests[task], options.trajectories)
    test, validation = (
        off(learned, batch, given, options.start, mix(seed, number)).to(options.device)
        for number, batch in enumerate((right, read_all(source.validation, options.trajectories)))
    )
    right = right.to(options.device)

    def of(predictor: Predictor, count: int = members, drawn: int = seed) -> Members:
        return torch.cat([part for _, part in ensembles(predictor, task, test, given, count, drawn)], 1)

    def sampled(predictor: Predictor, sampler: str, steps: int) -> Predictor:
        assert isinstance(predictor, CorrectedPredictor)
        correct = predictor.correct
        correct = Correction(correct.operator, correct.codec, correct.corrector, sampler, steps)
        return Around(CorrectedPredictor(predictor.operator, correct, predictor.horizon), size)

    def of_seeds() -> Members:
        seeds = (operator, *several)
        shares = [len(range(place, members, len(seeds))) for place in range(len(seeds))]
        parts = zip(seeds, shares, strict=True)  # none begins where a member of another operator does
        return torch.cat([of(Around(one, size), share, mix(seed, 3, n)) for n, (one, share) in enumerate(parts)])

    def of_solver() -> Members:
        starts = [off(learned, test, given, options.start, mix(seed, 2, number)) for number in range(members)]
        return torch.stack([solved(equation, start, given) for start in starts])

    (equation, _), *more = source.solvers
    if more:
        raise UserError(f"{task} is of several equations, and this compares with the solver of one; leave `values` out")
    made: dict[str, Callable[[], Members]] = {"operator": partial(of, operator, 1)}
    made |= {f"corrector, {n}": partial(of, sampled(corrector, "heun", n)) for n in TEACHER}
    made |= {"Euler, 2": partial(of, sampled(corrector, "euler", 2))}
    made |= {f"distilled, {n}": partial(of, sampled(distilled, "jumps", n)) for n in STUDENT}
    made |= {
        name: partial(of, predictor)
        for name, predictor in cheap_ensembles({"long": longest}, task, validation, given, members, seed).items()
    }
    made |= {SEEDS: of_seeds, SOLVER: of_solver}
    truth, frames = right.values[:, given:], growth(equation, right, given)
    stretches = [slice(round(k * frames), round((k + 1) * frames)) for k in range(max(1, int(truth.shape[1] / frames)))]
    codec = stages["codec"]
    assert isinstance(codec, CodecStage)
    floor = reconstruction(codec.model.to(options.device), learned, source, task)["nrmse"]
    return {
        "frames": frames,
        "rows": {name: asdict(Scores.of(make, truth, stretches)) for name, make in made.items()},
        "errors": {
            "operator": float(nrmse(rollout(operator, task, right, given), truth).mean()),
            "solver": float(nrmse(solved(equation, right, given), truth).mean()),
            "codec": floor["codec"],
            "pca": floor["pca"],
        },
    }


def off(learned: TrainedTask, batch: Batch, given: int, size: float, seed: int) -> Batch:
    """The batch with first frames that are wrong by so much of each channel's rms."""
    units = learned.normaliser.units().to(batch.values)
    noise = torch.randn(batch.values[:, :given].shape, generator=torch.Generator().manual_seed(seed))
    wrong = batch.values[:, :given] + size * units * noise.to(units)
    return replace(batch, values=torch.cat([wrong, batch.values[:, given:]], 1))


def solved(equation: Equation, batch: Batch, given: int) -> Float[Tensor, "N T *space C"]:
    """What the solver makes of the last frame given, on the grid of the frames."""
    start = replace(batch, values=batch.values[:, given - 1 :], times=batch.times[:, given - 1 :])
    return equation.coarse(start, batch.grid.shape[0])[:, 1:].to(batch.values)


def growth(equation: Equation, batch: Batch, given: int) -> float:
    """The Lyapunov time, in frames: that of two starts which lie so near that their distance grows e-fold, from a
    quarter of the rollout to its end; all of the rollout where it does not.
    """
    values = batch.values.double()
    noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(values)
    start = replace(batch, values=values)
    near = replace(batch, values=values + TINY * values.square().mean().sqrt() * noise)
    apart = (solved(equation, near, given) - solved(equation, start, given)).flatten(2).norm(dim=2).log().mean(0)
    first, last = len(apart) // LATE, len(apart) - 1
    rate = float(apart[last] - apart[first]) / max(1, last - first)
    return min(1 / rate, float(len(apart))) if rate > 0 else float(len(apart))


def table(found: Mapping[str, Any]) -> list[str]:
    rows, errors = found["rows"], found["errors"]
    titles = f"{'CRPS':>7} {'/ cheap':>7} {'spread/skill':>12} {'50 %':>5} {'90 %':>5} {'worst octave':>12} {'ms':>6}"
    lines = [f"{'':13} {titles}"]
    for name, own in rows.items():
        worst = max(own["octaves"], key=abs)
        lines.append(
            f"{name:13} {own['crps']:7.4f} {over_cheapest(rows, name):7.3f} {own['ratio']:12.2f} "
            f"{own['inside'][0]:5.2f} {own['inside'][1]:5.2f} {worst:12.2f} {1000 * own['seconds']:6.2f}"
        )
    lines.append(f"CRPS over the best of the three, Lyapunov time by Lyapunov time (each {found['frames']:.1f} frames)")
    cheapest = [min(each) for each in zip(*(rows[name]["by_time"] for name in RIVALS), strict=True)]
    for name, own in rows.items():
        ratios = (a / b for a, b in zip(own["by_time"], cheapest, strict=True))
        lines.append(f"{name:13} " + " ".join(f"{ratio:6.2f}" for ratio in ratios))
    lines.append("late spectra over the truth's, less one, octave by octave")
    lines += [f"{name:13} " + " ".join(f"{value:6.2f}" for value in own["octaves"]) for name, own in rows.items()]
    kept, against = distillation(rows)
    return [
        *lines,
        f"distilled, 2: {kept:.3f} of the corrector's best gain over the operator (at least 0.95)",
        f"distilled, 2: {against:.3f} of the CRPS of the corrector with 2 steps (below 1)",
        f"codec: {errors['codec']:.4f}, {errors['codec'] / errors['pca']:.3f} of as many principal components' (at "
        f"most 0.5), {errors['codec'] / errors['operator']:.3f} of the operator's rollout error (at most 0.2)",
        f"from the true starts: operator {errors['operator']:.4f}, solver on these points {errors['solver']:.5f}",
    ]


def over_cheapest(rows: Mapping[str, Any], name: str) -> float:
    return rows[name]["crps"] / min(rows[rival]["crps"] for rival in RIVALS)


def distillation(rows: Mapping[str, Any]) -> tuple[float, float]:
    """The share of the corrector's best gain that two steps keep, and their CRPS over that of the corrector's two."""
    alone, best = rows["operator"]["crps"], min(rows[f"corrector, {n}"]["crps"] for n in TEACHER)
    two = rows["distilled, 2"]["crps"]
    return (alone - two) / (alone - best), two / rows["corrector, 2"]["crps"]


def over_seeds(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Means and ranges of what the bars are about."""
    several = [result["rows"] for result in results]
    lines = [f"{'':13} {'/ cheap':>22} {'spread/skill':>22}"]
    for name in several[0]:
        ratios = [over_cheapest(rows, name) for rows in several]
        lines.append(f"{name:13} {span(ratios):>22} {span([rows[name]['ratio'] for rows in several]):>22}")
    kept, against = zip(*map(distillation, several), strict=True)
    return [*lines, f"distilled, 2: gain kept {span(kept)}, over the corrector with 2 steps {span(against)}"]


def span(values: Sequence[float]) -> str:
    return f"{mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
