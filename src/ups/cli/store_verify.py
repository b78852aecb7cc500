"""`ups store verify`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Json


def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A store, or a run whose stores are all to be read.")],
    as_json: Json = False,
) -> None:
    """Read every byte of a store, or of all stores of a run, and name what is damaged. Exit code 1 if anything is.

    \b
    Example:
      ups store verify runs/quickstart
      ups store verify runs/quickstart/store/burgers --json
    """
    from ups.store.verify import described, verify_all
    from ups.track.progress import Progress

    with Progress(f"reading {path.name}", total=0, unit="MB", quiet=as_json) as progress:

        def count(done: int, total: int) -> None:
            progress.total = -(-total // 10**6)
            progress.update(-(-done // 10**6))

        found = verify_all(path, count)
    print(json.dumps([asdict(store) for store in found], indent=2) if as_json else described(found))
    if any(store.problems for store in found):
        raise typer.Exit(1)
