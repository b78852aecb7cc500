"""The moving picture of the README: a trained quickstart beside the solvers, from test starts.

ups run quickstart
python examples/film.py runs/quickstart docs/pictures/quickstart.gif
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import ups
from ups.equations import Advection, Burgers
from ups.rollout.films import Film

SEED = 12345
"""Of starts that no training has seen."""
CASES = (
    ("advection, β = 0.4", Advection(points=128, frames=41, duration=2.0, beta=0.4), {"beta": 0.4}),
    ("Burgers, ν = 0.01", Burgers(points=128, frames=41, duration=2.0, nu=0.01), {"nu": 0.01}),
)


def film(run: Path, path: Path) -> Path:
    sim = ups.load(run)
    figure = Figure(figsize=(6.6, 2.3), dpi=80, layout="constrained")
    moving = []
    for axes, (title, equation, conditions) in zip(figure.subplots(1, 2), CASES, strict=True):
        truth = equation.solve(SEED, range(1)).values[0, :, :, 0].float()
        rollout = sim.rollout(truth[0], steps=len(truth) - 1, conditions=conditions).values[..., 0]
        fields = torch.cat([truth[:1], rollout])
        x, margin = equation.grid.positions[0], 0.1 * float(truth.max() - truth.min())
        axes.plot(x, truth[0], color="0.75", lw=1, label="start")
        (solved,) = axes.plot(x, truth[0], color="#4477aa", lw=4, alpha=0.5, label="solver")
        (learned,) = axes.plot(x, fields[0], color="#cc3311", lw=1.2, label="UPS")
        axes.set(title=title, ylim=(float(truth.min()) - margin, float(truth.max()) + margin), xlim=(0, 1), xlabel="x")
        axes.spines[["top", "right"]].set_visible(False)
        moving.append((solved, learned, truth, fields))
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    clock = figure.text(0.005, 0.98, "", va="top", fontsize=9)
    times = CASES[0][1].times

    def show(frame: int) -> None:
        for solved, learned, truth, fields in moving:
            solved.set_ydata(truth[frame])
            learned.set_ydata(fields[frame])
        clock.set_text(f"t = {float(times[frame]):.2f}")

    still = (len(times) - 1,) * 8
    return Film(figure, (*range(len(times)), *still), show, seconds=4.0).save(path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/film.py RUN OUT.gif")
    made = film(Path(sys.argv[1]), Path(sys.argv[2]))
    print(f"{made}: {made.stat().st_size / 1e6:.2f} MB")
