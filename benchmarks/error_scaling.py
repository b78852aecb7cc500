"""How the error falls with the width of the model, the trajectories of each task and the number of tasks.

    python benchmarks/error_scaling.py --seconds 30                  # a GPU: 30 s for each task of a training
    python benchmarks/error_scaling.py --toy --steps 1000            # two CPU cores: some minutes
    python benchmarks/error_scaling.py --seconds 30 --report         # the table and the picture of what is there

Each size is varied while the others stay at their centre, every cell a run of `ups run universal` without rivals. The
error is that of rollouts (solutions of Darcy flow) on the whole test set, over persistence's: the geometric mean over
the tasks that all cells of a line have. The exponent p of error ∝ n⁻ᵖ is fitted by least squares in log-log over all
cells of a line. Cells that OUT/NAME.json has are not trained again, so they may come from several machines; a stopped
one goes on by the same command. The last call's table: OUT/scaling.json; its picture: OUT/scaling.svg.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean, linear_regression
from typing import Any

import torch

from ups.bench.ratios import MODEL, Result, average
from ups.bench.tables import table
from ups.config.load import read_config
from ups.data.generate.make import generate
from ups.data.generate.workers import all_cores
from ups.data.settings import MakeConfig
from ups.data.sources import equations_of, family_seed
from ups.durable import write
from ups.errors import STOPPED, Stopped, UserError
from ups.evaluation.labels import PERSISTENCE
from ups.pipeline.bench import UNIVERSAL, data_folder, finished, known, write_json


@dataclass(frozen=True)
class Cell:
    """`trajectories` to train on of each task; the first so many `tasks` of the list."""

    width: int
    trajectories: int
    tasks: int


@dataclass(frozen=True)
class Grid:
    """Names of tasks in order, overrides of how their data are made, the centre, and the sizes of each line."""

    tasks: Sequence[str]
    made: Sequence[str]
    centre: Cell
    lines: Mapping[str, Sequence[int]]


# Unlike systems come first, so that two or four of them are a fair choice of twelve.
ORDER = ("burgers", "kuramoto_sivashinsky", "diffusion_reaction", "compressible_1d", "advection", "vorticity", "darcy")
ORDER += ("reaction_diffusion", "gray_scott", "diffusion_sorption", "shallow_water", "compressible_2d")
WHOLE = Grid(
    ORDER,
    (),
    Cell(width=64, trajectories=320, tasks=4),
    {"width": (16, 32, 64, 128), "trajectories": (20, 40, 80, 160, 320), "tasks": (2, 4, 8, 12)},
)
_TOY = ("burgers", "kuramoto_sivashinsky", "advection", "reaction_diffusion")
TOY = Grid(
    _TOY,
    (
        *(f"tasks.{task}.make.settings.points=64" for task in _TOY),
        "tasks.burgers.make.trajectories=60",
        "tasks.burgers.make.values.nu=[0.01, 0.02]",
        "tasks.advection.make.trajectories=60",
        "tasks.advection.make.values.beta=[0.4, 1.0]",
        "tasks.kuramoto_sivashinsky.make.trajectories=120",
        "tasks.kuramoto_sivashinsky.make.settings.length=32",
        "tasks.reaction_diffusion.make.trajectories=30",
    ),
    Cell(width=16, trajectories=96, tasks=2),
    {"width": (4, 8, 16, 32), "trajectories": (6, 12, 24, 48, 96), "tasks": (2, 3, 4)},
)


def result_of(cell: Cell, grid: Grid, options: argparse.Namespace) -> Result | None:
    """The finished cell, trained if need be; None where it is not there and only a report is asked for."""
    pace = f"{options.steps}steps" if options.steps else f"{options.seconds:g}s"
    name = f"scaling-{pace}-width{cell.width}-n{cell.trajectories}-tasks{cell.tasks}-seed{options.seed}"
    if options.report:
        path = options.out / f"{name}.json"
        return known(path) if path.is_file() else None
    told = read_config(UNIVERSAL, grid.made).values["tasks"]
    tasks = {task: {"files": _files(task, told[task], cell.trajectories, options)} for task in grid.tasks[: cell.tasks]}
    time = f"steps={options.steps}" if options.steps else f"seconds={options.seconds * cell.tasks:g}"
    asked = [f"tasks={json.dumps(tasks)}", "training.seconds=null", f"training.{time}", "compare={}"]
    asked += [f"stages.operator.width={cell.width}", *options.overrides]
    return finished(name, asked, options.out, options.seed)


def _files(task: str, told: Mapping[str, Any], trajectories: int, options: argparse.Namespace) -> dict[str, Any]:
    """A task's files, made where runs of that seed have them: whole, of which so many trajectories are trained on."""
    make, names = MakeConfig.model_validate(told["make"]), []
    root = data_folder(options.out, options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for _, equation in equations_of(task, make):
        path, seed = root / equation.published_name, family_seed(options.seed, equation)
        path.parent.mkdir(parents=True, exist_ok=True)
        generate(equation, make.trajectories, seed, path, all_cores(), device=device)
        names.append(equation.published_name)
    return {"train": names, "trajectories": trajectories}


def error_of(result: Result, tasks: Sequence[str]) -> float:
    """The geometric mean over the tasks of the error over persistence's."""
    kinds = [list(result.errors[task].values())[-1] for task in tasks]  # rollouts come after single steps
    return geometric_mean(average(errors[MODEL]) / average(errors[PERSISTENCE]) for errors in kinds)


def exponent(sizes: Sequence[int], errors: Sequence[float]) -> tuple[float, float]:
    """p and c of error = c n⁻ᵖ by least squares in log-log."""
    fitted = linear_regression([math.log(n) for n in sizes], [math.log(error) for error in errors])
    return -fitted.slope, math.exp(fitted.intercept)


def measured(grid: Grid, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By line: its sizes, errors and training seconds, and p and c where there are two errors that are numbers."""
    results: dict[Cell, Result | None] = {}
    found: dict[str, dict[str, Any]] = {}
    for name, sizes in grid.lines.items():
        cells = {size: replace(grid.centre, **{name: size}) for size in sizes}
        tasks = grid.tasks[: min(cell.tasks for cell in cells.values())]
        line: dict[str, Any] = {"tasks": list(tasks), "sizes": [], "errors": [], "seconds": []}
        for size, cell in cells.items():
            if cell not in results:
                results[cell] = result_of(cell, grid, options)
            if (result := results[cell]) is not None and math.isfinite(error := error_of(result, tasks)):
                line["sizes"].append(size)
                line["errors"].append(error)
                line["seconds"].append(result.training[MODEL]["all"]["seconds"])
        if len(line["sizes"]) > 1:
            line["p"], line["c"] = exponent(line["sizes"], line["errors"])
        found[name] = line
    return found


def markdown(found: Mapping[str, Mapping[str, Any]], centre: Cell) -> str:
    lines = [
        [
            name,
            ", ".join(map(str, line["sizes"])),
            ", ".join(f"{error:.3g}" for error in line["errors"]),
            f"{line['p']:.2f}" if "p" in line else "–",
            ", ".join(f"{seconds:.0f}" for seconds in line["seconds"]),
            ", ".join(line["tasks"]),
        ]
        for name, line in found.items()
    ]
    header = ["varied", "sizes", "error over persistence's", "p of n⁻ᵖ", "seconds of training", "judged on"]
    told = ", ".join(f"{name} {size}" for name, size in asdict(centre).items())
    return "\n".join([*table(header, lines), "", f"The others stay at {told}."])


def drawn(found: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A panel for each line, log-log, with its fit."""
    from matplotlib.figure import Figure  # slow to import

    from ups.report.drawing import render

    figure = Figure(figsize=(3.1 * len(found), 3.0), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (name, line) in zip(panels, found.items(), strict=True):
        sizes = line["sizes"]
        axes.plot(sizes, line["errors"], "o", color="C0")
        if "p" in line:
            fit = [line["c"] * size ** -line["p"] for size in sizes]
            axes.plot(sizes, fit, "-", color="C0", linewidth=1, label=f"n^{-line['p']:.2f}")
            axes.legend(fontsize=8)
        axes.set(xscale="log", yscale="log", xlabel=name)
        axes.set_xticks(sizes, list(map(str, sizes)), minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("error over persistence's")
    return render(figure, "svg")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of every cell")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--seconds", type=float, default=30.0, help="of training, for each task of a cell")
    pace.add_argument("--steps", type=int, help="of training, instead")
    parser.add_argument("--toy", action="store_true", help="four 1D systems at 64 points, small widths")
    parser.add_argument(
        "--line", action="append", choices=list(WHOLE.lines), help="repeat for several; all if not given"
    )
    parser.add_argument("--trajectories", type=int, help="of the centre, instead of its own")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench"))
    options = parser.parse_intermixed_args(arguments)
    grid = TOY if options.toy else WHOLE
    if options.trajectories is not None:
        grid = replace(grid, centre=replace(grid.centre, trajectories=options.trajectories))
    if options.line:
        grid = replace(grid, lines={name: grid.lines[name] for name in options.line})
    try:
        found = measured(grid, options)
        if not any(line["sizes"] for line in found.values()):
            raise UserError(f"{options.out} has no cell of these settings; train some without --report")
    except Stopped as stopped:
        print(f"\nstopped: {stopped}; start the same command again to go on", file=sys.stderr)
        return STOPPED
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_json(options.out / "scaling.json", {"centre": asdict(grid.centre), "lines": found})
    write(options.out / "scaling.svg", drawn(found))
    print(markdown(found, grid.centre))
    return 0


if __name__ == "__main__":
    sys.exit(main())
