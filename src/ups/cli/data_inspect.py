"""`ups data inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Json


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A data file that ups can read.")],
    task: Annotated[str | None, typer.Option(metavar="NAME", help="The task, if the file does not say it.")] = None,
    convention: Annotated[
        str | None, typer.Option(metavar="KIND", help="For pairs: cell_centred or nodal, where their points lie.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what is in a data file. Axes, shapes, times, parameters, ranges, and problems such as NaN.

    \b
    Example:
      ups data inspect data/1D_Advection_Sols_beta0.4.hdf5
      ups data inspect darcy_train_16.pt --convention nodal --json
    """
    from ups.data.inspect import describe, inspect_dataset
    from ups.data.open import open_dataset

    options = {} if convention is None else {"convention": convention}
    found = inspect_dataset(open_dataset(file, task, **options))
    print(json.dumps(found, indent=2) if as_json else describe(found))
