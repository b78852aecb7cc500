"""PDEBench's views on our own data: a specialist a row, all its settings together, beside what is published and what is
aimed at.

    python benchmarks/pdebench_views.py burgers                    # data, 550 s of training, evaluation; the table
    python benchmarks/pdebench_views.py                            # the table of all rows that are there

Data are ours, in PDEBench's layouts, on the points and frames of its views (`view: pdebench`); a setting's test set has
starts of its own. Rows are runs in --out that go on where they stopped, and OUT/pdebench-ROW.json when they are
finished. Published numbers are of other data and of hours of training. nRMSE of rollouts after the frames given (of
solutions of Darcy flow), mean over trajectories; pooled over them where the field decays to its mean. The aim is
reached where it is in every setting, or, where it is one number for all, in their mean. Rollouts start from the frames
that PDEBench gives; what one frame given would make of them is not measured here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from ups.bench.tables import table
from ups.config.load import made_config
from ups.data.generate.make import generate
from ups.data.generate.workers import all_cores
from ups.data.sources import family_seed
from ups.equations import (
    Advection,
    Burgers,
    Compressible2D,
    Darcy,
    DiffusionReaction,
    DiffusionSorption,
    Equation,
    ReactionDiffusion,
    ShallowWater,
)
from ups.errors import STOPPED, Stopped, UserError
from ups.evaluation.labels import PERSISTENCE
from ups.pipeline.bench import write_json
from ups.pipeline.config import completed
from ups.pipeline.run import finish


@dataclass(frozen=True)
class Row:
    """`settings` by what they are called; so many trajectories of each to train on. `aim` and the published numbers are
    one for each setting or one for all: PDEBench's FNO, the best tuned FNO, the best large model of many equations.
    """

    settings: Mapping[str, Equation]
    trajectories: int
    aim: Sequence[float]
    paper: Sequence[float] = ()
    tuned: Sequence[float] = ()
    large: Sequence[float] = ()
    pooled: Sequence[str] = ()


ROWS = {
    "advection": Row(
        {f"beta{beta:g}": Advection(points=256, beta=beta, frames=201) for beta in (0.1, 0.4, 1.0, 4.0)},
        4000,
        aim=(0.0015,),
        paper=(0.0077, 0.010, 0.0097, 0.0067),
        tuned=(0.0033, 0.0046, 0.0047, 0.0047),
        large=(0.0041,),
    ),
    "burgers": Row(
        {f"nu{nu:g}": Burgers(points=256, nu=nu, frames=201) for nu in (0.001, 0.01, 0.1, 1.0)},
        4000,
        aim=(0.005, 0.002, 0.001, 0.002),
        paper=(0.029, 0.0078, 0.0029, 0.0040),
        tuned=(0.0108, 0.0042, 0.0014, 0.0043),
        large=(0.0032,),
        pooled=("nu0.1", "nu1"),
    ),
    "reaction_diffusion": Row(
        {"nu0.5_rho1": ReactionDiffusion(points=256, frames=30, duration=0.29)},
        4000,
        aim=(0.0006,),
        paper=(0.0014,),
        tuned=(0.0012,),
        pooled=("nu0.5_rho1",),
    ),
    "diffusion_sorption": Row(
        {"all": DiffusionSorption(points=1024)}, 1000, aim=(0.0005,), paper=(0.0017,), tuned=(0.0010,)
    ),
    "darcy": Row({"beta1": Darcy(points=64)}, 4000, aim=(0.004,), tuned=(0.0108,)),
    "diffusion_reaction": Row(
        {"all": DiffusionReaction(points=128)}, 400, aim=(0.0015,), paper=(0.12,), tuned=(0.0027,), large=(0.0074,)
    ),
    "shallow_water": Row(
        {"all": ShallowWater(points=128)}, 400, aim=(0.0008,), paper=(0.0044,), tuned=(0.0019,), large=(0.0012,)
    ),
    "compressible_2d": Row(
        {"M0.1_eta0.01": Compressible2D(points=64)}, 1000, aim=(0.008,), paper=(0.17,), tuned=(0.0186,), large=(0.0091,)
    ),
}
TEST = 10
"""One test trajectory for so many to train on."""
HELD = 48
"""Trajectories that choose the weights."""


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: its data, its specialist, its errors by setting."""
    row, runs = ROWS[name], options.out
    count = options.trajectories or row.trajectories
    train, test = [], {}
    for label, equation in row.settings.items():
        train.append(_made(equation, count, options.seed, runs / "data" / "pdebench" / f"train-{count}"))
        tests = runs / "data" / "pdebench" / f"test-{count}"
        test[f"{name}@{label}"] = _made(equation, max(2, count // TEST), options.seed + 1, tests)
    held = min(HELD, len(train) * count // 4)
    values = {
        "name": f"pdebench-{name}-{options.seconds:g}s-seed{options.seed}",
        "seed": options.seed,
        "tasks": {name: {"files": {"train": train, "validation": held, "test": test, "view": "pdebench"}}},
        "training": {"seconds": options.seconds},
        "compare": {},
        "evaluation": {"solved": 0},
    }
    by = " ".join(["benchmarks/pdebench_views.py", name])
    metrics = finish(completed(made_config(values, options.overrides, by), runs)[0], runs, by, page=False)
    found: dict[str, Any] = {}
    for label in row.settings:
        entry = list(metrics["tasks"][f"{name}@{label}"].values())[-1]  # rollouts come after single steps
        told = entry["nrmse_pooled" if label in row.pooled else "nrmse"]
        found[label] = {"nrmse": told["model"], PERSISTENCE: told[PERSISTENCE], "ci95": told["ci95"]}
    return {
        "settings": found,
        "training": {key: metrics["training"]["operator"][key] for key in ("step", "seconds")},
        "data seconds": metrics["seconds"]["data"],
    }


def _made(equation: Equation, count: int, seed: int, folder: Path) -> str:
    """A file of a setting, with its published name, made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = folder / equation.published_name
    return str(generate(equation, count, family_seed(seed, equation), path, all_cores(), device=device).resolve())


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    header = ["row", "setting", PERSISTENCE, "ours", "aim", "reached"]
    header += ["PDEBench's FNO", "best tuned FNO", "best large model", "s"]
    lines, reached = [], 0
    for name, found in rows.items():
        row, entries = ROWS[name], found["settings"]
        errors = [float("inf") if entry["nrmse"] is None else entry["nrmse"] for entry in entries.values()]
        single = len(row.aim) == 1
        good = mean(errors) <= row.aim[0] if single else all(e <= a for e, a in zip(errors, row.aim, strict=True))
        reached += good
        for place, (label, entry) in enumerate(entries.items()):
            pooled = " (pooled)" if label in row.pooled else ""
            published = [_of(numbers, place) for numbers in (row.aim, row.paper, row.tuned, row.large)]
            own = [f"{entry[PERSISTENCE]:.3g}", f"{errors[place]:.3g}{pooled}"]
            first = ["yes" if good else "no", f"{found['training']['seconds']:.0f}"] if place == 0 else ["", ""]
            lines.append([name if place == 0 else "", label, *own, published[0], first[0], *published[1:], first[1]])
    return "\n".join([*table(header, lines), "", f"the aim is reached on {reached} of {len(rows)} rows"])


def _of(numbers: Sequence[float], place: int) -> str:
    """That of a setting; what is said once of all stands at the first."""
    return f"{numbers[place]:g}" if place < len(numbers) else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", nargs="?", choices=list(ROWS))
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the specialist")
    parser.add_argument("--seconds", type=float, default=550.0)
    parser.add_argument("--trajectories", type=int, help="of each setting to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench"))
    options = parser.parse_intermixed_args(arguments)
    path = options.out / f"pdebench-{options.row}.json"
    asked = {name: getattr(options, name) for name in ("seconds", "trajectories", "seed", "overrides")}
    try:
        if path.is_file() and json.loads(path.read_text())["asked"] != asked:
            raise UserError(f"{path} holds results of other settings; choose another --out, or remove it")
        if options.row is not None and not path.is_file():
            write_json(path, {"asked": asked, "found": measured(options.row, options)})
    except Stopped as stopped:
        print(f"\nstopped: {stopped}; start the same command again to go on", file=sys.stderr)
        return STOPPED
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    there = {row: options.out / f"pdebench-{row}.json" for row in ROWS}
    print(markdown({row: json.loads(file.read_text())["found"] for row, file in there.items() if file.is_file()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
