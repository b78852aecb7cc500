"""Pictures of a benchmark: curves whose vertical axis is logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def draw(path: Path, curves: Sequence[tuple[str, Sequence[float], Sequence[float]]], **axes_settings: Any) -> None:
    """Curves (name, x, y); those of one name have one colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(name for name, _, _ in curves))
    drawn: set[str] = set()
    for name, x, y in curves:
        axes.plot(x, y, marker="o", markersize=3, color=f"C{names.index(name)}", label=None if name in drawn else name)
        drawn.add(name)
    axes.set(yscale="log", **axes_settings)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
