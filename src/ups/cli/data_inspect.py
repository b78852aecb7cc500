"""`ups data inspect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Json


def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A data file that ups can read.")], as_json: Json = False
) -> None:
    """Say what is in a data file. Axes, shapes, times, parameters, ranges, and problems such as NaN.

    \b
    Example:
      ups data inspect data/1D_Advection_Sols_beta0.4.hdf5
    """
    from ups.data.inspect import describe, inspect_dataset
    from ups.data.open import open_dataset

    found = inspect_dataset(open_dataset(file))
    print(json.dumps(found, indent=2) if as_json else describe(found))
