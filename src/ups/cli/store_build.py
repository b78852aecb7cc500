"""`ups store build`."""

from __future__ import annotations

from pathlib import Path

from ups.cli.arguments import Config, Overrides, Runs, Workers


def build(config: Config, overrides: Overrides = None, runs: Runs = Path("runs"), workers: Workers = None) -> None:
    """Make or open the data of a run and write its stores. Interrupted, the same command goes on where it stopped.

    \b
    A store holds the normalised training fields of one task, ready to be read; training of the same run finds it.
    What is complete is left as it is, and only shards that are missing or cut are written. The bytes do not depend
    on the number of workers. data.store=float16 takes half the room.

    \b
    Example:
      ups store build quickstart
      ups store build big.yaml --workers 16 data.store=float16 --runs /shared/runs
    """
    from ups import pipeline
    from ups.data.generate.workers import all_cores

    for path in pipeline.build_stores(config, overrides or [], runs, workers or all_cores()):
        print(path)
