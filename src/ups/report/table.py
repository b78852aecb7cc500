"""The metrics of a run as a few lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADER = ("task", "", "nRMSE", "persistence", "FNO", "of persistence", "of FNO")


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """One line a task and view: the model's nRMSE beside persistence (the mean, if steady) and FNO, with ratios."""
    rows: list[tuple[str, ...]] = [HEADER]
    for task, views in metrics["tasks"].items():
        for view, measured in views.items():
            nrmse = measured["nrmse"]
            model, persistence, fno = nrmse["model"], nrmse.get("persistence"), nrmse.get("fno")
            ratios = [model / other if other else None for other in (persistence, fno)]
            numbers = [_number(value) for value in (model, persistence, fno, *ratios)]
            rows.append((task, view.replace("_", " "), *numbers))
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            c.ljust(w) if n < 2 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
