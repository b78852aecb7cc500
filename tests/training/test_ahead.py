"""The next step's data come while this one computes, in order, and an error comes with its own step."""

from __future__ import annotations

import threading

import pytest

from ups.training.ahead import Ahead


def test_the_next_step_is_read_in_the_background_and_only_that_one() -> None:
    read: list[tuple[int, str]] = []
    fourth = threading.Event()

    def load(step: int, how: str):
        read.append((step, how))
        if step == 4:
            fourth.set()
        yield f"{step} {how}"

    ahead = Ahead(load)
    assert ahead(3, "whole") == ["3 whole"]
    assert fourth.wait(10), "step 4 was not read although nobody asked for it yet"
    assert ahead(4, "whole") == ["4 whole"]
    assert ahead(5, "halved") == ["5 halved"], "what was read for another micro-batch must not be used"
    assert read.count((4, "whole")) == 1


def test_an_error_is_raised_when_its_step_is_asked_for() -> None:
    def load(step: int, how: None):
        if step == 1:
            raise OSError("the disk is gone")
        yield step

    ahead = Ahead(load)
    assert ahead(0, None) == [0]
    with pytest.raises(OSError, match="the disk is gone"):
        ahead(1, None)
