"""Benchmarks that do not judge speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tiny import tiny

from ups.bench import ceilings, throughput

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
        patch.setitem(ceilings._SIDE, "cpu", 128)
        patch.setitem(ceilings._COPY, "cpu", 2**20)
        yield
