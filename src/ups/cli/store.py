"""`ups store`: build and verify."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ups.cli.arguments import Config, Json, Overrides, Runs, Workers


def build(
    config: Config,
    overrides: Overrides = None,
    runs: Runs = Path("runs"),
    workers: Workers = None,
    latents: Annotated[
        bool, typer.Option("--latents", help="The training fields as the run's trained codecs encode them.")
    ] = False,
) -> None:
    """Make or open the data of a run and write its stores. Interrupted, the same command goes on where it stopped.

    \b
    A store holds the normalised training fields of one task, ready to be read; training of the same run finds it.
    What is complete is left as it is, and only shards that are missing or cut are written. The bytes do not depend
    on the number of workers. data.store=float16 takes half the room. With --latents it stores what the run's trained
    codecs make of these fields, which a stage of kind cached is trained on.

    \b
    Example:
      ups store build quickstart
      ups store build big.yaml --workers 16 data.store=float16 --runs /shared/runs
      ups store build generative --latents
    """
    from ups import pipeline
    from ups.data.generate.workers import all_cores

    for path in pipeline.build_stores(config, overrides or [], runs, workers or all_cores(), latents):
        print(path)


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

    with Progress(f"reading {path.name}", total=0, unit="MB", size=10**6, quiet=as_json) as progress:
        found = verify_all(path, progress.tick)
    print(json.dumps([asdict(store) for store in found], indent=2) if as_json else described(found))
    if any(store.problems for store in found):
        raise typer.Exit(1)
