"""Data that are read before their step come in order, and an error comes with its own step."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from ups.training.prefetch import ROOM, STEPS, BlockPrefetch, ThreadPrefetch


def test_the_next_step_is_read_in_the_background_and_only_that_one() -> None:
    read: list[tuple[int, str]] = []
    fourth = threading.Event()

    def load(step: int, how: str):
        read.append((step, how))
        if step == 4:
            fourth.set()
        yield np.str_(f"{step} {how}")

    ahead = ThreadPrefetch(load)
    assert ahead(3, "whole") == ["3 whole"]
    assert fourth.wait(10), "step 4 was not read although nobody asked for it yet"
    assert ahead(4, "whole") == ["4 whole"]
    assert ahead(5, "halved") == ["5 halved"], "what was read for another micro-batch must not be used"
    assert read.count((4, "whole")) == 1


def test_several_steps_are_read_at_once() -> None:
    read: list[tuple[int, str]] = []

    def load(step: int, how: str):
        read.append((step, how))
        yield np.array([step])

    together = BlockPrefetch(load)
    for step in range(3, 3 + STEPS):
        assert together(step, "whole") == [step]
        assert read == [(later, "whole") for later in range(3, 3 + STEPS)]
    assert together(3 + STEPS, "halved") == [3 + STEPS] and read[-1] == (2 + 2 * STEPS, "halved")
    assert together(4 + STEPS, "whole") == [4 + STEPS], "what was read for another micro-batch must not be used"
    assert read.count((4 + STEPS, "whole")) == 1


def test_steps_of_many_bytes_are_read_one_by_one() -> None:
    read: list[int] = []

    def load(step: int, how: None):
        read.append(step)
        yield np.zeros(ROOM // STEPS + 1, np.uint8)

    together = BlockPrefetch(load)
    for step in range(3):
        together(step, None)
        assert read == list(range(step + 1))


@pytest.mark.parametrize("reader", [ThreadPrefetch, BlockPrefetch])
def test_an_error_is_raised_when_its_step_is_asked_for(reader: Callable) -> None:
    def load(step: int, how: None):
        if step == 2:
            raise OSError("the disk is gone")
        yield np.array([step])

    ahead = reader(load)
    assert ahead(0, None) == [0] and ahead(1, None) == [1]
    with pytest.raises(OSError, match="the disk is gone"):
        ahead(2, None)
