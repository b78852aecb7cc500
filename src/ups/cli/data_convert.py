"""`ups data convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Convention, Task, reading_options


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A data file that ups can read.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The new file; an existing one is refused.")],
    layout: Annotated[str | None, typer.Option("--format", metavar="NAME", help="The new file's layout.")] = None,
    task: Task = None,
    convention: Convention = None,
) -> None:
    """Write a data file in another layout. What the new layout does not keep is said; what it cannot hold is refused.

    \b
    Example:
      ups data convert 1D_Burgers_Sols_Nu0.001.hdf5 burgers.hdf5 --format well
    """
    from ups.data.convert import convert as convert_data
    from ups.data.convert import layout_for
    from ups.data.open import open_dataset
    from ups.track.progress import Progress

    name = layout_for(target, layout)
    dataset = open_dataset(source, task, **reading_options(convention))
    with Progress(target.name, total=len(dataset), unit="trajectories") as progress:
        lost = convert_data(dataset, target, name, lambda done, _: progress.update(done))
    for what in lost:
        print(f"not kept: {what}")
    print(target)
