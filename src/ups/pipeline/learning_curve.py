"""Error against the number of trajectories, fine-tuned and from nothing, as numbers, a table and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ups.durable import write

FROM_NOTHING = "from_nothing"
"""The same network without a start, trained for the same time."""
CURVE = "curve.json"


def learning_curve(task: str, mode: str, found: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """From the metrics of runs by their number of trajectories: rollouts' nRMSE, or solutions' of a steady task."""
    points = []
    view = "rollout" if all("rollout" in metrics["tasks"][task] for metrics in found.values()) else "one_step"
    for count, metrics in sorted(found.items()):
        entry = metrics["tasks"][task][view]["nrmse"]
        points.append(
            {
                "trajectories": count,
                "finetuned": entry["model"],
                FROM_NOTHING: entry[FROM_NOTHING],
                "persistence": entry["persistence"],
                "ci95": {"finetuned": entry["ci95"], FROM_NOTHING: entry["ci95_of"][FROM_NOTHING]},
                "seconds": {"finetuned": metrics["seconds"]["train"], FROM_NOTHING: metrics["seconds"][FROM_NOTHING]},
            }
        )
    return {"task": task, "mode": mode, "metric": "nrmse", "view": view, "points": points}


def curve_table(curve: Mapping[str, Any]) -> str:
    """In Markdown, which a terminal shows as well."""
    lines = [
        f"{curve['task']}, nRMSE ({curve['view'].replace('_', ' ')})",
        "",
        "| trajectories | fine-tuned | from nothing | ratio | persistence | seconds each |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for point in curve["points"]:
        tuned, nothing = point["finetuned"], point[FROM_NOTHING]
        ratio = f"{tuned / nothing:.2f}" if tuned and nothing else "-"
        numbers = [_number(value) for value in (tuned, nothing)] + [ratio, _number(point["persistence"])]
        seconds = point["seconds"]
        spent = f"{seconds['finetuned']:.0f}, {seconds[FROM_NOTHING]:.0f}"
        lines.append(f"| {point['trajectories']} | {' | '.join(numbers)} | {spent} |")
    return "\n".join(lines)


def write_curve(directory: Path, curve: Mapping[str, Any]) -> None:
    """`curve.json`, `curve.md` and `curve.svg` of a run."""
    from ups.report.drawing import render  # with matplotlib
    from ups.report.plots import learning_figure

    write(directory / CURVE, (json.dumps(curve, indent=1) + "\n").encode())
    write(directory / "curve.md", (curve_table(curve) + "\n").encode())
    write(directory / "curve.svg", render(learning_figure(curve), "svg"))


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
