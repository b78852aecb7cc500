"""Whatever a tracker does, training does not notice, and nothing is lost that a tracker can still take."""

from __future__ import annotations

import io
import sys
import threading
import time
import warnings
from importlib.util import find_spec, module_from_spec
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from small import small_trainer

from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import UserError
from ups.pipeline.config import load_run
from ups.track import background
from ups.track.background import BackgroundTracker
from ups.track.jsonl import Events, read_events
from ups.track.open import open_tracker
from ups.track.rollouts import keep
from ups.track.tracker import Tracks


class Kept:
    """Keeps what it is given; raises while `broken`."""

    def __init__(self) -> None:
        self.broken = self.closed = False
        self.steps: list[int] = []

    def write(self, kind, /, **fields):
        if self.broken:
            raise ConnectionError("no route to the tracker")
        self.steps.append(fields["step"])

    def close(self):
        self.closed = True


class Hanging:
    def __init__(self) -> None:
        self.released = threading.Event()

    def write(self, kind, /, **fields):
        self.released.wait()

    def close(self):
        self.released.wait()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(background, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(background, "CLOSING", 0.3)


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def test_events_arrive_in_order_and_the_tracker_is_closed():
    kept = Kept()
    tracker = BackgroundTracker("kept", lambda: kept)
    for step in range(200):
        tracker.write("step", step=step)
    tracker.close()
    assert kept.steps == list(range(200)) and kept.closed


def test_a_tracker_that_raises_is_warned_of_once_and_gets_its_backlog_when_it_recovers():
    kept = Kept()
    kept.broken = True
    tracker = BackgroundTracker("kept", lambda: kept)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(100):
            tracker.write("step", step=step)
            time.sleep(0.001)
        kept.broken = False
        tracker.write("step", step=100)
        until(lambda: len(kept.steps) == 101)
        tracker.close()
    assert kept.steps == list(range(101))
    assert [str(w.message).split(" (")[0] for w in caught] == ["kept fails"]


def test_a_tracker_that_cannot_even_be_made_is_tried_again():
    kept, tries = Kept(), []

    def make():
        tries.append(1)
        if len(tries) < 3:
            raise OSError("the tracker's server is down")
        return kept

    tracker = BackgroundTracker("kept", make)
    tracker.write("step", step=0)
    until(lambda: kept.steps == [0])
    assert len(tries) == 3
    with pytest.warns(UserWarning, match="server is down"):
        tracker.close()


def test_a_tracker_that_hangs_does_not_delay_training():
    hanging = Hanging()
    tracker = BackgroundTracker("slow", lambda: hanging)
    seconds = []
    for step in range(1000):
        began = time.perf_counter()
        tracker.write("step", step=step)
        seconds.append(time.perf_counter() - began)
    assert median(seconds) < 1e-4  # a few microseconds; a busy machine may hold up some of them, and any one for long
    with pytest.warns(UserWarning, match="1000 events were not delivered to slow"):
        tracker.close()  # comes back, though the tracker is not released
    hanging.released.set()


def test_a_backlog_that_still_fails_at_the_end_is_counted():
    kept = Kept()
    kept.broken = True
    tracker = BackgroundTracker("kept", lambda: kept)
    for step in range(7):
        tracker.write("step", step=step)
    with pytest.warns(UserWarning) as caught:
        tracker.close()
    assert "7 events were not delivered" in str(caught[-1].message)


def test_a_tracker_that_recovers_at_the_last_moment_gets_everything(monkeypatch):
    monkeypatch.setattr(background, "FIRST_PAUSE", 60.0)
    kept = Kept()
    kept.broken = True
    tracker = BackgroundTracker("kept", lambda: kept)
    tracker.write("step", step=0)
    until(lambda: tracker._trouble is not None)
    kept.broken = False
    with pytest.warns(UserWarning, match="fails"):
        tracker.close()
    assert kept.steps == [0] and kept.closed


def test_the_diary_is_written_first_and_a_broken_tracker_takes_nothing_from_it(tmp_path):
    kept = Kept()
    kept.broken = True
    tracks = Tracks([Events(tmp_path / "events.jsonl"), BackgroundTracker("kept", lambda: kept)], attempt=2)
    with pytest.warns(UserWarning, match="not delivered"):
        for step in range(10):
            tracks.write("step", step=step, loss=torch.tensor(0.5))
            assert read_events(tmp_path / "events.jsonl")[-1]["step"] == step
        tracks.close()
    assert {event["attempt"] for event in read_events(tmp_path / "events.jsonl")} == {2}


def test_a_late_tracker_sees_the_numbers_of_the_moment_they_were_written():
    hanging, seen = Hanging(), []

    class Late(Hanging):
        def write(self, kind, /, **fields):
            hanging.released.wait()
            seen.append(fields)

        def close(self):
            pass

    tracks = Tracks([BackgroundTracker("late", Late)], attempt=0)
    loss, parts = torch.tensor(1.0), {"data": 1.0}
    tracks.write("step", step=1, loss=loss, parts=parts)
    loss.fill_(9.0)
    parts["data"] = 9.0
    hanging.released.set()
    tracks.close()
    assert seen == [{"attempt": 0, "step": 1, "loss": 1.0, "parts": {"data": 1.0}}]


def test_a_tracked_training_keeps_some_rollouts_of_its_validation_data(tmp_path, monkeypatch):
    monkeypatch.setattr("ups.training.trainer.DRAWN", 2)
    for tracking, drawn in ((["wandb"], [6, 10]), ([], [])):
        run = tmp_path / f"{len(tracking)}"
        with Runtime.start(RuntimeConfig(device="cpu", threads=1, tracking=tracking), 0) as runtime:
            trainer = small_trainer(runtime, tmp_path / "data", run, steps=10, validate_every=2)
            trainer.fit()
            trainer.events.close()
        told = [event for event in read_events(run / "events.jsonl") if event["kind"] == "rollouts"]
        assert [event["step"] for event in told] == drawn
    for task, shape in (("advection", (1, 8, 32, 1)), ("darcy", (1, 1, 16, 16, 1))):
        with np.load(tmp_path / "1" / "rollouts" / told_file(tmp_path / "1", task)) as kept:
            assert kept["truth"].shape == kept["prediction_model"].shape == shape
            truth = trainer.tasks[task].validation.values[0, -shape[1] :, ..., :1].numpy()
            assert np.allclose(kept["truth"][0], truth, atol=2e-3)
            assert 0 < np.abs(kept["prediction_model"][0] - truth).max() < 5
    assert not (tmp_path / "0" / "rollouts").exists()


def told_file(run, task: str) -> str:
    return [event for event in read_events(run / "events.jsonl") if event["kind"] == "rollouts"][-1]["files"][task]


def test_a_disk_that_takes_no_rollouts_costs_the_pictures_alone(tmp_path):
    (tmp_path / "rollouts").write_text("a file")
    with pytest.warns(UserWarning, match=r"rollouts of step 20 are not kept in .*rollouts \(File exists\)"):
        assert keep({"heat": (torch.ones(2, 8, 1), torch.ones(2, 8, 1))}, tmp_path / "rollouts", 20) == {}


def test_what_is_kept_of_a_large_rollout_is_small(tmp_path):
    for space, kept in (((1000,), (128, 125)), ((300, 64), (16, 100, 64)), ((256, 16, 9), (16, 128, 16))):
        field = torch.rand(200, *space, 2)
        files = keep({"heat": (field, field)}, tmp_path, 1)
        with np.load(tmp_path / files["heat"]) as found:
            assert found["truth"].shape == (1, *kept, 1) and found["truth"].dtype == np.float16


def test_only_rank_0_leaves_anything_behind(tmp_path):
    for rank in (1, 2):
        tracker = open_tracker(tmp_path, ["tensorboard"], rank, attempt=0)
        tracker.write("step", step=1)
        tracker.close()
        assert isinstance(tracker, Tracks) and not tracker.trackers
    assert list(tmp_path.iterdir()) == []


def test_tracking_is_off_unless_asked_for_and_an_unknown_tracker_is_refused():
    assert RuntimeConfig().tracking == []
    with pytest.raises(UserError, match=r"runtime\.tracking"):
        load_run("quickstart", ["runtime.tracking=[tensorbord]"])


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("ups.track.open.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"universal-physics-stack\[tensorboard\]"):
        open_tracker(tmp_path, ["tensorboard"], 0, attempt=0)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_did_not_draw_the_next_one_draws_once(tmp_path, monkeypatch):
    drawn = []

    class SummaryWriter:
        def __init__(self, directory, purge_step=None):
            directory.mkdir(exist_ok=True)
            drawn.append(("purge", purge_step))

        def add_scalar(self, name, number, step):
            drawn.append((name, step))

        def flush(self):
            pass

        close = flush

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    spec = find_spec("ups.track.tensorboard")
    module = module_from_spec(spec)  # one of its own, which no other test meets
    spec.loader.exec_module(module)
    TensorBoard = module.TensorBoard

    with Events(tmp_path / "events.jsonl") as events:
        for step in (20, 40):  # none of which the first process draws
            events.write("step", step=step, loss=0.5)
        second = TensorBoard(tmp_path / "tensorboard")
        for kind, step in (("resumed", 20), ("step", 40)):
            events.write(kind, step=step, loss=0.5)
            second.write(kind, step=step, loss=0.5)
        events.write("step", step=60, loss=0.5)
        third = TensorBoard(tmp_path / "tensorboard")
        events.write("step", step=80, loss=0.5)
        third.write("step", step=80, loss=0.5)
    first = [("purge", None), ("step/loss", 20), ("step/loss", 40)]
    assert drawn == [*first, ("purge", 21), ("step/loss", 40), ("purge", None), ("step/loss", 60), ("step/loss", 80)]


def test_tensorboard_draws_what_a_run_writes(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="the optional extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(background, "CLOSING", 60.0)  # its first import takes seconds on a busy machine
    (tmp_path / "config.yaml").write_text("name: toy\n")
    files = keep({"darcy": (torch.rand(3, 8, 8, 1),) * 2}, tmp_path / "rollouts", 80)
    for attempt in (0, 1):
        events = open_tracker(tmp_path, ["tensorboard"], 0, attempt)
        if attempt:
            events.write("resumed", step=40, notes=[])
        for step in (20, 40, 60) if attempt == 0 else (60, 80):
            events.write("step", step=step, loss=step / 16 + attempt, parts={"darcy": float("nan"), "burgers": 0.5})
        events.write("validation", step=80, score=0.25, errors={"burgers": 0.125}, best=True)
        events.write("rollouts", step=80, files=files)
        events.close()
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = [(point.step, point.value) for point in curves.Scalars("step/loss")]
    assert losses == [(20, 1.25), (40, 2.5), (60, 4.75), (80, 6.0)]  # step 60 as the second attempt saw it
    assert curves.Scalars("validation/errors/burgers")[-1].value == 0.125
    assert set(curves.Tags()["scalars"]) == {
        "step/loss",
        "step/parts/burgers",
        "validation/score",
        "validation/errors/burgers",
    }
    shown = {kind: curves.Images(f"rollouts/darcy/{kind}")[-1] for kind in ("picture", "film")}
    assert {kind: Image.open(io.BytesIO(one.encoded_image_string)).format for kind, one in shown.items()} == {
        "picture": "PNG",
        "film": "GIF",
    }
    text = curves.Tensors("config/text_summary")[0].tensor_proto.string_val[0]
    assert text == b"    name: toy\n" and shown["film"].step == 80
    assert [e["attempt"] for e in read_events(tmp_path / "events.jsonl")] == [0] * 5 + [1] * 5
