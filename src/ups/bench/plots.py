"""Two pictures a task: rollout error over training time, and samples a second."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ups.bench.contestants import ENTRIES, ordered

COLOURS = (
    *("#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7", "#1b1b1b", "#7a7a7a"),
    *("#882255", "#44aa99", "#999933", "#332288", "#dd9988"),
)
"""One for each contestant there is."""


def draw(task: str, content: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write what there is to draw; the files."""
    from matplotlib.figure import Figure

    rows = [row for row in ordered(content) if row.get("state") == "done"]
    colour = {entry.title: COLOURS[number] for number, entry in enumerate(ENTRIES)}
    written = []
    if any(row.get("runs") for row in rows):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for row in rows:
            for number, run in enumerate(row.get("runs", {}).values()):
                seconds = [point["seconds"] for point in run["curve"]]
                errors = [point["rollout_nrmse"] for point in run["curve"]]
                label = row["title"] if number == 0 else None
                axes.plot(seconds, errors, marker="o", markersize=3, color=colour[row["title"]], label=label)
        axes.set(yscale="log", xlabel="training time (s)", ylabel="rollout nRMSE, validation", title=task)
        axes.legend(fontsize=8)
        written.append(folder / f"{task}_error.png")
        figure.savefig(written[-1], dpi=150)
    timed = [row for row in rows if row.get("throughput")]
    if timed:
        figure = Figure(figsize=(6.4, 0.6 + 0.36 * len(timed)), layout="constrained")
        axes = figure.add_subplot()
        rates = [row["throughput"]["samples_per_second"] for row in timed]
        bars = axes.barh([row["title"] for row in timed], rates, color=[colour[row["title"]] for row in timed])
        axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], fontsize=8, padding=3)
        axes.set(xlabel="samples a second", title=task, xlim=(0, 1.18 * max(rates)))
        axes.invert_yaxis()
        written.append(folder / f"{task}_throughput.png")
        figure.savefig(written[-1], dpi=150)
    return written


def draw_scaling(series: Mapping[str, Any], path: Path) -> None:
    """A step's time over each size that was doubled, with the fitted exponents in the legend."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter, MaxNLocator

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, found) in enumerate(series.items()):
        times = [first * 1e3 for first in found["seconds"]]
        doublings = range(len(times))
        label = f"{name} from {found['sizes'][0]}: time ∝ n^{found['exponent']:.2f}"
        axes.plot(doublings, times, marker="o", color=COLOURS[number], label=label)
    axes.set(yscale="log", xlabel="doublings", ylabel="ms a step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        ticks(LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5)))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
