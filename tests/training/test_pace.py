"""Rates and waits between looks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from ups.training.pace import Pace


def slow(count: int) -> Iterator[int]:
    time.sleep(0.02)
    for number in range(count):
        time.sleep(0.01)
        yield number


def test_waits_are_those_for_data_and_rates_those_of_training():
    pace = Pace(torch.device("cpu"))
    first = pace.look(20, 1.0, 16)
    assert list(first) == ["memory"] and first["memory"] > 1e6
    assert list(pace.waiting(lambda: slow(5))) == list(range(5))
    found = pace.look(40, 3.0, 16)
    assert (found["steps_a_second"], found["samples_a_second"]) == (10.0, 160.0)
    assert 0.07 / 2 <= found["data_wait"] < 0.5
    assert pace.look(60, 4.0, 16)["data_wait"] == 0.0


def test_an_error_of_a_batch_is_not_kept_back():
    def broken():
        yield 1
        raise OSError("gone")

    batches = Pace(torch.device("cpu")).waiting(broken)
    assert next(batches) == 1
    with pytest.raises(OSError, match="gone"):
        next(batches)
