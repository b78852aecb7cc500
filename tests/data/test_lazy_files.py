"""Files far larger than memory: opening reads their description, a batch reads its own bytes, nothing is kept."""

import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from ups.data.open import open_dataset
from ups.fields import Dataset

PAGE = 4096


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])  # rchar: what read calls asked for


def quickest(path: Path) -> float:
    """Seconds to open a file, the best of three: a busy machine does not count."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        open_dataset(path)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def centres(n: int) -> np.ndarray:
    return ((np.arange(n) + 0.5) / n).astype("f4")


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """The published 2D CFD file of 55 GB: its arrays are one hole, but for the last trajectory."""
    path = tmp_path_factory.mktemp("large") / "2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_128_Train.hdf5"
    with h5py.File(path, "w") as file:
        for n, name in enumerate(("density", "pressure", "Vx", "Vy")):
            data = file.create_dataset(name, (10_000, 21, 128, 128), "<f4", fill_time="never")
            data[-1, -1] = n + 1
        for axis in "xy":
            file[f"{axis}-coordinate"] = centres(128)
        file["t-coordinate"] = (np.arange(22) * 0.05).astype("f4")
    assert path.stat().st_size > 55e9
    return path


def test_a_file_of_55_gb_opens_at_once(published):
    assert quickest(published) < 0.3
    before = bytes_read()
    dataset = open_dataset(published)
    assert bytes_read() - before < 2**20
    assert len(dataset) == 10_000 and dataset.channels == ("density", "pressure", "Vx", "Vy")


def test_a_batch_reads_only_its_bytes(published):
    dataset = open_dataset(published)
    before = bytes_read()
    batch = dataset.read([9_999, 17], slice(18, 21))
    wanted = batch.values.numel() * 4
    assert wanted <= bytes_read() - before < wanted + 2**20
    assert batch.values[0, -1, 5, 5].tolist() == [1.0, 2.0, 3.0, 4.0] and not batch.values[1].any()


def test_memory_does_not_grow_with_what_was_read(published):
    dataset: Dataset = open_dataset(published)
    batch_bytes = dataset.read([0], slice(None)).values.numel() * 4
    before = resident()
    for index in range(0, 10_000, 200):  # 50 batches of 5.5 MB each
        dataset.read([index], slice(None))
    assert resident() - before < 10 * batch_bytes


def test_ten_thousand_groups_open_without_being_looked_into(tmp_path):
    path = tmp_path / "1D_diff-sorp_NA_NA.h5"
    with h5py.File(path, "w", libver="latest") as file:
        first = file.create_group("0000")
        first["data"] = np.ones((3, 8, 1), "f4")
        first["grid/x"], first["grid/t"] = centres(8), np.array([0, 250, 500], "f4")
        for seed in range(1, 10_000):
            file[f"{seed:04d}"] = first  # the same group under every name: quick to make, as many names to list
    assert quickest(path) < 0.5
    dataset = open_dataset(path)
    assert len(dataset) == 10_000
    assert dataset.read([4_000], slice(1, 2)).values.shape == (1, 1, 8, 1)
