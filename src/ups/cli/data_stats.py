"""`ups data stats`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Convention, Json, Task, Workers, reading_options


def stats(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A data file that ups can read.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write; else stats.yaml beside the data.")
    ] = None,
    task: Task = None,
    convention: Convention = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Mean, std and rms of every field, and of its change from frame to frame; written in The Well's form.

    \b
    Example:
      ups data stats data/1D_Burgers_Sols_Nu0.001.hdf5
    """
    from ups.data.formats.well.tree import well_stats
    from ups.data.generate.workers import all_cores
    from ups.data.open import open_dataset
    from ups.data.prepare.moments import by_kind, moments, moments_table, statistics_path, write_statistics
    from ups.track.progress import Progress

    dataset = open_dataset(file, task, **reading_options(convention))
    with Progress(file.name, total=0, unit="pieces", quiet=as_json) as progress:

        def count(done: int, total: int) -> None:
            progress.total = total
            progress.update(done)

        found = moments(dataset, workers or all_cores(), count)
    form = well_stats(dataset.header, by_kind(found))
    path = out or statistics_path(file)
    write_statistics(form, path)
    print(json.dumps(form, indent=2) if as_json else f"{moments_table(found)}\n{path}")
