"""Fault 20: a tracker raises or hangs, and training does not notice."""

from __future__ import annotations

import threading
import time
import warnings

import pytest

from ups.track import background
from ups.track.background import Background
from ups.track.jsonl import Events, read_events
from ups.track.tracker import Tracks

pytestmark = [pytest.mark.faults, pytest.mark.smoke]

REQUIRED = "no effect on training; backlog kept"
EVENTS = 1000


class Failing:
    """Raises until it is repaired, then keeps what comes."""

    def __init__(self) -> None:
        self.repaired = threading.Event()
        self.steps: list[int] = []

    def write(self, kind, /, **fields):
        if not self.repaired.is_set():
            raise ConnectionError("no route to the tracker")
        self.steps.append(fields["step"])

    def close(self):
        pass


class Hanging(Failing):
    """Does not answer until it is repaired."""

    def write(self, kind, /, **fields):
        self.repaired.wait()
        self.steps.append(fields["step"])


@pytest.mark.parametrize("tracker", [Failing, Hanging])
def test_fault_20_a_tracker_that_raises_or_hangs_costs_nothing_and_gets_its_backlog(
    tmp_path, monkeypatch, matrix, tracker
):
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(background, "LONGEST_PAUSE", 0.1)
    troubled = tracker()
    alone, both = Tracks([Events(tmp_path / "alone.jsonl")], 0), Events(tmp_path / "both.jsonl")
    both = Tracks([both, Background("troubled", lambda: troubled)], 0)
    seconds = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for tracks in (alone, both):
            began = time.monotonic()
            for step in range(EVENTS):
                tracks.write("step", step=step, loss=0.5)
            seconds.append(time.monotonic() - began)
        assert len(read_events(tmp_path / "both.jsonl")) == EVENTS and troubled.steps == []
        began = time.monotonic()
        troubled.repaired.set()
        both.close()
        recovered = time.monotonic() - began
    assert troubled.steps == list(range(EVENTS))
    assert seconds[1] - seconds[0] < 0.2  # 0.2 ms an event, twenty times what it takes
    assert len(caught) == (1 if tracker is Failing else 0)
    matrix.row(
        20,
        fault="a tracker raises" if tracker is Failing else "a tracker hangs",
        required=REQUIRED,
        seen=f"{EVENTS} events handed over in {max(0.0, seconds[1] - seconds[0]) * 1e3:.0f} ms beyond the diary's own "
        f"{seconds[0] * 1e3:.0f} ms; {'one warning; ' if tracker is Failing else ''}all delivered in order afterwards",
        recover=recovered,
        repeated=0,
    )
