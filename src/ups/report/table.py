"""The metrics of a run as a few lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ups.report.legend import Legend


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """One line a task and view: the nRMSE of every predictor, and the model's over each of its rivals'."""
    legend = Legend.read(metrics)
    own = legend.title(legend.model)
    titles = [legend.title(name) for name in legend.names]
    rows = [("nRMSE", "", *titles, *(f"{own} / {legend.title(name)}" for name in legend.rivals))]
    for task, views in metrics["tasks"].items():
        for view, measured in views.items():
            values = measured["nrmse"]
            model = values["model"]
            numbers = [_number(values[name]) if name in values else "-" for name in legend.names]
            ratios = [_number(model / values[name]) if model and values.get(name) else "-" for name in legend.rivals]
            rows.append((task, view.replace("_", " "), *numbers, *ratios))
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            c.ljust(w) if n < 2 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _number(value: float | None) -> str:
    """Four decimals, or an exponent where nobody would read so many digits; JSON has null for what is not finite."""
    if value is None:
        return "not finite"
    return f"{value:.4f}" if value < 1e4 else f"{value:.1e}"
