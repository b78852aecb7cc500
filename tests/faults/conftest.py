"""Tests of faults: each adds rows to the matrix, has a time-out, and shows in the table however it ends."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job import Place, end_all, make_place, start
from machines import LONG
from matrix import Matrix, Row

from ups import checkpoint

LIMIT = 120
"""Seconds a test of a fault may take; one that needs more or less says so: `@pytest.mark.limit(30)`."""

_matrix = Matrix()


class _Rows:
    """`matrix.row(7, fault=..., required=..., seen=..., detect=0.4, recover=9.1, repeated=3)`, at a test's end."""

    def __init__(self, test: str) -> None:
        self._test = test

    def row(self, number: int, **cells: Any) -> None:
        _matrix.add(self._test, Row(number, **cells))


@pytest.fixture
def matrix(request: pytest.FixtureRequest) -> _Rows:
    return _Rows(request.node.nodeid)


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data that all jobs share; whoever comes first makes them."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Path:
    """The run of two ranks that nothing disturbs."""
    job = start(make_place(tmp_path_factory.mktemp("reference"), data_root), "undisturbed")
    assert job.wait() == 0, job.said()
    return job.run


@pytest.fixture(scope="session")
def long_reference(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Path:
    """A longer run of two ranks that nothing disturbs."""
    job = start(make_place(tmp_path_factory.mktemp("long"), data_root), "undisturbed", *LONG)
    assert job.wait() == 0, job.said()
    return job.run


@pytest.fixture(scope="session")
def half_way(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> tuple[Place, list[int]]:
    """A run of two ranks that was stopped half-way, to be copied: its place, and the steps of its checkpoints."""
    place = make_place(tmp_path_factory.mktemp("half"), data_root)
    job = start(place, "half")
    job.reach(12)
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.said()
    return place, checkpoint.steps(job.stage / "checkpoints")


@pytest.fixture
def place(tmp_path: Path, data_root: Path) -> Place:
    """Where a test's own jobs run."""
    return make_place(tmp_path, data_root)


@pytest.fixture(autouse=True)
def _time_out(request: pytest.FixtureRequest) -> Iterator[None]:
    """A hang is a failure, not a wait."""
    mark = request.node.get_closest_marker("limit")
    seconds = mark.args[0] if mark else LIMIT

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"{request.node.name} took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    end_all()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    if report.failed and call.excinfo is not None:
        _matrix.ended(item.nodeid, f"FAILED: {call.excinfo.exconly(tryshort=True)}")
    elif report.skipped and isinstance(report.longrepr, tuple):
        _matrix.ended(item.nodeid, f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if path := session.config.getoption("--write-matrix"):
        _matrix.write(Path(path), f"pytest {shlex.join(session.config.invocation_params.args)}")
