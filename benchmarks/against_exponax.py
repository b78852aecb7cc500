"""The two- and three-dimensional spectral equations against exponax, a spectral solver in JAX that nobody here wrote.

    python benchmarks/against_exponax.py --exponax PYTHON

PYTHON is an interpreter with exponax and jax installed; it need not have ups. Starts are drawn by ups and handed over
in a file; both solve them in float64, exponax with a fourth-order scheme and steps of its own; the table gives the
relative difference after one time unit, where the bar is 1e-3, and after a longer time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

BAR = 1e-3
CASES: dict[str, dict[str, float]] = {
    "Gray-Scott, maze, F 0.029 k 0.057, 128²": {"F": 0.029, "k": 0.057, "points": 128, "later": 100.0},
    "Gray-Scott, spirals, F 0.018 k 0.051, 128²": {"F": 0.018, "k": 0.051, "points": 128, "later": 100.0},
    "Gray-Scott in 3D, maze, F 0.029 k 0.057, 64³": {"F": 0.029, "k": 0.057, "points": 64, "later": 40.0, "axes": 3},
    "vorticity, decaying, ν 1e-3, 64²": {"nu": 1e-3, "points": 64, "later": 5.0},
    "vorticity, decaying, ν 1e-4, 128²": {"nu": 1e-4, "points": 128, "later": 5.0},
    "wave, c 0.3, away from the sides, 256²": {"c": 0.3, "points": 256, "later": 1.125},
}


def ours(case: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """The start (C, X, Y), and the states after one time unit and after the later one (2, C, X, Y)."""
    import torch

    from ups.equations import GrayScott, GrayScott3D, Vorticity, Wave

    n = int(case["points"])
    times = torch.tensor([1.0, case["later"]], dtype=torch.float64)
    if "F" in case:
        equation = (GrayScott3D if "axes" in case else GrayScott)(F=case["F"], k=case["k"])
        start = equation.start(0, [0], n)
        rolled = equation.roll(start, times)
        return start[0].movedim(-1, 0).numpy(), rolled[0].movedim(-1, 1).numpy()
    if "nu" in case:
        equation = Vorticity(points=n, nu=case["nu"])
        start = 5 * equation.start(0, [0], n)  # five times faster than published: vortices turn within the time
        rolled = equation.roll(start, times, force=torch.zeros_like(start[0]))
        return start.numpy(), rolled[0, :, None].numpy()
    x = (torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5
    start = torch.exp(-(x[:, None] ** 2 + x**2) / (2 * 0.039**2))[None]  # the narrowest drawn; it stays off our sides
    rolled = Wave().roll_in(start, torch.full_like(start, case["c"]), times)
    return torch.cat((start, torch.zeros_like(start))).numpy(), rolled[0].movedim(-1, 1).numpy()


def theirs(case: dict[str, float], start: np.ndarray) -> np.ndarray:
    """The same by exponax; runs in the other interpreter."""
    import exponax
    import jax

    jax.config.update("jax_enable_x64", True)
    n = int(case["points"])
    if "F" in case:
        dt = 0.25
        axes, length = (3, 1.0) if "axes" in case else (2, 2.0)
        stepper = exponax.stepper.reaction.GrayScott(
            axes, length, n, dt, feed_rate=case["F"], kill_rate=case["k"], order=4, dealiasing_fraction=1.0
        )
    elif "nu" in case:
        # Its stream function is Δ⁻¹ω where ours is −Δ⁻¹ω: with the scale −1 both mean ω = ∂v_y/∂x − ∂v_x/∂y.
        dt = 1 / 256
        stepper = exponax.stepper.NavierStokesVorticity(
            2, 1.0, n, dt, diffusivity=case["nu"], vorticity_convection_scale=-1.0, order=4
        )
    else:
        dt = 0.125
        stepper = exponax.stepper.Wave(2, 1.0, n, dt, speed_of_sound=case["c"])
    first = exponax.repeat(stepper, round(1 / dt))(jax.numpy.asarray(start))
    last = exponax.repeat(stepper, round((case["later"] - 1) / dt))(first)
    return np.stack([np.asarray(first), np.asarray(last)])


def run_theirs(folder: Path) -> None:
    """What the other interpreter does: every start in the folder to every end."""
    for number, case in enumerate(CASES.values()):
        np.savez(folder / f"theirs{number}.npz", end=theirs(case, np.load(folder / f"start{number}.npz")["start"]))


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exponax", metavar="PYTHON", help="an interpreter with exponax and jax")
    parser.add_argument("--theirs", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.theirs:
        run_theirs(Path(arguments.theirs))
        return 0
    if not arguments.exponax:
        parser.error("name an interpreter that has exponax: --exponax PYTHON")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ends = []
        for number, case in enumerate(CASES.values()):
            start, end = ours(case)
            np.savez(folder / f"start{number}.npz", start=start)
            ends.append((start, end))
        subprocess.run([arguments.exponax, __file__, "--theirs", name], check=True)
        print("| case | change in one time unit | difference after 1 | after | difference then |")
        print("|---|---|---|---|---|")
        worst = 0.0
        for number, (title, case) in enumerate(CASES.items()):
            start, end = ends[number]
            other = np.load(folder / f"theirs{number}.npz")["end"]
            first, last = relative(end[0], other[0]), relative(end[1], other[1])
            worst = max(worst, first)
            print(f"| {title} | {relative(end[0], start):.2g} | {first:.1e} | {case['later']:g} | {last:.1e} |")
    if not worst < BAR:
        print(f"above the bar of {BAR:g}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
