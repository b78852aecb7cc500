"""Benchmarks that do not judge speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tiny import tiny

from ups.bench import roofline, run, throughput
from ups.bench.run import Options
from ups.bench.tasks import Task

ARGUMENTS: dict[str, Any] = {
    "tasks": ["advection"],
    "device": "cpu",
    "threads": 1,
    "only": ["ours", "eager", "fno_usual"],
    "change": lambda task: tiny(),
}


@contextmanager
def hastily() -> Iterator[None]:
    """Short blocks and small ceilings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throughput, "BLOCKS", {"cpu": 2})
        patch.setattr(throughput, "LONGEST", {"cpu": 0.02})
        patch.setitem(roofline._SIDE, "cpu", 128)
        patch.setitem(roofline._COPY, "cpu", 2**20)
        yield


def measure(*, as_json: bool = False, change: Callable[[Task], Task] = tiny, **options: Any) -> int:
    """`ups bench` with these options."""
    return run.measure(Options(**options), as_json=as_json, change=change)
