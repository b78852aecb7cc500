"""`ups evaluate`."""

from __future__ import annotations

import json

from ups.cli.arguments import Json, Run


def evaluate(run: Run, as_json: Json = False) -> None:
    """Measure a trained run on its test data. Persistence and what the run compares with stand beside it.

    \b
    Example:
      ups evaluate runs/quickstart
      ups evaluate runs/quickstart --json > metrics.json
    """
    from ups import pipeline
    from ups.report.table import metrics_table
    from ups.track.progress import Progress

    Progress.silent = Progress.silent or as_json  # progress lines would break the JSON
    metrics = pipeline.evaluate(run)
    print(json.dumps(metrics, indent=2) if as_json else metrics_table(metrics))
