"""Generation: the same bytes whatever the workers, resumable, never overwriting."""

import json

import h5py
import numpy as np
import pytest
import torch

from ups.data.formats.pdebench.arrays import TensorFile
from ups.data.generate.chunks import Chunks
from ups.data.generate.make import data_key, generate
from ups.data.open import open_dataset
from ups.equations import Advection, Burgers, Darcy
from ups.errors import UserError

CHUNK = 64  # trajectories of a small equation that a CPU worker solves at once
ADVECTION = Advection(points=16, beta=0.4, frames=3)


@pytest.mark.parametrize("equation", [Burgers(points=16, nu=0.5, frames=3), Darcy(points=8)], ids=["burgers", "darcy"])
def test_two_workers_make_the_bytes_of_one(tmp_path, equation):
    one = generate(equation, 150, 3, tmp_path / "one.hdf5", workers=1)
    two = generate(equation, 150, 3, tmp_path / "two.hdf5", workers=2)
    assert one.read_bytes() == two.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.hdf5", "two.hdf5"]


def test_a_file_holds_what_the_equation_solves(tmp_path):
    path = generate(ADVECTION, 70, 5, tmp_path / "a.hdf5")
    batch, solved = TensorFile(path).read(range(70), slice(None)), ADVECTION.solve(5, range(70))
    assert torch.equal(batch.values, solved.values) and torch.equal(batch.times, solved.times)


def test_a_short_file_is_the_start_of_a_long_one(tmp_path):
    equation = Burgers(points=16, nu=0.5, frames=3)
    short = TensorFile(generate(equation, 10, 0, tmp_path / "short.hdf5"))
    long = TensorFile(generate(equation, CHUNK + 10, 0, tmp_path / "long.hdf5"))
    assert torch.equal(short.read(range(10), slice(None)).values, long.read(range(10), slice(None)).values)


def test_the_callers_threads_are_left_as_they_were(tmp_path):
    before = torch.get_num_threads()
    generate(ADVECTION, 2, 0, tmp_path / "a.hdf5")
    assert torch.get_num_threads() == before


def test_an_interrupted_generation_goes_on_where_it_stopped(tmp_path):
    def interrupt(done: int, total: int) -> None:
        if done >= 2 * CHUNK:
            raise KeyboardInterrupt

    count = 3 * CHUNK + 5
    path = tmp_path / "a.hdf5"
    with pytest.raises(KeyboardInterrupt):
        generate(ADVECTION, count, 0, path, progress=interrupt)
    assert not path.exists()
    seen: list[tuple[int, int]] = []
    generate(ADVECTION, count, 0, path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(2 * CHUNK, count), (3 * CHUNK, count), (count, count)]
    whole = generate(ADVECTION, count, 0, tmp_path / "whole.hdf5")
    assert path.read_bytes() == whole.read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    path = tmp_path / "a.hdf5"
    folder = tmp_path / f".a.hdf5.chunks-{data_key(ADVECTION, 4, 0)[:16]}"
    folder.mkdir()
    for left in ("a.hdf5", ".a.hdf5.17.tmp", "000000.17.tmp"):
        (folder / left).write_bytes(b"half")
    whole = generate(ADVECTION, 4, 0, tmp_path / "whole.hdf5")
    assert generate(ADVECTION, 4, 0, path).read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.hdf5", "whole.hdf5"]


def test_two_processes_do_not_make_the_same_file(tmp_path):
    def again(done: int, total: int) -> None:
        generate(ADVECTION, 4, 0, tmp_path / "a.hdf5")

    with pytest.raises(UserError, match="being made by another process"):
        generate(ADVECTION, 4, 0, tmp_path / "a.hdf5", progress=again)


def test_nor_two_files_of_other_settings_under_one_name(tmp_path):
    def another(done: int, total: int) -> None:
        generate(ADVECTION, 5, 0, tmp_path / "a.hdf5")

    with pytest.raises(UserError, match="being made by another process"):
        generate(ADVECTION, 4, 0, tmp_path / "a.hdf5", progress=another)


def test_a_file_that_came_in_the_meantime_is_not_overwritten(tmp_path):
    path = tmp_path / "a.hdf5"

    def put(done: int, total: int) -> None:
        path.write_text("mine")

    with pytest.raises(UserError, match="came into being"):
        generate(ADVECTION, 4, 0, path, progress=put)
    assert path.read_text() == "mine"
    path.unlink()
    assert generate(ADVECTION, 4, 0, path) == path and len(list(tmp_path.iterdir())) == 1


def test_a_layout_that_is_not_known_and_a_gpu_that_is_not_there_are_said_before_any_work(tmp_path):
    with pytest.raises(UserError, match="no layout 'netcdf5'"):
        generate(ADVECTION, 4, 0, tmp_path / "a.hdf5", layout="netcdf5")
    with pytest.raises(UserError, match="the GPUs here are"):
        generate(ADVECTION, 4, 0, tmp_path / "a.hdf5", device="cuda:99")
    with pytest.raises(UserError, match="use cpu, cuda"):
        generate(ADVECTION, 4, 0, tmp_path / "a.hdf5", device="gpu")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("points", "frames", "device", "count", "size"),
    [
        (128, 41, "cpu", 5, 64),
        (1024, 201, "cpu", 10_000, 64),
        (65536, 201, "cpu", 10_000, 4),  # 50 MB each, 256 MiB at most
        (1024, 201, "cuda", 10_000, 1024),  # 0.8 MB each, 1 GiB at most
        (1024, 201, "cuda", 100, 128),
    ],
)
def test_chunks_follow_from_the_shape_alone_and_bound_memory(tmp_path, points, frames, device, count, size):
    chunks = Chunks(Advection(points=points, frames=frames), 0, count, device, tmp_path)
    assert chunks.size == size
    assert sum(chunks.held(chunk) for chunk in range(len(chunks))) == count


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_data_of_a_cpu_up_to_rounding(tmp_path):
    equation = Burgers(points=32, nu=0.5, frames=3)
    here = open_dataset(generate(equation, 70, 1, tmp_path / "cpu.hdf5"))
    there = open_dataset(generate(equation, 70, 1, tmp_path / "gpu.hdf5", device="cuda"))
    again = generate(equation, 70, 1, tmp_path / "again.hdf5", device="cuda")
    one, two = (dataset.read(range(70), slice(None)).values for dataset in (here, there))
    assert torch.allclose(one, two, rtol=1e-5, atol=1e-6)
    assert again.read_bytes() == (tmp_path / "gpu.hdf5").read_bytes()


def test_the_same_data_are_kept_and_other_data_never_overwritten(tmp_path):
    path = generate(ADVECTION, 4, 0, tmp_path / "a.hdf5")
    before = path.stat().st_mtime_ns
    assert generate(ADVECTION, 4, 0, path) == path and path.stat().st_mtime_ns == before
    for other in ((ADVECTION, 5, 0), (ADVECTION, 4, 1), (Advection(points=16, beta=0.5, frames=3), 4, 0)):
        with pytest.raises(UserError, match=r"a\.hdf5 exists"):
            generate(*other, path)
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    with pytest.raises(UserError, match="exists"):
        generate(ADVECTION, 4, 0, foreign)
    assert foreign.read_text() == "mine"


def test_a_file_made_on_a_gpu_serves_a_cpu_and_the_other_way_round(tmp_path, monkeypatch):
    path = generate(ADVECTION, 4, 0, tmp_path / "a.hdf5")
    assert open_dataset(path).header.notes["device"] == "cpu"
    monkeypatch.setattr("ups.data.generate.make.gpus", lambda device: [device])
    before = path.stat().st_mtime_ns
    assert generate(ADVECTION, 4, 0, path, device="cuda:0") == path and path.stat().st_mtime_ns == before
    with h5py.File(path, "r+") as file:
        notes = {"device": "cuda", "key": data_key(ADVECTION, 4, 0, device="cuda")}
        told = json.loads(file.attrs["ups"])
        file.attrs["ups"] = json.dumps({**told, "notes": {**told["notes"], **notes}})
    assert open_dataset(path).header.notes["device"] == "cuda"
    before = path.stat().st_mtime_ns
    assert generate(ADVECTION, 4, 0, path) == path and path.stat().st_mtime_ns == before
    with pytest.raises(UserError, match=r"a\.hdf5 exists"):
        generate(ADVECTION, 4, 1, path)


def test_what_another_device_left_unfinished_is_cleared_away_with_the_rest(tmp_path):
    left = tmp_path / f".a.hdf5.chunks-{data_key(ADVECTION, 4, 0, device='cuda')[:16]}"
    left.mkdir()
    generate(ADVECTION, 4, 0, tmp_path / "a.hdf5")
    assert [path.name for path in tmp_path.iterdir()] == ["a.hdf5"]


def test_too_little_space_is_said_before_any_work(tmp_path):
    with pytest.raises(UserError, match="MiB free"):
        generate(Darcy(points=1024), 10**12, 0, tmp_path / "deep" / "d.hdf5")
    assert list(tmp_path.iterdir()) == []


def test_the_key_follows_from_what_the_bytes_follow_from():
    keys = {
        data_key(equation, count, seed)
        for equation in (ADVECTION, Advection(points=16, frames=3, duration=1.0), Advection(points=32, frames=3))
        for count in (1, 2)
        for seed in (0, 1)
    }
    assert len(keys) == 12
    assert data_key(Advection(points=16, beta=1, frames=3), 1, 0) == data_key(Advection(16, 1.0, 3), 1, 0)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"workers": 0}])
def test_senseless_numbers_are_refused(tmp_path, wrong):
    with pytest.raises(UserError, match="at least 1"):
        generate(**{"equation": ADVECTION, "count": 1, "seed": 0, "path": tmp_path / "a.hdf5", "workers": 1} | wrong)


def test_any_reader_of_the_published_layout_opens_our_files(tmp_path):
    """Only h5py and the published names, as a stranger would."""
    with h5py.File(generate(ADVECTION, 3, 9, tmp_path / "a.hdf5")) as file:
        assert file["tensor"].shape == (3, 3, 16) and file["tensor"].dtype == np.dtype("<f4")
        assert file["tensor"].chunks is None  # contiguous
        assert np.allclose(file["x-coordinate"], (np.arange(16) + 0.5) / 16)
        assert np.allclose(file["t-coordinate"], [0, 1, 2, 3])  # one entry too many, as published
        assert file.attrs["beta"] == 0.4 and file.attrs["seed"] == 9 and file.attrs["equation"] == "advection"
        assert {"solver", "version", "key", "ups"} <= set(file.attrs)
    with h5py.File(generate(Darcy(points=8), 2, 0, tmp_path / "d.hdf5")) as file:
        assert file["tensor"].shape == (2, 1, 8, 8) and file["nu"].shape == (2, 8, 8)
        assert set(np.unique(file["nu"][()])) <= {np.float32(0.1), np.float32(1)}
        assert file["x-coordinate"].shape == file["y-coordinate"].shape == (8,)
        assert file.attrs["beta"] == 1.0
    with h5py.File(generate(Burgers(points=16, nu=0.5, frames=2), 1, 0, tmp_path / "b.hdf5")) as file:
        assert file.attrs["Nu"] == 0.5
