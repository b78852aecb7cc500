"""One table of runs that differ in their seed: nRMSE of the model and its ratio to whatever it was compared with, with
95 % intervals over the same test trajectories, and how many tasks are below which ratio.

    ups run quickstart
    ups run quickstart seed=1 name=seed1
    python -m ups.bench.ratios runs/quickstart runs/seed1

`ups bench --universal` prints the same of the packaged configuration `universal`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from ups.bench.tables import table
from ups.config.load import read_mapping
from ups.durable import read_json
from ups.errors import UserError
from ups.evaluation.labels import PERSISTENCE
from ups.metrics.bootstrap import central, draws, resampled_means

LIMITS = (0.5, 0.7, 0.9, 1.0, 1.3)
COUNTS = 0.5
"""A task counts for a ratio where the better of the two has at most this part of persistence's error."""
MODEL = "model"

Errors = Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]]
"""nRMSE of every test trajectory by task (or view of it), kind of prediction and predictor."""


@dataclass(frozen=True)
class Result:
    """What tables need of a finished run. The model is called MODEL, whatever its stage was. Runs of one `data_seed`
    have the same test trajectories. `training` are steps and seconds by family and part, `seconds` those of the phases.
    """

    name: str
    seed: int
    data_seed: int
    rivals: Sequence[str]
    errors: Errors
    training: Mapping[str, Mapping[str, Mapping[str, float]]]
    seconds: Mapping[str, float]
    machine: str

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, run: Path) -> Result:
        files = ("config.yaml", "env.json", "metrics.json", "evaluation/errors.json")
        if missing := [name for name in files if not (run / name).is_file()]:
            raise UserError(
                f"{run} has no {missing[0]}; finish the run, or evaluate it again with `ups evaluate {run}`"
            )
        config = read_mapping(run / files[0])
        found, metrics, errors = (read_json(run / name) for name in files[1:])
        model = metrics["model"]
        rivals = [p["name"] for p in metrics["predictors"] if p["kind"] == "compared"]
        kept = {model: MODEL, PERSISTENCE: PERSISTENCE} | {rival: rival for rival in rivals}
        return cls(
            name=metrics["name"],
            seed=config["seed"],
            data_seed=config["seed"] if config["data"].get("seed") is None else config["data"]["seed"],
            rivals=rivals,
            errors={
                task: {
                    kind: {kept[who]: [_short(v) for v in values] for who, values in by.items() if who in kept}
                    for kind, by in views.items()
                }
                for task, views in errors.items()
            },
            training=_trainings(metrics["training"], model, rivals),
            seconds=metrics["seconds"],
            machine=", ".join(
                [*(found["torch"]["gpus"] or [found["cpu"]["model"]]), f"torch {found['torch']['version']}"]
            ),
        )


class Ratio(NamedTuple):
    """Of mean errors, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})" if math.isfinite(self.value) else "not finite"


def ratio(errors: Sequence[float | None], others: Sequence[float | None], seed: int = 0) -> Ratio:
    """Of the same trajectories, which are drawn again together: some are hard for everybody."""
    if len(errors) != len(others):
        raise UserError(
            f"{len(errors)} and {len(others)} test trajectories cannot be the same; evaluate on one test set"
        )
    both = [torch.tensor(_finite(values), dtype=torch.float64) for values in (errors, others)]
    drawn = draws(len(errors), seed)
    low, high = central(resampled_means(both[0], drawn) / resampled_means(both[1], drawn))
    return Ratio(float(both[0].mean() / both[1].mean()), float(low), float(high))


def average(errors: Sequence[float | None]) -> float:
    return mean(_finite(errors))


def compared(results: Sequence[Result]) -> dict[str, dict[str, dict[str, Any]]]:
    """Every number of the table, by task and kind of prediction: the mean errors of each result, and the ratios.

    A result without a rival is set beside the first result's, if both have the same test trajectories.
    """
    first = results[0]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for task, kinds in first.errors.items():
        for kind in kinds:
            of = [result.errors[task][kind] for result in results]
            beside = [of[0] if result.data_seed == first.data_seed else {} for result in results]
            found.setdefault(task, {})[kind] = {
                **{who: [average(errors[who]) for errors in of] for who in (MODEL, PERSISTENCE)},
                "rivals": {rival: average(kinds[kind][rival]) for rival in first.rivals if rival in kinds[kind]},
                "ratios": {
                    rival: [
                        ratio(own[MODEL], other[rival], result.seed)
                        for own, theirs, result in zip(of, beside, results, strict=True)
                        if rival in (other := own if rival in own else theirs)
                    ]
                    for rival in first.rivals
                },
            }
    return found


def counted(numbers: Mapping[str, Mapping[str, Mapping[str, Any]]], rival: str) -> dict[str, Any]:
    """How many tasks have a ratio, mean over seeds, of at most each limit: of rollouts, or solutions where steady."""
    hardest = {task: list(kinds.values())[-1] for task, kinds in numbers.items()}  # rollouts come after single steps
    judged = {task: entry for task, entry in hardest.items() if entry["ratios"].get(rival)}
    ratios = {
        task: mean(r[0] for r in entry["ratios"][rival])
        for task, entry in judged.items()
        if min(mean(entry[MODEL]), entry["rivals"][rival]) <= COUNTS * mean(entry[PERSISTENCE])
    }
    return {
        "tasks": list(ratios),
        "not counted": [task for task in judged if task not in ratios],
        "at most": {str(limit): sum(value <= limit for value in ratios.values()) for limit in LIMITS},
    }


def markdown(results: Sequence[Result]) -> str:
    """The table, how many tasks are below which ratio, and the time that each training had."""
    numbers, rivals = compared(results), results[0].rivals
    lines = [
        [
            task,
            kind.replace("_", " "),
            _spread(entry[PERSISTENCE]),
            _spread(entry[MODEL]),
            *(", ".join(map(str, entry["ratios"][rival])) or "–" for rival in rivals),
        ]
        for task, kinds in numbers.items()
        for kind, entry in kinds.items()
    ]
    text = table(["task", "view", PERSISTENCE, MODEL, *(f"{MODEL} / {rival}" for rival in rivals)], lines)
    for rival in rivals:
        found = counted(numbers, rival)
        many = ", ".join(f"{count} at most {limit}" for limit, count in found["at most"].items())
        text += ["", f"{MODEL} / {rival}, rollouts or solutions, mean over seeds: {len(found['tasks'])} tasks, {many}"]
        if found["not counted"]:
            text[-1] += (
                f"; not counted, since both are above {COUNTS} of persistence: {', '.join(found['not counted'])}"
            )
    return "\n".join([*text, *(line for result in results for line in ["", *_times(result)])])


def _times(result: Result) -> Iterator[str]:
    phases = ", ".join(f"{name} {value:.0f} s" for name, value in result.seconds.items())
    yield f"{result.name} ({result.machine}): {sum(result.seconds.values()):.0f} s in all ({phases})"
    for family, parts in result.training.items():
        seconds, steps = ([part[key] for part in parts.values()] for key in ("seconds", "steps"))
        many = f"{len(parts)} trainings, " if len(parts) > 1 else ""
        yield f"- {family}: {many}{_range(seconds, '.1f')} s, {_range(steps, '.0f')} steps"


def _trainings(
    trained: Mapping[str, Mapping[str, Any]], model: str, rivals: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """metrics.json names the trainings of a family `FAMILY_PART`."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, progress in trained.items():
        family = max((rival for rival in rivals if name.startswith(f"{rival}_")), key=len, default=None)
        part = "all" if family is None else name.removeprefix(f"{family}_")
        entry = {"steps": progress["step"], "seconds": round(progress["seconds"], 2)}
        found.setdefault(family or (MODEL if name == model else name), {})[part] = entry
    return found


def _finite(errors: Sequence[float | None]) -> list[float]:
    """What is no number, such as NaN, is infinitely wrong."""
    return [math.inf if value is None else value for value in errors]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2g}" + (f" ({min(values):.2g} to {max(values):.2g})" if len(values) > 1 else "")


def _range(values: Sequence[float], form: str) -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    print(markdown([Result.of(run) for run in parser.parse_args().runs]))
