"""What a pass over all data has shown is not looked for again until the data, or the question, change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ups.data.formats.pdebench.arrays import TensorFile
from ups.data.generate.make import generate
from ups.data.joined import Joined, Subset
from ups.data.open import open_dataset
from ups.data.prepare.cached import cached
from ups.data.settings import DataConfig, MakeConfig, TaskConfig
from ups.data.sources import open_source
from ups.data.views import View
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.equations import Advection
from ups.fields import Dataset
from ups.training.data import prepare


class Finding:
    """Counts how often it was asked to find something out."""

    def __init__(self, path: Path) -> None:
        self.path, self.times = path, 0

    def about(self, *data: Dataset, asked: object = "all") -> int:
        def find() -> list[int]:
            self.times += 1
            return [41, self.times]

        assert cached(self.path, data, asked, find)[0] == 41
        return self.times


@pytest.fixture
def made(tmp_path):
    return generate(Advection(points=8, frames=5), 12, 0, tmp_path / "data" / "made.hdf5")


@pytest.fixture
def finding(tmp_path):
    return Finding(tmp_path / "run" / "found.json")


def test_the_same_data_are_looked_at_once(made, finding):
    assert [finding.about(open_dataset(made)) for _ in range(3)] == [1, 1, 1]


def test_a_file_that_was_written_again_is_looked_at_again(made, finding):
    finding.about(open_dataset(made))
    os.utime(made, ns=(0, os.stat(made).st_mtime_ns + 1))
    assert finding.about(open_dataset(made)) == 2
    made.unlink()
    generate(Advection(points=8, frames=5), 13, 0, made)
    assert finding.about(open_dataset(made)) == 3


def test_what_is_taken_from_a_file_counts(made, finding):
    data = open_dataset(made)
    taken = [
        Subset(data, range(6)),
        Subset(data, range(5)),
        View(data, space_stride=2),
        View(data, frame_stride=2),
        Joined([data]),
        Joined([data, data]),
        open_dataset(made, "burgers"),
    ]
    assert [finding.about(each) for each in taken] == [1, 2, 3, 4, 5, 6, 7]
    assert finding.about(taken[-1], asked="something else") == 8
    assert finding.about(taken[-1], taken[0], asked="something else") == 9


def test_every_chunk_of_a_folder_counts(tmp_path, finding):
    for number in range(2):
        generate(Advection(points=8, beta=0.1 + number, frames=5), 4, 0, tmp_path / "folder" / f"{number}.hdf5")
    folder = tmp_path / "folder"
    assert [finding.about(open_dataset(folder)) for _ in range(2)] == [1, 1]
    os.utime(folder / "1.hdf5", ns=(0, 0))
    assert finding.about(open_dataset(folder)) == 2


def test_damage_to_what_was_kept_costs_time_and_nothing_else(made, finding):
    finding.about(open_dataset(made))
    finding.path.write_bytes(finding.path.read_bytes().replace(b"41", b"42"))
    assert [finding.about(open_dataset(made)) for _ in range(2)] == [2, 2]


def test_data_elsewhere_and_in_memory_are_looked_at_every_time(made, finding):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe("known/made.hdf5", made.read_bytes())
    remote = open_dataset("memory://known/made.hdf5")
    assert [finding.about(remote) for _ in range(2)] == [1, 2]
    assert finding.about(Joined([open_dataset(made), remote])) == 3
    assert not finding.path.exists()


def test_a_second_start_does_not_read_the_training_data(tmp_path, monkeypatch):
    make = MakeConfig(
        equation="advection", trajectories=12, values={"beta": [0.1, 0.4]}, settings={"points": 16, "frames": 5}
    )
    read: list[slice] = []
    plain = TensorFile.read
    monkeypatch.setattr(TensorFile, "read", lambda self, rows, frames: read.append(frames) or plain(self, rows, frames))
    measured: list[tuple[str, int, int]] = []

    def start() -> tuple[int, int, object]:
        read.clear(), measured.clear()
        (tmp_path / "data").mkdir(exist_ok=True)
        with Runtime.start(RuntimeConfig(device="cpu"), 0) as runtime:
            source = open_source(
                "advection", TaskConfig(make=make), DataConfig(workers=1), tmp_path / "data", 0, lambda *_: None
            )
            store = tmp_path / "store"
            task = prepare(runtime, source, 1.0, {1}, store, measured=lambda *a: measured.append(a))
            return len(read), len(measured), task.learned.to_dict()

    (first, ticks, learned), (second, later, again) = start(), start()
    assert ticks >= 2 and later == 0, "the second start measured something"
    assert second == 2 < first, "it should read the validation trajectories of both files and nothing else"
    assert learned == again
    assert learned["ranges"] == {"beta": (0.1, 0.4)}
