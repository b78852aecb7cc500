"""`ups run`."""

from __future__ import annotations

from pathlib import Path

from ups.cli.arguments import Config, Gpus, Overrides, Runs


def run(config: Config, overrides: Overrides = None, runs: Runs = Path("runs"), gpus: Gpus = None) -> None:
    """Make or open data, train, evaluate and write a report. Interrupted, it goes on where it was when run again.

    With --gpus the stages are trained by that many supervised ranks; all else is done by one process.

    \b
    Example:
      ups run quickstart
      ups run quickstart stages.operator.width=96 name=wide --runs /tmp/runs
      ups run quickstart compare.unet.width=16 name=both
      ups run quickstart --gpus 8
    """
    if gpus is not None:
        from ups.distributed.launch.supervisor import import_torch

        import_torch()

    from ups import pipeline

    pipeline.run(config, overrides or [], runs, gpus)
