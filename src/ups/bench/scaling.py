"""Our step alone: how its time grows, with trajectories in the set, samples in the batch, points, and width; and the
share of the card's measured matmul rate that the plain transformer at width 1024 in bfloat16 reaches.

Each size is doubled while the others stay. The exponent p of time ∝ nᵖ is fitted by least squares in log-log over the
upper half of the range, where the work and no longer its launching sets the time. What should be seen: 0 for the set,
at most 1 for batch and points, at most 2 for the width. Beside each time stands how far it is from the roofline of its
size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from ups.bench import roofline, throughput
from ups.bench.contestants import Setting
from ups.bench.data import prepare
from ups.bench.plots import draw_scaling
from ups.bench.record import machine
from ups.bench.roofline import Counts
from ups.bench.run import FOREVER, Options
from ups.bench.tasks import TASKS, Model, Task
from ups.bench.throughput import Timing
from ups.bench.trained import Trained
from ups.distributed.runtime.start import Runtime
from ups.durable import write
from ups.equations import Advection
from ups.track.progress import Progress

KEPT = "nothing of --scaling is kept"
BLOCKS, PDET_BLOCKS = 3, 5
_PDET = {"width": 1024, "depth": 8, "expansion": 4.0, "head": 64, "conditions": 64}
PDET = Model("pdet_stack", _PDET, 1e-4, precision="bfloat16")
SMALL_PDET = Model("pdet_stack", _PDET | {"width": 64, "depth": 2, "head": 16, "conditions": 16}, 1e-3)
"""For a CPU, where the number says nothing: only that it runs."""
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


def scale(options: Options) -> dict[str, Any]:
    """Measure, write `scaling.json` and `scaling.png`, and say it in a table."""
    with Runtime.start(options.runtime, options.seeds[0]) as runtime:
        kind = runtime.device.type
        ranges, centre = RANGES[kind], CENTRE[kind]
        found: dict[str, Any] = {"machine": machine(runtime.device), "command": options.command, "series": {}}
        measured = roofline.measure(runtime.device)
        total = sum(map(len, ranges.values()))
        with Progress("scaling", total=total, unit="sizes") as progress:
            done = 0
            for name, sizes in ranges.items():
                seconds, ratios = [], []
                for size in sizes:
                    took, counts = step_of({**centre, name: size}, runtime, options.out / "work")
                    seconds.append(took)
                    ratios.append(took / measured.roofline(counts.flop, counts.moved))
                    done += 1
                    progress.update(done, f"{name} {size}: {1e3 * took:.3g} ms")
                    runtime.check_stop(KEPT)
                found["series"][name] = {
                    "sizes": list(sizes),
                    "seconds": seconds,
                    "of_roofline": ratios,
                    "exponent": exponent(sizes, seconds),
                }
    found["text"] = table(found)
    write(options.out / "scaling.json", (json.dumps(found, indent=1) + "\n").encode())
    draw_scaling(found["series"], options.out / "scaling.png")
    return found


def pdet_share(options: Options) -> dict[str, Any]:
    """Measure and write `pdet.json`: GFLOP of a step over its time, over the measured bf16 rate."""
    # A transformer's norms and gates are many passes over memory between the products: compiling fuses them.
    with Runtime.start(options.runtime.model_copy(update={"compile": True}), options.seeds[0]) as runtime:
        cuda = runtime.device.type == "cuda"
        model = PDET if cuda else SMALL_PDET
        task = replace(TASKS["advection"], models={"pdet": model}, train=512, validation=1, test=1, frames=5)
        task = task if cuda else replace(task, batch_size=4, train=32)
        folder = options.out / "work" / f"pdet-{runtime.device.type}"
        measured = roofline.measure(runtime.device)
        timing, counts = step_alone(task, runtime, folder, PDET_BLOCKS, "nothing of --pdet is kept")
        rate = "bf16" if cuda else measured.used
        result = throughput.result(timing, task.batch_size, counts, replace(measured, used=rate))
        where = machine(runtime.device)
    text = (
        f"pdet_stack, {model.settings}, batch {task.batch_size}, {task.points} tokens, {rate}: "
        f"{1e3 * result['step_seconds']:.4g} ms a step, {counts.flop / 1e12:.4g} TFLOP, "
        f"{result['flop_per_second'] / 1e12:.4g} TFLOP/s = {100 * result['share_of_matmul']:.3g} % of the measured "
        f"{measured.matmul[rate] / 1e12:.4g} TFLOP/s ({where['device']}, torch {where['torch']}, {where['date']})"
    )
    found = {"machine": where, "command": options.command, "throughput": result, "text": text}
    write(options.out / "pdet.json", (json.dumps(found, indent=1) + "\n").encode())
    return found


def step_of(sizes: dict[str, int], runtime: Runtime, folder: Path) -> tuple[float, Counts]:
    """Seconds of a step on advection of these sizes, and what it computes and moves."""
    points, width = sizes["points"], sizes["width"]
    model = Model("spectral", {"width": width, "depth": 4, "modes": 32, "head": width}, 1e-3)
    solver = Advection(points=points, beta=0.4)
    task = replace(TASKS["advection"], solver=solver, points=points, latent_spacing=1 / points, frames=3)
    task = replace(task, train=sizes["trajectories"], batch_size=sizes["batch"], models={"ours": model})
    place = folder / "-".join(f"{name}{size}" for name, size in sizes.items())
    timing, counts = step_alone(replace(task, validation=1, test=1), runtime, place, BLOCKS, KEPT)
    return median(timing.real), counts


def step_alone(task: Task, runtime: Runtime, folder: Path, blocks: int, kept: str) -> tuple[Timing, Counts]:
    """The Trainer's step of the task's only model, timed in so many blocks, and what it computes and moves."""
    folder.mkdir(parents=True, exist_ok=True)
    (model,) = task.models
    setting = Setting(prepare(task, runtime, folder), runtime, 0, FOREVER, folder)
    timing = throughput.begin(lambda: Trained(model, setting), runtime.device)
    for _ in range(blocks):
        throughput.round_of(timing, runtime.device)
        runtime.check_stop(kept)
    counts = timing.contestant.count()
    timing.contestant.close()
    return timing, counts


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
