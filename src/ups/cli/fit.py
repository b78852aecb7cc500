"""`ups fit`."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ups.cli.arguments import Axes, Boundary, Channels, Dt, Json, Lengths, Overrides, Runs, told_options
from ups.errors import UserError


def fit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Arrays: .npy .npz .pt .nc .zarr .h5 .mat .csv, or any data.")
    ],
    overrides: Overrides = None,
    dt: Dt = None,
    lengths: Lengths = None,
    boundary: Boundary = None,
    axes: Axes = None,
    channels: Channels = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--parameter", metavar="NAME=FILE.npy", help="A number for each trajectory; repeat for several."),
    ] = None,
    static: Annotated[
        list[str] | None,
        typer.Option("--static", metavar="NAME=FILE.npy", help="A field that does not change; repeat for several."),
    ] = None,
    forcings: Annotated[
        list[str] | None,
        typer.Option("--forcing", metavar="NAME[=FILE.npy]", help="A field that acts on them; alone, it lies in FILE."),
    ] = None,
    mask: Annotated[
        str | None, typer.Option("--mask", metavar="NAME|FILE.npy", help="Not zero where points are in the domain.")
    ] = None,
    uneven: Annotated[
        str | None, typer.Option("--uneven", metavar="KIND", help="Of uneven times: resample, or own for each step.")
    ] = None,
    budget: Annotated[str, typer.Option("--budget", metavar="TIME", help="For all of it: 90 s, 2 min, 1 h.")] = "2 min",
    compare: Annotated[
        list[str] | None, typer.Option("--compare", metavar="NAME", help="Train it as long beside the model: fno.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The run's; else the file's.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of splits, weights and batches.")] = 0,
    runs: Runs = Path("runs"),
    as_json: Json = False,
) -> None:
    """From an array to a trained simulator. What is not said is found in the data or assumed, and shown in a table.

    \b
    Arrays hold trajectories: (trajectory, time, x, y, channel), or in another order. Archives and netCDF may hold
    several: fields, t, x, parameters (one number a trajectory) and static fields, by name. Interrupted, the same
    command goes on where it stopped.

    \b
    Example:
      ups fit u.npy --dt 0.05 --lengths 1.0 --boundary periodic --parameter nu=nu.npy
      ups fit flow.nc --budget "10 min" --compare fno
      ups fit cavity.npz --boundary periodic,value --dt 0.01 stages.operator.width=48
    """
    from ups.pipeline.fit import fit as learn
    from ups.track.progress import Progress

    Progress.silent = Progress.silent or as_json
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        sim = learn(
            file,
            **told_options(dt, lengths, boundary, axes, channels),
            parameters=_arrays(parameters, "--parameter"),
            static=_arrays(static, "--static"),
            forcings=_arrays(forcings, "--forcing"),
            mask=mask if mask is None or not Path(mask).exists() else _array(mask, f"--mask {mask}"),
            uneven=_uneven(uneven),
            budget=budget,
            compare=compare or (),
            name=name,
            seed=seed,
            runs=runs,
            overrides=overrides or (),
            command=shlex.join(["ups", *sys.argv[1:]]),
        )
    if as_json:
        print(json.dumps({"run": str(sim.run), "tasks": dict(sim.scores)}, indent=2))


def _arrays(settings: list[str] | None, option: str) -> dict[str, Any] | list[str]:
    """`["nu=nu.npy", "g=9.81"]` as arrays by name; names alone are those of arrays in the file."""
    settings = [setting.strip() for setting in settings or ()]
    alone = [setting for setting in settings if "=" not in setting]
    if settings and alone == settings:
        return alone
    found: dict[str, Any] = {}
    for setting in settings:
        name, _, text = (part.strip() for part in setting.partition("="))
        if not name or not text:
            raise UserError(
                f"{option} {setting}: give NAME=FILE.npy, or NAME=NUMBER, or all as names of the file's arrays"
            )
        found[name] = (
            _array(text, f"{option} {setting}") if Path(text).exists() else _number(text, f"{option} {setting}")
        )
    return found


def _array(path: str, option: str) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{option}: {path} is no .npy file ({error})") from None


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{option}: {text} is neither a number nor an .npy file that is there") from None


def _uneven(text: str | None) -> Literal["resample", "own"] | None:
    if text not in (None, "resample", "own"):
        raise UserError(f"--uneven {text}: give resample or own")
    return text
