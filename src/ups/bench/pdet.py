"""The plain transformer at width 1024 in bfloat16: the share of the card's measured matmul rate that a step reaches."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ups.bench import roofline, throughput
from ups.bench.record import machine
from ups.bench.run import Options
from ups.bench.scaling import step_alone
from ups.bench.tasks import TASKS, Model
from ups.distributed.runtime.start import Runtime
from ups.durable import write

PRECISION = "bfloat16"
MODEL = Model("pdet_stack", {"width": 1024, "depth": 8, "expansion": 4.0, "head": 64, "conditions": 64}, 1e-4)
SMALL = Model("pdet_stack", {"width": 64, "depth": 2, "expansion": 4.0, "head": 16, "conditions": 16}, 1e-3)
"""For a CPU, where the number says nothing: only that it runs."""
TRAJECTORIES = 512
BLOCKS = 5


def pdet_share(options: Options) -> dict[str, Any]:
    """Measure and write `pdet.json`: GFLOP of a step over its time, over the measured bf16 rate."""
    # A transformer's norms and gates are many passes over memory between the products: compiling fuses them.
    with Runtime.start(options.runtime.model_copy(update={"compile": True}), options.seeds[0]) as runtime:
        cuda = runtime.device.type == "cuda"
        model = replace(MODEL if cuda else SMALL, precision=PRECISION if cuda else "float32")
        task = replace(TASKS["advection"], models={"pdet": model}, train=TRAJECTORIES, validation=1, test=1, frames=5)
        if not cuda:
            task = replace(task, batch_size=4, train=32)
        folder = options.out / "work" / f"pdet-{runtime.device.type}"
        measured = roofline.measure(runtime.device)
        timing, counts = step_alone(task, runtime, folder, BLOCKS, "nothing of --pdet is kept")
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
