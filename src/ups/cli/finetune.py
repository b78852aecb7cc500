"""`ups finetune`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ups.cli.arguments import Json, Run, Runs
from ups.errors import UserError


def finetune(
    run: Run,
    data: Annotated[
        list[str], typer.Option("--data", metavar="FILE", help="The new system's data; more files may follow it.")
    ],
    more: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|KEY=VALUE]...",
            help="More data files; dotted overrides, such as training.learning_rate=1e-3.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="The new system's name, if its files do not say it.")
    ] = None,
    define: Annotated[
        str | None,
        typer.Option("--define", metavar="YAML", help="What the system is, if neither ups nor its files say it."),
    ] = None,
    mode: Annotated[
        Literal["all", "adapters", "experts"], typer.Option("--mode", help="What is trained; see above.")
    ] = "all",
    like: Annotated[
        str | None, typer.Option("--like", metavar="TASK", help="The known task to begin as; else the most alike.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Of training; 1000.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Or the time to train for.")] = None,
    curve: Annotated[
        str | None,
        typer.Option("--curve", metavar="N,N,...", help="Also train on so many trajectories, and from nothing."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The new run's; else PARENT-TASK.")] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """Adapt a trained model to a new system. Trains, evaluates and reports, as a new run under --runs.

    \b
    The model keeps what it knows by name: fields, conditions, and the experts of its matrices, which the new system
    mixes at first as the most similar known one does. New channels and parameters get rows of their own. Only the new
    system is trained and evaluated; RUN stays as it is. Interrupted, the same command goes on where it stopped.

    \b
    --mode all        everything is trained (usually the most accurate)
    --mode adapters   shared matrices stay as they are; low-rank additions to them are trained, and:
    --mode experts    the mixture, rows of fields and conditions, positions and the modulation alone

    \b
    Files of a known equation need nothing else, nor do those that describe themselves (The Well, ups data make).
    Others are defined, by a YAML file or on the spot, as under `define:` in a configuration.

    --curve writes error against the number of trajectories, beside the same model trained from nothing for the same
    time: curve.svg, curve.md and curve.json in the run's folder, and a section of its report.

    \b
    Example:
      ups finetune runs/universal --data 1D_Burgers_Sols_Nu0.004.hdf5
      ups finetune runs/universal --data data/*.hdf5 --seconds 60 --curve 4,16,64
      ups finetune runs/universal --data heat.hdf5 --task heat --mode adapters
          --define '{dimension: 1, channels: [temperature], boundary: periodic, parameters: [nu]}'
    """
    from ups.pipeline.finetune import finetune as adapt
    from ups.pipeline.learning_curve import curve_table
    from ups.report.verdict import metrics_table
    from ups.track.progress import Progress

    Progress.silent = Progress.silent or as_json
    files, overrides = _sorted(more or [])
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # so that standard output is JSON alone
        done = adapt(
            run,
            [*data, *files],
            task=task,
            define=None if define is None else _definition(define),
            mode=mode,
            like=like,
            steps=steps,
            seconds=seconds,
            curve=_counts(curve),
            name=name,
            runs=runs,
            overrides=overrides,
            command=shlex.join(["ups", *sys.argv[1:]]),
        )
    if as_json:
        found = {"run": str(done.directory), "task": done.task, "notes": done.notes, "metrics": done.metrics}
        print(json.dumps(found | {"curve": done.curve}, indent=2))
        return
    print(metrics_table(done.metrics))
    if done.curve is not None:
        print(f"\n{curve_table(done.curve)}\n\ncurve: {done.directory / 'curve.svg'}")
    print(f"\nreport: {done.directory / 'report.html'}")


def _sorted(more: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files, and overrides: what has an equals sign and is not there as a file."""
    overrides = [word for word in more if "=" in word and not Path(word).exists()]
    return [word for word in more if word not in overrides], overrides


def _definition(text: str) -> dict[str, Any]:
    """From a YAML file, or from the text itself."""
    from ups.config.text import parse_yaml

    path = Path(text).expanduser()
    written = "{" not in text and "\n" not in text
    if written and not path.is_file():
        raise UserError(f"--define {text}: there is no such file; name a YAML file, or write {{dimension: 1, ...}}")
    defined = parse_yaml(path.read_text() if written else text)
    if not isinstance(defined, dict):
        raise UserError(f"--define {text} is no mapping; write dimension, channels and boundary, each with its value")
    return defined


def _counts(curve: str | None) -> list[int]:
    """`"4,16"` as `[4, 16]`."""
    if curve is None:
        return []
    counts = [word.strip() for word in curve.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in counts):
        raise UserError(f"--curve {curve}: give numbers of trajectories, such as --curve 4,16,64")
    return [int(word) for word in counts]
