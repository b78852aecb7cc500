"""Set before any test imports torch: with other processes on the cores, spinning OpenMP threads starve one another."""

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# Shared cores make single examples slow now and then; a deadline would fail tests that are right.
settings.register_profile("ups", deadline=None)
settings.load_profile("ups")


SMALLER = [
    "tasks.advection.make.trajectories=20",
    "tasks.advection.make.settings.frames=11",
    "tasks.advection.make.settings.duration=0.5",
    "tasks.burgers.make.trajectories=20",
    "tasks.burgers.make.settings.frames=11",
    "tasks.burgers.make.settings.duration=0.5",
    "tasks.darcy.make.trajectories=30",
    "tasks.darcy.make.settings.points=32",
    "operator.width=12",
    "operator.depth=1",
    "operator.modes=8",
    "operator.head=8",
    "fno.advection.width=8",
    "fno.burgers.width=8",
    "fno.darcy.width=4",
    "training.steps=40",
    "training.validate_every=20",
    "training.checkpoint_every=20",
    "evaluation.resamples=100",
    "data.workers=1",
    "runtime.threads=1",
]
"""The quickstart in a few seconds: the same tasks and phases, too little of each to learn much."""


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole `ups run quickstart`, made small, done once."""
    from ups import pipeline

    runs = tmp_path_factory.mktemp("work") / "runs"
    pipeline.run("quickstart", SMALLER, runs)
    return runs / "quickstart"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-matrix", metavar="FILE", help="write what the tests of faults saw as a table into FILE")
