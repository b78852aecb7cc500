"""Faults 14 to 17: what a disk can do to the array store, and what training makes of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
import torch
from job import Job, Place, difference, start
from machines import LONG, LONG_STEPS, Namespace, fill, start_inside

from ups.data.prepare.normalise import Normaliser
from ups.data.prepare.splits import content_hashes
from ups.data.prepare.statistics import statistics
from ups.data.sampler import Sampler
from ups.durable import seal, unseal
from ups.equations import Advection
from ups.errors import UserError
from ups.fields import Batch, Header
from ups.store import fields, layout
from ups.store.fields import FieldStore
from ups.store.layout import StoreDamaged
from ups.store.read import ArrayStore
from ups.store.verify import verify

pytestmark = pytest.mark.faults

REQUIRED = "found at first read or by verify; rebuilt or refused"
ADVECTION = "1D_Advection_Sols_beta0.4.hdf5"
WAVES = Advection(points=32, beta=0.4, frames=9, duration=0.8)


class Solved:
    """Advected waves as a Dataset; counts how often it is asked for whole trajectories."""

    def __init__(self, seed: int = 0, count: int = 24) -> None:
        self.batch = WAVES.solve(seed, range(count))
        self.task, self.channels = WAVES.name, WAVES.channels
        self.grid, self.times, self.boundary = WAVES.grid, WAVES.times, WAVES.boundary
        self.header = Header(self.task, self.channels, self.grid, self.times, self.boundary)
        self.asked: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.batch)

    def read(self, indices, frames: slice) -> Batch:
        rows, b = torch.tensor(list(indices), dtype=torch.int64), self.batch
        if frames == slice(None):
            self.asked.append((int(rows[0]), int(rows[-1])))
        return replace(
            b,
            values=b.values[rows][:, frames],
            times=b.times[rows][:, frames],
            parameters={name: v[rows] for name, v in b.parameters.items()},
            static={},
            ids=rows,
        )


def built(path: Path, data: Solved) -> FieldStore:
    spec = WAVES.task()
    return FieldStore.build(path, data, Normaliser(spec, statistics(data, spec)))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """A shard is four trajectories."""
    monkeypatch.setattr(layout, "SHARD_BYTES", 4 * 9 * 32 * 4)


@pytest.fixture
def store(tmp_path) -> Path:
    built(tmp_path / "store", Solved())
    return tmp_path / "store"


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def shard(path: Path, number: int, array: str = "fields") -> Path:
    return next(path.glob(f"{array}.{number:05d}.*.bin"))


def flip(file: Path, place: int = 100) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x10
    file.write_bytes(content)


def whole(store: FieldStore) -> torch.Tensor:
    """Every trajectory, as training gathers it."""
    part = Sampler((("waves", store.trajectories, store.frames, 1.0),), seed=0, batch_size=24).indices(0, 8)[0]
    return store.gather(part).values[part.ids.argsort()]


@pytest.mark.smoke
def test_fault_14_a_flipped_byte_is_found_at_first_read_and_its_shard_alone_rebuilt(store):
    before = contents(store)
    good = whole(built(store, Solved()))
    bad = shard(store, 3)
    flip(bad)
    assert len(verify(store)) == 1 and bad.name in verify(store)[0]
    with pytest.raises(StoreDamaged, match=bad.name):
        ArrayStore.open(store)["fields"].rows(torch.arange(24))
    data = Solved()
    training = built(store, data)
    data.asked.clear()
    with pytest.warns(UserWarning, match=rf"{bad.name}.*written again from the data") as caught:
        again = whole(training)
    assert torch.equal(again, good) and len(caught) == 1
    assert data.asked == [(12, 15)]
    assert contents(store) == before and verify(store) == []


def test_fault_14_a_flipped_byte_in_the_parameters_is_mended_when_the_store_is_opened(store):
    flip(shard(store, 0, "parameters"), 3)
    with pytest.warns(UserWarning, match="written again"):
        opened = built(store, Solved())
    assert torch.equal(opened.parameters[:, 0], torch.full((24,), 0.4)) and verify(store) == []


@pytest.fixture
def stored(place: Place, reference: Path) -> Path:
    """The store that the undisturbed run has left, in the directory of a run that is yet to begin."""
    return shutil.copytree(reference / "store", place.runs / "stored" / "store")


def warned(job: Job) -> str:
    """What the ranks said to their logs."""
    return "".join((job.run / "logs" / f"rank{rank}.log").read_text() for rank in range(2))


def test_fault_14_a_job_that_meets_a_flipped_byte_trains_as_if_there_were_none(stored, place, reference, matrix):
    bad = shard(stored / "advection", 0)
    flip(bad)
    assert bad.name in verify(stored / "advection")[0]
    job = start(place, "stored")
    assert job.wait() == 0, job.said()
    assert bad.name in warned(job) and "it is written again from the data" in warned(job)
    assert bad.read_bytes() == (reference / "store" / "advection" / bad.name).read_bytes()
    assert job.reports() == [] and difference(job.run, reference) == 0
    matrix.row(
        14,
        fault="one flipped byte in a shard of the array store",
        required=REQUIRED,
        seen="found at first read, and by verify; rebuilt from the data, with a warning; bit-equal end",
        repeated=0,
    )


def test_fault_14_damage_that_cannot_be_mended_is_refused_with_the_remedy(store, matrix):
    before = contents(store)
    training = built(store, Solved())
    flip(shard(store, 3))
    damaged = contents(store)
    training._sources["fields"].dataset.batch.values.mul_(2.0)  # the data file is not what it was
    with (
        pytest.warns(UserWarning),
        pytest.raises(StoreDamaged, match=rf"data have changed since; remove {store} and run"),
    ):
        whole(training)
    assert contents(store) == damaged != before
    matrix.row(
        14,
        fault="the same, and the data have changed since the job began (asked of the store itself)",
        required=REQUIRED,
        seen="refused; the sentence says to remove the store and run the same command again",
    )


def test_fault_15_a_truncated_or_lost_shard_is_found_on_opening_and_rebuilt(store):
    before = contents(store)
    cut, gone = shard(store, 1), shard(store, 4)
    cut.write_bytes(cut.read_bytes()[:-5])
    gone.unlink()
    with pytest.raises(StoreDamaged, match=cut.name):
        ArrayStore.open(store)
    assert len(verify(store)) == 2
    data = Solved()
    built(store, data)
    assert (4, 7) in data.asked and (16, 19) in data.asked and contents(store) == before


def test_fault_15_a_job_rebuilds_a_truncated_and_a_lost_shard(stored, place, reference, matrix):
    cut, gone = shard(stored / "advection", 0), shard(stored / "darcy", 0, "static")
    cut.write_bytes(cut.read_bytes()[:-5])
    gone.unlink()
    job = start(place, "stored")
    assert job.wait() == 0, job.said()
    for file in (cut, gone):
        assert file.read_bytes() == (reference / "store" / file.parent.name / file.name).read_bytes()
    assert job.reports() == [] and difference(job.run, reference) == 0
    matrix.row(
        15,
        fault="a shard truncated, another one lost",
        required=REQUIRED,
        seen="both rebuilt at the start; bit-equal end",
        repeated=0,
    )


def test_fault_15_a_shard_truncated_after_the_store_was_opened_is_rebuilt(store):
    before, training = contents(store), built(store, Solved())
    good = WAVES.solve(0, range(24)).values / training.normaliser.statistics.channels["u"].rms
    cut = shard(store, 5)
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.warns(UserWarning, match=cut.name):
        again = whole(training)
    torch.testing.assert_close(again, good.float())
    assert contents(store) == before


def test_fault_15_a_job_survives_a_shard_that_is_truncated_while_it_trains(place, long_reference, matrix):
    """Its pages are mapped: the next touch of one that is gone is a SIGBUS."""
    job = start(place, "cut", *LONG)
    job.reach(50)
    cut = shard(job.run / "store" / "advection", 0)
    with cut.open("r+b") as file:
        file.truncate(100)
    assert job.wait() == 0, job.said()
    report = job.reports()[0]
    assert report["kind"] == "signal" and "SIGBUS" in report["what"] and "a cut file" in report["cause"]
    assert cut.read_bytes() == (long_reference / "store" / "advection" / cut.name).read_bytes()
    assert difference(job.run, long_reference, LONG_STEPS) == 0
    matrix.row(
        15,
        fault="a shard truncated in mid-training",
        required=REQUIRED,
        seen=f"report: {report['what']}; restarted, rebuilt; bit-equal end",
        **job.crash(),
    )


def test_fault_15_a_truncated_index_is_refused_with_the_remedy(stored, place, reference, matrix):
    index = stored / "advection" / "index.json"
    index.write_bytes(index.read_bytes()[:-40])
    refused_until_it_is_removed(stored, place, reference, "index.json is damaged")
    matrix.row(15, fault="the store's index truncated", required=REQUIRED, seen=REFUSED)


REFUSED = "one sentence, exit 2, no step, nothing changed; once it is removed, as the sentence says: bit-equal end"


def refused_until_it_is_removed(stored: Path, place: Place, reference: Path | None, why: str) -> None:
    """The same command, before and after the user does what it says; `reference` where the data are what they were."""
    path = stored / "advection"
    before = contents(path)
    job = start(place, "stored")
    assert job.wait() == 2, job.said()
    said = job.said().strip().splitlines()[-1]
    assert why in said and f"remove {path} and run the same command again" in said
    assert contents(path) == before and not job.stage.exists()
    shutil.rmtree(path)
    job = start(place, "stored")
    assert job.wait() == 0, job.said()
    assert job.reports() == [] and verify(path) == []
    if reference is not None:
        assert difference(job.run, reference) == 0


@pytest.mark.parametrize("stale", ["codec", "format"])
def test_fault_16_a_store_of_another_program_is_refused(stored, place, reference, matrix, stale):
    """Its index says what another version of ups would have written."""
    index = stored / "advection" / "index.json"
    content = unseal(index.read_bytes())
    content |= {"key": "0" * 32} if stale == "codec" else {"version": layout.VERSION + 1}
    index.write_bytes(seal(content))
    why = "holds a store of other" if stale == "codec" else "has format version"
    refused_until_it_is_removed(stored, place, reference, why)
    matrix.row(16, fault=f"a stale store: another {stale}", required=REQUIRED, seen=REFUSED)


def test_fault_16_a_store_of_other_statistics_is_refused(stored, place, data_root, matrix):
    """Only later frames have changed since it was built: what identifies a trajectory is the same, its scale is not."""
    own = replace(place, data=shutil.copytree(data_root, place.runs.parent / "own"))
    with h5py.File(own.data / ADVECTION, "r+") as file:
        file["tensor"][:, 1:] = 1.5 * file["tensor"][:, 1:]
    refused_until_it_is_removed(stored, own, None, "holds a store of other")
    matrix.row(
        16,
        fault="a stale store: other statistics (all frames but the first have changed)",
        required=REQUIRED,
        seen=REFUSED.rpartition(":")[0] + ": finished",
    )


@pytest.mark.parametrize("stale", ["codec", "data", "statistics", "format"])
def test_fault_16_a_stale_store_is_refused_and_left_alone(store, stale, monkeypatch):
    before, data = contents(store), Solved(seed=1 if stale == "data" else 0)
    if stale == "codec":
        monkeypatch.setattr(fields, "CODEC", fields.CODEC + 1)
    elif stale == "statistics":
        data.batch.values[:, 1:] *= 1.5
        assert content_hashes(data) == content_hashes(Solved())
    elif stale == "format":
        monkeypatch.setattr(layout, "VERSION", layout.VERSION + 1)
    with pytest.raises(UserError, match=rf"remove {store} and run the same command again"):
        built(store, data)
    assert contents(store) == before
    shutil.rmtree(store)
    assert verify(built(store, data).store.path) == []


FULL_DISK = """
import json, os, sys, time, warnings
from pathlib import Path
import numpy as np
from ups.errors import UserError
from ups.store import layout
from ups.store.build import build
from ups.store.verify import verify
from ups.track.jsonl import Events, read_events

disk = Path(sys.argv[1])
layout.SHARD_BYTES = 64 * 1024
values = np.random.default_rng(0).standard_normal((64, 64, 64)).astype(np.float32)  # 1 MiB in 16 shards


class Source:
    shape, dtype, asked = values.shape, values.dtype, []

    def __init__(self, fills=None):
        self.fills = fills

    def read(self, lo, hi):
        if lo == self.fills:  # another program takes the rest of the disk
            with open(disk / "other", "wb") as other:
                try:
                    while True:
                        os.write(other.fileno(), bytes(4096))
                except OSError:
                    pass
        self.asked.append(lo)
        return values[lo:hi]


def store():
    said = ""
    began = time.monotonic()
    try:
        build(disk / "store", "k", {"u": Source(fills=32)})
    except UserError as error:
        said = str(error)
    stopped = time.monotonic() - began
    files = sorted(file.name for file in (disk / "store").iterdir())
    (disk / "other").unlink()
    Source.asked.clear()
    began = time.monotonic()
    build(disk / "store", "k", {"u": Source()})
    return {"said": said, "files": files, "asked": Source.asked, "problems": verify(disk / "store"),
            "stopped": stopped, "resumed": time.monotonic() - began}


def events():
    diary = Events(disk / "events.jsonl")
    diary.write("step", step=0)
    with open(disk / "other", "wb") as other:
        try:
            while True:
                os.write(other.fileno(), bytes(4096))
        except OSError:
            pass
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, 200):
            diary.write("step", step=step, text="x" * 100)
        while_full = len(read_events(disk / "events.jsonl"))
        (disk / "other").unlink()
        diary.write("step", step=200)
    diary.close()
    return {"warnings": [str(w.message) for w in caught], "while_full": while_full,
            "steps": [event["step"] for event in read_events(disk / "events.jsonl")]}


print(json.dumps({"store": store, "events": events}[sys.argv[2]]()))
"""


@pytest.fixture
def on_a_small_disk(tmp_path):
    """Runs a part of FULL_DISK on a disk of its own: a tmpfs of 2 MiB that no other process sees."""
    mount = f"mount -t tmpfs -o size=2m tmpfs {tmp_path}"
    try:
        allowed = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("a small disk needs root, to mount a tmpfs in a namespace of its own")

    def run(part: str) -> dict:
        inner = f'{mount} && exec "$0" "$@"'
        command = ["unshare", "-m", "sh", "-c", inner, sys.executable, "-c", FULL_DISK, str(tmp_path), part]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_fault_17_store_a_disk_that_fills_up_stops_the_build_which_can_be_resumed(on_a_small_disk, matrix):
    seen = on_a_small_disk("store")
    assert "No space left" in seen["said"] and "run the same command again: finished shards are kept" in seen["said"]
    assert len([name for name in seen["files"] if name.endswith(".bin")]) == 8
    assert not [name for name in seen["files"] if name.endswith(".tmp") or name == "index.json"]
    assert seen["asked"] == list(range(32, 64, 4)) and seen["problems"] == []
    matrix.row(
        17,
        fault="the disk fills up while the array store is built (asked of the store itself)",
        required="store build: stops, resumable",
        seen="stops with one sentence; the 8 finished shards of 16 are kept and only the others made on the next call",
        detect=seen["stopped"],
        recover=seen["resumed"],
    )


def test_fault_17_a_job_without_any_room_stops_and_goes_on_when_there_is(place, reference, matrix):
    place.runs.mkdir()
    disk = Namespace("-m", f"mount -t tmpfs -o size=16m tmpfs {place.runs}", "a small disk")
    try:
        ballast = disk.path(place.runs / "ballast")
        fill(ballast)
        job = start_inside(disk, place, "stored")
        assert job.wait() == 2, job.said()
        said = job.said().strip()
        assert said.startswith("error: ") and "\n" not in said and said.endswith("No space left on device")
        ballast.unlink()
        again = start_inside(disk, place, "stored")
        assert again.wait() == 0, again.said()
        assert difference(again.run, reference) == 0
    finally:
        disk.end()
    matrix.row(
        17,
        fault="the disk is full when a job is started",
        required="stops, resumable",
        seen=f"exit 2: “{said}”; with room, the same command again: bit-equal end".replace(str(place.runs), "…"),
    )


def test_fault_17_events_wait_in_memory_while_the_disk_is_full(on_a_small_disk):
    seen = on_a_small_disk("events")
    assert len(seen["warnings"]) == 1 and "wait in memory" in seen["warnings"][0]
    assert seen["while_full"] < 100 and seen["steps"] == list(range(201))
