"""`ups bench --universal` in seconds: two of its tasks with hardly any data, and models of a few channels."""

from __future__ import annotations

TASKS = ("burgers", "kuramoto_sivashinsky")
DATA = [
    "tasks.burgers.make.trajectories=10",
    "tasks.burgers.make.settings.points=16",
    "tasks.burgers.make.settings.frames=4",
    "tasks.burgers.make.settings.duration=0.1",
    "tasks.kuramoto_sivashinsky.make.trajectories=20",
    "tasks.kuramoto_sivashinsky.make.settings.points=32",
    "tasks.kuramoto_sivashinsky.make.settings.length=22",
    "tasks.kuramoto_sivashinsky.make.settings.frames=4",
    "tasks.kuramoto_sivashinsky.make.settings.duration=1.5",
    "tasks.kuramoto_sivashinsky.make.settings.warm_up=20",
]
HASTE = [
    "stages.operator.width=8",
    "stages.operator.depth=1",
    "stages.operator.modes=8",
    "stages.operator.head=8",
    "training.sampling.points=64",
    "data.workers=1",
    "runtime.threads=1",
    "runtime.device=cpu",
]
RIVAL = "compare={fno: {width: 4, modes: 4, depth: 1, training: {batch_size: 2}}}"
SECONDS = 0.05  # fifty steps are the fewest
