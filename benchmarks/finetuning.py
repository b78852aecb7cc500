"""A trained model on few trajectories of systems it does not know, beside one of the same width and depth from nothing
on many, in the same time: a table in Markdown, and its numbers in OUT/RUN-finetune.json.

    python benchmarks/finetuning.py bench/joint-300s-seed0
    python benchmarks/finetuning.py bench/joint-300s-seed0 --system file --file other.hdf5 --task heat

The systems are waves in a medium, incompressible flow between walls, and one from a file: Korteweg's and de Vries'
equation (`korteweg_de_vries.py`), or a file of yours. Both trainings of a system are runs in --out that go on where
they stopped, tested on the same tenth of its trajectories. A system whose numbers are there is not done again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import korteweg_de_vries
import torch

from ups.bench.ratios import MODEL, Ratio, Result, average, ratio
from ups.bench.tables import table
from ups.config.load import made_config
from ups.config.text import parse_yaml
from ups.data.generate.make import generate
from ups.data.generate.workers import all_cores
from ups.data.open import open_dataset
from ups.equations import Equation, Incompressible, Wave
from ups.errors import STOPPED, Stopped, UserError
from ups.evaluation.labels import PERSISTENCE
from ups.pipeline.bench import write_json
from ups.pipeline.config import completed
from ups.pipeline.finetune import ParentModel, finetune
from ups.pipeline.run import finish

SYSTEMS: dict[str, Equation | None] = {
    "wave": Wave(points=64),
    "incompressible": Incompressible(points=64, frames=21, duration=2.0),
    "file": None,
}
TRAJECTORIES = 320
"""Of each system: a tenth of them tests, and a part of another tenth chooses the weights."""


def measured(system: str, options: argparse.Namespace) -> dict[str, Any]:
    """One system: its data, both trainings, their errors."""
    file = _file(system, options)
    task = options.task if system == "file" and options.task else open_dataset(file).header.task
    name, runs = f"{options.model.name}-{task}-{options.mode}", options.out
    few = [f"tasks.{task}.files.trajectories={options.few}", f"seed={options.seed}", *options.overrides]
    tuned = finetune(
        options.model,
        file,
        task=task,
        mode=options.mode,
        seconds=options.seconds,
        name=f"{name}-{options.few}",
        runs=runs,
        overrides=few,
        page=False,
    )
    values = {
        "name": f"{name}-{options.many}-from-nothing",
        "seed": options.seed,
        "tasks": parse_yaml((tuned.directory / "config.yaml").read_text())["tasks"],
        "training": {"seconds": options.seconds},
        "stages": {"operator": ParentModel.read(options.model).sizes()},
        "compare": {},
    }
    values["tasks"][task]["files"]["trajectories"] = options.many
    by = " ".join(sys.argv)
    finish(completed(made_config(values, options.overrides, by), runs)[0], runs, by, page=False)
    own, other = (Result.of(folder) for folder in (tuned.directory, runs / values["name"]))
    errors, theirs = (list(result.errors[task].values())[-1] for result in (own, other))
    return {
        "task": task,
        "tuned": average(errors[MODEL]),
        "nothing": average(theirs[MODEL]),
        PERSISTENCE: average(errors[PERSISTENCE]),
        "ratio": list(ratio(errors[MODEL], theirs[MODEL])),
        "training": {"tuned": own.training[MODEL]["all"], "nothing": other.training[MODEL]["all"]},
        "machine": own.machine,
    }


def _file(system: str, options: argparse.Namespace) -> Path:
    """The data, made if they are not there."""
    folder = options.out / "data" / "finetuning"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    equation = SYSTEMS[system]
    if equation is not None:
        folder.mkdir(parents=True, exist_ok=True)
        workers = all_cores()
        return generate(equation, TRAJECTORIES, 0, folder / equation.published_name, workers, device=device)
    if options.file is not None:
        return options.file
    return korteweg_de_vries.write(folder / f"{korteweg_de_vries.NAME}.hdf5", TRAJECTORIES, 0, device)


def markdown(content: dict[str, Any]) -> str:
    few, many = content["asked"]["few"], content["asked"]["many"]
    header = ["system", PERSISTENCE, f"from nothing on {many}", f"fine-tuned on {few}", "ratio", "seconds", "steps"]
    lines = []
    for found in content["systems"].values():
        both = [found["training"][who] for who in ("tuned", "nothing")]
        lines.append(
            [
                found["task"],
                *(f"{found[who]:.3g}" for who in (PERSISTENCE, "nothing", "tuned")),
                str(Ratio(*found["ratio"])),
                ", ".join(f"{part['seconds']:.0f}" for part in both),
                ", ".join(f"{part['steps']:.0f}" for part in both),
            ]
        )
    better = sum(found["ratio"][0] < 1 for found in content["systems"].values())
    return "\n".join([*table(header, lines), "", f"fine-tuned is better on {better} of {len(lines)} systems"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a run, or a model made by `ups export`")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of both trainings")
    parser.add_argument("--system", action="append", choices=list(SYSTEMS), help="repeat for several; all if not given")
    parser.add_argument("--file", type=Path, help="data of another system, instead of those made here")
    parser.add_argument("--task", help="what it is called, if its file does not say")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each training")
    parser.add_argument("--few", type=int, default=16, help="trajectories to fine-tune on")
    parser.add_argument("--many", type=int, default=64, help="trajectories to train on from nothing")
    parser.add_argument("--mode", choices=("all", "experts", "adapters"), default="all")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order of samples")
    parser.add_argument("--out", type=Path, default=Path("bench"))
    options = parser.parse_intermixed_args(arguments)
    path = options.out / f"{options.model.name}-finetune.json"
    asked = {name: getattr(options, name) for name in ("seconds", "few", "many", "mode", "seed", "overrides")}
    asked["file"] = None if options.file is None else options.file.name
    try:
        content = json.loads(path.read_text()) if path.is_file() else {"asked": asked, "systems": {}}
        if content["asked"] != asked:
            raise UserError(f"{path} holds results of other settings; choose another --out, or remove it")
        for system in options.system or SYSTEMS:
            if system not in content["systems"]:
                content["systems"][system] = measured(system, options)
                write_json(path, content)
    except Stopped as stopped:
        print(f"\nstopped: {stopped}; start the same command again to go on", file=sys.stderr)
        return STOPPED
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
