"""`ups data fetch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Json
from ups.errors import Stopped, UserError


def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="A published name, a pattern in quotes, or an address.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder to bring files into.")] = Path("data"),
    listed: Annotated[bool, typer.Option("--list", help="List what the names match; fetch nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch published data files. Interrupted, it goes on where it stopped; every checksum that is known is checked.

    \b
    PDEBench:  the published file name, such as 1D_Burgers_Sols_Nu0.001.hdf5 (--list shows all)
    The Well:  well/DATASET/PATH, such as 'well/active_matter/data/test/*'
    PDEGym:    pdegym/DATASET/PATH, such as 'pdegym/NS-Sines/*'

    \b
    Example:
      ups data fetch --list '1D_Burgers_*'
      ups data fetch 1D_Burgers_Sols_Nu0.001.hdf5 --out data
    """
    from ups.data.fetch import fetch as fetch_file
    from ups.data.published import find_published
    from ups.track.progress import Progress

    if not names and not listed:
        raise UserError("give the NAME of a published file; `ups data fetch --list` shows them")
    files = [file for name in names or ["*"] for file in find_published(name)]
    if listed:
        if as_json:
            found = [{"name": f.name, "url": f.url, "checksum": f.checksum, "bytes": f.size} for f in files]
            print(json.dumps(found, indent=2))
            return
        for file in files:
            print(file.name if file.size is None else f"{file.name}  {file.size / 1e9:.2f} GB")
        return
    for file in files:
        with Progress(file.path.name, total=0, unit="MB") as progress:

            def count(done: int, total: int, progress: Progress = progress) -> None:
                progress.total = total // 10**6
                progress.update(done // 10**6)

            try:
                path = fetch_file(file, out, count)
            except KeyboardInterrupt:
                raise Stopped(f"what has arrived of {file.path.name} is kept in {out}") from None
        print(path)
