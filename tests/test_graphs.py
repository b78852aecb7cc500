"""Work recorded on a GPU comes out whole, whatever else dies meanwhile."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ups.graphs import record

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are recorded on a GPU")


class Holder:
    """In a cycle with itself: only the garbage collector ends it, and what it holds."""

    def __init__(self, held: object) -> None:
        self.held, self.itself = held, self


def test_a_graph_that_is_garbage_does_not_spoil_the_next() -> None:
    x = torch.zeros(8, device="cuda")
    with record(torch.cuda.Stream()) as old:
        x + 1
    gc.collect()
    gone = weakref.ref(Holder(old))
    del old
    usual = gc.get_threshold()
    with record(torch.cuda.Stream()) as graph:
        y = x + 1
        gc.set_threshold(1, 1, 1)  # almost every new object
        objects = [[] for _ in range(100)]
        gc.set_threshold(*usual)
        alive = gone() is not None
        z = y + 1
    assert alive and len(objects) == 100
    graph.replay()
    assert z.tolist() == [2.0] * 8
    gc.collect()
    assert gone() is None


def test_garbage_is_collected_again_after_a_recording_that_failed() -> None:
    with pytest.raises(ZeroDivisionError), record(torch.cuda.Stream()):
        1 / 0  # noqa: B018
    assert gc.isenabled()
