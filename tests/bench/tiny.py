"""Benchmarks of a second: the pinned tasks with hardly any data, and models of a few channels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ups.bench.contestants import Setting
from ups.bench.data import prepare
from ups.bench.tasks import TASKS, Model, Task
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import Advection

TINY = Model("spectral", {"width": 8, "depth": 1, "modes": 4, "head": 8, "conditions": 8}, 1e-3)


def tiny(task: Task = TASKS["advection"]) -> Task:
    """Advection on 32 points, 12 training trajectories of 5 frames, 4 samples a step."""
    return replace(
        task,
        solver=Advection(points=32, beta=0.4),
        points=32,
        frames=5,
        train=12,
        validation=2,
        test=3,
        batch_size=4,
        latent_spacing=1 / 32,
        models={
            "ours": TINY,
            "fno": Model("fno", {"width": 8, "modes": 4, "depth": 1}, 1e-3, "muon"),
            "fno_usual": Model("fno", {"width": 8, "modes": 4, "depth": 1}, 1e-3),
            "neuraloperator": Model("neuraloperator", {"hidden_channels": 8, "modes": 4, "n_layers": 1}, 1e-3),
        },
    )


@contextmanager
def tiny_setting(folder: Path, steps: int = 20, compiled: bool = False) -> Iterator[Setting]:
    with Runtime.start(RuntimeConfig(device="cpu", threads=1, compile=compiled), 0) as runtime:
        yield Setting(prepare(tiny(), runtime, folder), runtime, 0, steps, folder)
