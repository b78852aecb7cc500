"""Fault 20: a tracker raises or hangs, and training does not notice."""

from __future__ import annotations

import threading
import time
import warnings
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

import pytest
from job import difference, slowness, start
from machines import LONG, LONG_STEPS

from ups.track import background
from ups.track.background import BackgroundTracker
from ups.track.jsonl import Events, read_events
from ups.track.tracker import Tracks

pytestmark = pytest.mark.faults

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


@pytest.mark.smoke
@pytest.mark.parametrize("tracker", [Failing, Hanging])
def test_fault_20_a_tracker_that_raises_or_hangs_costs_nothing_and_gets_its_backlog(
    tmp_path, monkeypatch, matrix, tracker
):
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(background, "LONGEST_PAUSE", 0.1)
    troubled = tracker()
    alone, both = Tracks([Events(tmp_path / "alone.jsonl")], 0), Events(tmp_path / "both.jsonl")
    both = Tracks([both, BackgroundTracker("troubled", lambda: troubled)], 0)
    event = []  # seconds each, by the median: a machine that is busy for a moment is no tracker's delay
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for tracks in (alone, both):
            times = [time.perf_counter()]
            for step in range(EVENTS):
                tracks.write("step", step=step, loss=0.5)
                times.append(time.perf_counter())
            event.append(median(end - begin for begin, end in pairwise(times)))
        assert len(read_events(tmp_path / "both.jsonl")) == EVENTS and troubled.steps == []
        began = time.monotonic()
        troubled.repaired.set()
        both.close()
        recovered = time.monotonic() - began
    assert troubled.steps == list(range(EVENTS))
    assert event[1] - event[0] < 2e-4  # twenty times what it takes
    assert len(caught) == (1 if tracker is Failing else 0)
    matrix.row(
        20,
        fault=f"a tracker {'raises' if tracker is Failing else 'hangs'}, then is repaired (asked of its thread itself)",
        required=REQUIRED,
        seen=f"an event handed over in {max(0.0, event[1] - event[0]) * 1e6:.0f} µs beyond the diary's own "
        f"{event[0] * 1e6:.0f} µs; {'one warning; ' if tracker is Failing else ''}all {EVENTS} delivered in order",
        recover=recovered,
        repeated=0,
    )


@pytest.mark.parametrize(
    ("fault", "trouble"),
    [("raises", "raise ConnectionError('no route to the tracker')"), ("hangs", "import time\ntime.sleep(3600)")],
    ids=["raises", "hangs"],
)
def test_fault_20_a_job_whose_tracker_raises_or_hangs_ends_like_one_without(
    tmp_path, place, reference, matrix, fault, trouble
):
    """TensorBoard's own package is replaced by one in trouble, the usual way: it comes first on the path."""
    package = tmp_path / "packages" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(trouble)
    job = start(place, fault, "runtime.tracking=[tensorboard]", PYTHONPATH=str(package.parent))
    assert job.wait() == 0, job.said()
    ended = datetime.now(UTC)
    assert difference(job.run, reference) == 0
    assert job.reports() == [] and job.events("resumed") == []
    log = (job.run / "logs" / "rank0.log").read_text()
    kept = [event for event in read_events(job.stage / "events.jsonl") if event["kind"] != "crash"]
    assert f"{len(kept)} events were not delivered to tensorboard; events.jsonl has them all" in log
    assert log.count("tensorboard fails (no route to the tracker)") == (1 if fault == "raises" else 0)
    closing = (ended - datetime.fromisoformat(kept[-1]["time"])).total_seconds()
    assert closing < background.CLOSING + 4 * slowness()
    matrix.row(
        20,
        fault=f"the tracker of a job on two ranks {fault} from the start",
        required=REQUIRED,
        seen=f"bit-equal end; {closing:.1f} s from the last event to the end of the command; {len(kept)} events "
        "named as not delivered, all in events.jsonl",
        repeated=0,
    )


REPAIRED = """
import os, sys, types

if not os.path.exists(os.environ["REPAIRED"]):
    raise ConnectionError("no route to the tracker")


class SummaryWriter:
    def __init__(self, *arguments, **more):
        self.file = open(os.environ["REPAIRED"], "a")

    def add_scalar(self, name, number, step):
        self.file.write(f"{name} {step}\\n")

    def add_text(self, name, text):
        pass

    def flush(self):
        self.file.flush()

    close = flush

    @property
    def file_writer(self):
        return self

    def add_summary(self, summary, step):
        self.file.write(f"{summary.value[0].tag} {step}\\n")


class Summary:
    def __init__(self, **values):
        vars(self).update(values)


Summary.Image = Summary.Value = Summary


__version__ = "2.19"
parts = ("summary", "summary.writer", "summary.writer.record_writer")
parts += ("compat", "compat.proto", "compat.proto.summary_pb2")
for name in (*(f"tensorboard.{part}" for part in parts), "torch.utils.tensorboard.writer"):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    module.SummaryWriter = module.FileWriter = module.RecordWriter = SummaryWriter
    module.Summary = Summary
"""


def test_fault_20_a_job_whose_tracker_is_repaired_delivers_what_waited(tmp_path, place, long_reference, matrix):
    package, repaired = tmp_path / "packages" / "tensorboard", tmp_path / "repaired"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(REPAIRED)
    job = start(
        place,
        "repaired",
        *LONG,
        "runtime.tracking=[tensorboard]",
        PYTHONPATH=str(package.parent),
        REPAIRED=str(repaired),
    )
    job.reach(100)
    assert not repaired.exists()
    repaired.touch()
    assert job.wait() == 0, job.said()
    got = [line.split() for line in repaired.read_text().splitlines()]
    steps = [int(step) for name, step in got if name == "step/loss"]
    assert steps == list(range(20, LONG_STEPS + 1, 20)) and ["validation/score", "100"] in got
    log = (job.run / "logs" / "rank0.log").read_text()
    assert log.count("tensorboard fails (no route to the tracker)") == 1 and "not delivered" not in log
    assert job.reports() == [] and difference(job.run, long_reference, LONG_STEPS) == 0
    matrix.row(
        20,
        fault="the tracker of a job on two ranks raises until it is repaired at step 100",
        required=REQUIRED,
        seen="one warning; all events delivered in order, those from before too; bit-equal end",
        repeated=0,
    )
