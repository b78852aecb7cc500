"""`ups report`."""

from __future__ import annotations

from ups.cli.arguments import Run


def report(run: Run) -> None:
    """Write the report of an evaluated run again. It is one HTML file, whose path is printed.

    \b
    Example:
      ups report runs/quickstart
    """
    from ups import pipeline

    print(pipeline.report(run))
