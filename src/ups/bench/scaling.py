"""`ups bench --scaling`: how the time of our step grows with trajectories in the set, samples in the batch, points, and
width.

Each size is doubled while the others stay. The exponent p of time ∝ nᵖ is fitted by least squares in log-log over the
upper half of the range, where the work and no longer its launching sets the time. What should be seen: 0 for the set,
at most 1 for batch and points, at most 2 for the width. Beside each time stands how far it is from the roofline of its
size.
"""

from __future__ import annotations

import json
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
from ups.bench.run import FOREVER, Options, machine, owned
from ups.bench.tasks import TASKS, Model
from ups.bench.trained import Trained
from ups.distributed.runtime.start import Runtime
from ups.durable import write
from ups.equations import Advection
from ups.track.progress import Progress

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


def scale(options: Options, *, as_json: bool = False) -> int:
    """Measure, write `scaling.json` and `scaling.png`, and print a table."""
    with owned(options.out), Runtime.start(options.runtime, options.seeds[0]) as runtime:
        kind = runtime.device.type
        found: dict[str, Any] = {"machine": machine(runtime.device), "command": options.command, "series": {}}
        ceilings = roofline.measure(runtime.device)
        with Progress("scaling", total=sum(map(len, RANGES[kind].values())), unit="sizes") as progress:
            for name, sizes in RANGES[kind].items():
                steps = []
                for size in sizes:
                    steps.append(_step({**CENTRE[kind], name: size}, runtime, ceilings))
                    progress.update(progress.done + 1, f"{name} {size}: {1e3 * steps[-1]['step_seconds']:.3g} ms")
                    runtime.check_stop("nothing of --scaling is kept")
                seconds = [step["step_seconds"] for step in steps]
                found["series"][name] = {
                    "sizes": list(sizes),
                    "seconds": seconds,
                    "of_roofline": [step["of_roofline"]["moved"] for step in steps],
                    "exponent": exponent(sizes, seconds),
                }
        write(options.out / "scaling.json", (json.dumps(found, indent=1) + "\n").encode())
        curves = [
            (f"{name} from {s['sizes'][0]}: time ∝ n^{s['exponent']:.2f}", range(len(s["seconds"])), s["seconds"])
            for name, s in found["series"].items()
        ]
        draw(options.out / "scaling.png", curves, xlabel="doublings", ylabel="s a step")
    print(json.dumps(found, indent=1) if as_json else table(found))
    return 0


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


def table(found: dict[str, Any]) -> str:
    where = found["machine"]
    lines = [f"{where['device']}, torch {where['torch']}, {where['date']}, `{found['command']}`", ""]
    lines += ["| doubled | sizes | ms a step | × roofline | exponent |", "|---|---|---|---|---|"]
    for name, series in found["series"].items():
        sizes = ", ".join(map(str, series["sizes"]))
        times = ", ".join(f"{1e3 * s:.3g}" for s in series["seconds"])
        ratios = ", ".join(f"{ratio:.2g}" for ratio in series["of_roofline"])
        lines.append(f"| {name} | {sizes} | {times} | {ratios} | {series['exponent']:.2f} |")
    return "\n".join(lines)
