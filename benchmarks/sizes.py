"""How the time of our training step grows with trajectories in the set, samples in the batch, points, and width.

    python benchmarks/sizes.py                        (two CPU cores: minutes)
    python benchmarks/sizes.py --device cuda --out sizes.png

Each size is doubled while the others stay. The exponent p of time ∝ nᵖ is fitted by least squares in log-log over the
upper half of the range, where the work and no longer its launching sets the time. What should be seen: 0 for the set,
at most 1 for batch and points, at most 2 for the width. Beside each time stands how far it is from the roofline of its
size, as `ups bench` measures it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression
from typing import Any

from ups.bench import roofline, throughput
from ups.bench.contestants import Setting
from ups.bench.data import prepare
from ups.bench.plots import draw
from ups.bench.run import FOREVER
from ups.bench.tasks import TASKS, Model
from ups.bench.trained import Trained
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import Advection

BLOCKS = 3
RANGES = {
    "cuda": {
        "trajectories": (1024, 2048, 4096, 8192),
        "batch": (16, 32, 64, 128, 256, 512),
        "points": (64, 128, 256, 512),
        "width": (32, 64, 128, 256, 512),
    },
    "cpu": {
        "trajectories": (128, 256, 512, 1024),
        "batch": (8, 16, 32, 64, 128),
        "points": (64, 128, 256, 512),
        "width": (16, 32, 64, 128, 256),
    },
}
CENTRE = {
    "cuda": {"trajectories": 1024, "batch": 64, "points": 256, "width": 64},
    "cpu": {"trajectories": 128, "batch": 8, "points": 128, "width": 32},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="also draw the table")
    options = parser.parse_args()
    curves = []
    with Runtime.start(RuntimeConfig(device=options.device, tf32=True), 0) as runtime:
        ceilings = roofline.measure(runtime.device)
        print("| doubled | sizes | ms a step | × roofline | exponent |\n|---|---|---|---|---|", flush=True)
        for name, sizes in RANGES[options.device].items():
            steps = [_step({**CENTRE[options.device], name: size}, runtime, ceilings) for size in sizes]
            times = [1e3 * step["step_seconds"] for step in steps]
            power = exponent(sizes, times)
            shown = ", ".join(f"{time:.3g}" for time in times)
            ratios = ", ".join(f"{step['of_roofline']['moved']:.2g}" for step in steps)
            print(f"| {name} | {', '.join(map(str, sizes))} | {shown} | {ratios} | {power:.2f} |", flush=True)
            curves.append((f"{name} from {sizes[0]}: time ∝ n^{power:.2f}", range(len(times)), times))
    if options.out is not None:
        draw(options.out, curves, xlabel="doublings", ylabel="ms a step")


def _step(sizes: dict[str, int], runtime: Runtime, ceilings: roofline.Ceilings) -> dict[str, Any]:
    """The throughput of a step of our Trainer on advection of these sizes."""
    points, width = sizes["points"], sizes["width"]
    model = Model("spectral", {"width": width, "depth": 4, "modes": 32, "head": width}, 1e-3)
    solver = Advection(points=points, beta=0.4)
    task = replace(TASKS["advection"], solver=solver, points=points, latent_spacing=1 / points, frames=3)
    task = replace(task, train=sizes["trajectories"], validation=1, test=1, batch_size=sizes["batch"])
    task = replace(task, models={"ours": model})
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(prepare(task, runtime, Path(folder)), runtime, 0, FOREVER, Path(folder))
        timing = throughput.begin(lambda: Trained("ours", setting), runtime.device)
        for _ in range(BLOCKS):
            throughput.round_of(timing, runtime.device)
        return throughput.result(timing, model, task.batch_size, ceilings)


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """p of seconds ∝ sizeᵖ by least squares in log-log over the larger half of the sizes (three at least)."""
    kept = max(3, len(sizes) // 2 + 1)
    x, y = ([math.log(v) for v in values[-kept:]] for values in (sizes, seconds))
    return linear_regression(x, y).slope


if __name__ == "__main__":
    main()
