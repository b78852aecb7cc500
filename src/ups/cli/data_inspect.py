"""`ups data inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Convention, Json, Task, reading_options


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A data file that ups can read.")],
    task: Task = None,
    convention: Convention = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Also draw the first trajectories as a picture.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say and show what is in a data file. Axes, boundaries, parameters, ranges, and problems: NaN, duplicates.

    \b
    Example:
      ups data inspect data/1D_Advection_Sols_beta0.4.hdf5 --plot advection.png
      ups data inspect darcy_train_16.pt --convention nodal --json
    """
    from ups.data.inspect import describe, inspect_dataset, layout_name
    from ups.data.open import open_dataset
    from ups.data.sketch import sketch

    dataset = open_dataset(file, task, **reading_options(convention))
    found = {"layout": layout_name(file)} | inspect_dataset(dataset)
    print(json.dumps(found, indent=2) if as_json else describe(found), flush=True)
    if not as_json:
        print(f"\n{sketch(dataset)}", flush=True)
    if plot is not None:
        from ups.data.picture import draw

        draw(dataset, plot)
