"""Our one-dimensional solvers against others': exponax (JAX, spectral), and SciPy where exponax has not the equation.

    python -m venv other && other/bin/pip install exponax 'jax[cpu]' scipy
    python benchmarks/against_exponax_1d.py --exponax other/bin/python

Both start from the same float64 samples, which go to the other interpreter in a file, as its answers come back. The
table gives the largest relative difference ‖ours − theirs‖/‖theirs‖ of 16 or more trajectories; the bar is 10⁻³ after
one time unit, or earlier where the solution is uniform by then.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BAR = 1e-3


@dataclass(frozen=True)
class Case:
    """An equation's settings, the grid, the time to reach, the other solver's steps, how many random starts."""

    equation: str
    settings: tuple[tuple[str, float], ...]
    points: int
    time: float
    steps: int
    trajectories: int = 16

    @property
    def key(self) -> str:
        return "_".join([self.equation, *(f"{name}{value}" for name, value in self.settings), f"t{self.time}"])


CASES = (
    Case("advection", (("beta", 0.7),), 1024, 1.0, 1, trajectories=64),
    Case("burgers", (("nu", 0.1),), 256, 1.0, 4000),
    Case("burgers", (("nu", 0.01),), 1024, 1.0, 10000),
    Case("reaction_diffusion", (("nu", 0.5), ("rho", 0.0)), 256, 0.02, 1),
    Case("reaction_diffusion", (("nu", 0.5), ("rho", 1.0)), 256, 1.0, 10000),
    Case("reaction_diffusion", (("nu", 5.0), ("rho", 10.0)), 256, 0.2, 20000),
    Case("reaction_diffusion", (("nu", 0.001), ("rho", 10.0)), 1024, 1.0, 4000),
    Case("kuramoto_sivashinsky", (("length", 64.0),), 256, 1.0, 200),
    Case("kuramoto_sivashinsky", (("length", 64.0),), 256, 10.0, 2000),
    Case("diffusion_sorption", (), 256, 5.0, 0),
    Case("diffusion_sorption", (), 256, 500.0, 0),
)


def ours(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The start and our solution, (trajectories, points)."""
    import torch

    from ups.equations import DiffusionSorption, KuramotoSivashinsky, RandomWaves, ReactionDiffusion
    from ups.equations.named import named_equation

    equation = named_equation(case.equation, {"points": case.points, **dict(case.settings)})
    assert equation.dimension == 1
    x, ids = equation.grid.positions[0], range(case.trajectories)
    times = torch.tensor([case.time], dtype=torch.float64)
    if isinstance(equation, ReactionDiffusion):
        start = equation.start(0, ids, x)
    elif isinstance(equation, DiffusionSorption):
        start = equation.start(0, ids)[:, None].repeat(1, case.points)
    elif isinstance(equation, KuramotoSivashinsky):
        warm = torch.tensor([equation.warm_up], dtype=torch.float64)
        start = equation.roll(equation.start(0, ids, x), warm)[:, 0]
    else:
        start = RandomWaves.draw(0, ids)(x)
    if case.equation == "advection":  # what is stored: the function itself, moved
        return start.numpy(), RandomWaves.draw(0, ids)(x - equation.parameters["beta"] * case.time).numpy()
    return start.numpy(), equation.roll(start, times)[:, 0].numpy()


def theirs(case: Case, start: np.ndarray) -> np.ndarray:
    """The other solver's solution from the same start; runs in the other interpreter."""
    if case.equation == "diffusion_sorption":
        return np.stack([sorbed(u0, case.time) for u0 in start])
    import exponax
    import jax

    jax.config.update("jax_enable_x64", True)
    value = dict(case.settings)
    grid = (1, value.get("length", 1.0), case.points, case.time / case.steps)
    stepper = exponax.stepper
    if case.equation == "advection":
        solver = stepper.Advection(*grid, velocity=value["beta"])
    elif case.equation == "burgers":
        solver = stepper.Burgers(*grid, diffusivity=value["nu"] / math.pi, order=4)
    elif case.equation == "kuramoto_sivashinsky":
        solver = stepper.KuramotoSivashinskyConservative(*grid, order=4)
    elif value["rho"] == 0:
        solver = stepper.Diffusion(*grid, diffusivity=value["nu"])
    else:
        solver = stepper.reaction.FisherKPP(*grid, diffusivity=value["nu"], reactivity=value["rho"], order=4)
    march = jax.jit(jax.vmap(exponax.repeat(solver, case.steps)))
    return np.asarray(march(start[:, None]))[:, 0]


def sorbed(u0: np.ndarray, end: float) -> np.ndarray:
    """∂u/∂t = D/R(u) ∂²u/∂x² by finite volumes in space and SciPy's Radau, to a tolerance of 10⁻⁹."""
    from scipy.integrate import solve_ivp
    from scipy.sparse import diags

    n, d = len(u0), 5e-4

    def change(_: float, u: np.ndarray) -> np.ndarray:
        wall = u[-1] / (1 + 1 / (2 * n * d))
        flux = -d * n * np.concatenate(([2 * (u[0] - 1)], np.diff(u), [2 * (wall - u[-1])]))
        return -n * np.diff(flux) / (1 + 0.71 / 0.29 * 2880 * 3.5e-4 * 0.874 * (np.maximum(u, 0) + 1e-6) ** -0.126)

    neighbours = diags([np.ones(n - 1), np.ones(n), np.ones(n - 1)], [-1, 0, 1])
    solved = solve_ivp(change, (0.0, end), u0, "Radau", [end], rtol=1e-8, atol=1e-10, jac_sparsity=neighbours)
    return solved.y[:, -1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exponax", metavar="PYTHON", help="an interpreter that has exponax and SciPy")
    parser.add_argument("--answer", nargs=2, metavar=("STARTS", "ENDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        with np.load(options.answer[0]) as starts:
            np.savez(options.answer[1], **{case.key: theirs(case, starts[case.key]) for case in CASES})
        return
    if not options.exponax:
        parser.error("give --exponax PYTHON, an interpreter that has exponax and SciPy")
    solved = {case.key: ours(case) for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        starts, ends = Path(folder) / "starts.npz", Path(folder) / "ends.npz"
        np.savez(starts, **{key: start for key, (start, _) in solved.items()})
        subprocess.run([options.exponax, __file__, "--answer", str(starts), str(ends)], check=True)
        with np.load(ends) as found:
            answers = {key: found[key] for key in solved}
    print("| equation | settings | points | time | relative difference |\n|---|---|---|---|---|")
    worst = 0.0
    for case in CASES:
        end, answer = solved[case.key][1], answers[case.key]
        difference = float((np.linalg.norm(end - answer, axis=1) / np.linalg.norm(answer, axis=1)).max())
        worst = max(worst, difference) if math.isfinite(difference) else math.inf
        settings = ", ".join(f"{name} {value:g}" for name, value in case.settings)
        print(f"| {case.equation} | {settings} | {case.points} | {case.time:g} | {difference:.1e} |")
    if worst >= BAR:
        sys.exit(f"a difference of {worst:.1e} is above the bar of {BAR:g}")


if __name__ == "__main__":
    main()
