"""`ups train`."""

from __future__ import annotations

from pathlib import Path

from ups.cli.arguments import Config, Overrides, Runs


def train(config: Config, overrides: Overrides = None, runs: Runs = Path("runs")) -> None:
    """Train only. Makes or opens the data and stops at the best checkpoint, without evaluation and report.

    \b
    Example:
      ups train quickstart operator.width=96
    """
    from ups import pipeline

    pipeline.train(config, overrides or [], runs)
