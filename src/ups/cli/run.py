"""`ups run`."""

from __future__ import annotations

from pathlib import Path

from ups.cli.arguments import Config, Overrides, Runs


def run(config: Config, overrides: Overrides = None, runs: Runs = Path("runs")) -> None:
    """Make or open data, train, evaluate and write a report. Interrupted, it goes on where it was when run again.

    \b
    Example:
      ups run quickstart
      ups run quickstart operator.width=96 name=wide --runs /tmp/runs
    """
    from ups import pipeline

    pipeline.run(config, overrides or [], runs)
