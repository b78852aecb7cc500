"""Set before any test imports torch: with other processes on the cores, spinning OpenMP threads starve one another."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import shapes  # before any test imports ups: it has the shapes in its signatures checked
import torch
from hypothesis import settings

torch.set_num_threads(1)

# Shared cores make single examples slow now and then; a deadline would fail tests that are right.
settings.register_profile("ups", deadline=None)
settings.load_profile("ups")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole `ups run quickstart`, made small, done once."""
    from small import SMALLER

    from ups import pipeline

    runs = tmp_path_factory.mktemp("work") / "runs"
    pipeline.run("quickstart", SMALLER, runs)
    return runs / "quickstart"


@pytest.fixture(scope="module")
def plugins_are_forgotten() -> Iterator[None]:
    """Other tests of this process must not find what plugins register."""
    from ups.data import tasks
    from ups.equations import named
    from ups.metrics import registry
    from ups.models.architectures import ARCHITECTURES
    from ups.models.predictor import PREDICTORS
    from ups.training.kinds import STAGES

    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (STAGES, "_known"),
            (ARCHITECTURES, "_known"),
            (PREDICTORS, "_known"),
            (registry, "_known"),
            (named, "EQUATIONS"),
        ):
            patch.setattr(owner, name, dict(getattr(owner, name)))
        tasks._known.cache_clear()
        yield
    tasks._known.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("ups_plugin_"):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _progress_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that print JSON silence it for the rest of their process, which here is that of all tests."""
    from ups.track.progress import Progress

    monkeypatch.setattr(Progress, "silent", Progress.silent)


def pytest_runtest_setup() -> None:
    shapes.new_test()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-matrix", metavar="FILE", help="write what the tests of faults saw as a table into FILE")
