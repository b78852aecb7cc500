"""Arguments that several commands share, and how their text becomes values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ups.errors import UserError

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A packaged name (quickstart) or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Dotted overrides, such as stages.operator.width=96.")
]
Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="The folder that holds all runs.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, such as runs/quickstart.")]
Gpus = Annotated[
    int | None,
    typer.Option("--gpus", "--ranks", min=1, help="Ranks of a machine: one a GPU, or CPU processes without GPUs."),
]
Stage = Annotated[
    str | None,
    typer.Option("--stage", metavar="NAME", help="Train this stage alone, and again if it is trained to its end."),
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines that train together.")]
Slurm = Annotated[
    list[str] | None, typer.Option("--slurm", metavar="NAME=VALUE", help="An option of sbatch; repeat it.")
]
Cloud = Annotated[
    str | None, typer.Option("--cloud", metavar="NAME[/REGION]", help="sky: vast, runpod, lambda, k8s, aws ...")
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="KIND", help="sky: such as H200.")]
Storage = Annotated[
    str | None, typer.Option("--storage", metavar="PLACE", help="sky: where runs are kept, a bucket or a volume.")
]
Spot = Annotated[bool, typer.Option("--spot", help="sky: machines that may be taken back, and are replaced.")]
Install = Annotated[
    str | None, typer.Option("--install", metavar="PACKAGE", help="sky: what pip installs; this version of ups.")
]
Secrets = Annotated[
    list[str] | None, typer.Option("--secret", metavar="NAME", help="A variable that the run gets; repeat it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the equation; repeat it for several."),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A data file that ups can read.")]
Task = Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task, if the file does not say it.")]
Convention = Annotated[
    str | None,
    typer.Option("--convention", metavar="KIND", help="For pairs: cell_centred or nodal, where their points lie."),
]
Dt = Annotated[float | None, typer.Option("--dt", help="For plain arrays: the time between frames.")]
Lengths = Annotated[
    str | None,
    typer.Option("--lengths", metavar="L,L", help="For plain arrays: the domain's lengths, or LOWER:UPPER each."),
]
Boundary = Annotated[
    str | None,
    typer.Option("--boundary", metavar="KIND,KIND", help="For plain arrays: one kind of side, or one an axis."),
]
Axes = Annotated[
    str | None,
    typer.Option("--axes", metavar="BTXC", help="For plain arrays: what each axis is, such as BXTC; else found."),
]
Channels = Annotated[
    str | None, typer.Option("--channels", metavar="NAME,NAME", help="For plain arrays: the channels' names.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes; all cores if not given. Results do not depend on it.")
]


def parse_words(settings: Sequence[str] | None) -> dict[str, float | str]:
    """`["beta=0.4", "initial=random"]` as `{"beta": 0.4, "initial": "random"}`."""
    values: dict[str, float | str] = {}
    for setting in settings or ():
        name, _, text = setting.partition("=")
        if not name.strip() or not text.strip():
            raise UserError(f"--set {setting}: give NAME=VALUE, such as --set beta=0.4")
        try:
            values[name.strip()] = float(text)
        except ValueError:
            values[name.strip()] = text.strip()
    return values


def reading_options(convention: str | None) -> dict[str, str]:
    """What a reader is told besides the task."""
    return {} if convention is None else {"convention": convention}


def told_options(
    dt: float | None, lengths: str | None, boundary: str | None, axes: str | None, channels: str | None
) -> dict[str, Any]:
    """What was said of plain arrays, without what was not."""
    spans = None
    if lengths is not None:
        ends = [[_number(end, f"--lengths {lengths}") for end in text.split(":")] for text in lengths.split(",")]
        if any(len(pair) > 2 for pair in ends):
            raise UserError(f"--lengths {lengths}: give lengths such as 1,0.5, or ends such as -1:1,0:2")
        spans = [pair[0] if len(pair) == 1 else (pair[0], pair[1]) for pair in ends]
    sides = boundary if boundary is None or "," not in boundary else boundary.split(",")
    names = None if channels is None else channels.split(",")
    told = {"dt": dt, "lengths": spans, "boundary": sides, "axes": axes, "channels": names}
    return {name: value for name, value in told.items() if value is not None}


def parse_settings(settings: Sequence[str] | None) -> dict[str, float]:
    """`["beta=0.4"]` as `{"beta": 0.4}`, numbers alone."""
    return {name: _number(str(value), f"--set {name}={value}") for name, value in parse_words(settings).items()}


def parse_times(times: str | None) -> list[float] | None:
    """`"0.1,0.2"` as `[0.1, 0.2]`."""
    return None if times is None else [_number(text, f"--times {times}") for text in times.split(",")]


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{option}: {text.strip()!r} is not a number") from None
