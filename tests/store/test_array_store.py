"""What goes into a store comes out unchanged, or is refused by name."""

import os
import resource
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ups.durable import seal, unseal
from ups.errors import UserError
from ups.store import layout
from ups.store.build import build
from ups.store.layout import StoreDamaged, plan
from ups.store.read import ArrayStore
from ups.store.verify import verify


@dataclass
class InMemory:
    """Rows of an array at hand; raises at row `fails_at`, as a killed build would stop there."""

    values: np.ndarray
    fails_at: int | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def shape(self):
        return self.values.shape

    @property
    def dtype(self):
        return self.values.dtype

    def read(self, lo, hi):
        if self.fails_at is not None and lo <= self.fails_at < hi:
            raise KeyboardInterrupt
        self.asked.append((lo, hi))
        return self.values[lo:hi]


def numbers(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of 4 kB, so that small arrays have several."""
    monkeypatch.setattr(layout, "SHARD_BYTES", 4096)


def files(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_come_back_bit_for_bit(tmp_path, small_shards, dtype):
    fields, parameters = numbers(50, 9, 16, 2, dtype=dtype), numbers(50, 3, dtype=dtype, seed=1)
    build(tmp_path / "s", "k", {"fields": InMemory(fields), "parameters": InMemory(parameters)})
    store = ArrayStore.open(tmp_path / "s", "k")
    ids = torch.tensor([49, 0, 7, 7, 31])
    assert store.names == ("fields", "parameters") and store["fields"].shape == (50, 9, 16, 2)
    assert len(plan(fields.shape, dtype)) > 1
    np.testing.assert_array_equal(store["fields"].rows(ids).numpy(), fields[ids])
    np.testing.assert_array_equal(store["parameters"].rows(torch.arange(50)).numpy(), parameters)
    assert verify(tmp_path / "s") == []


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    path, values = tmp_path_factory.mktemp("windows") / "s", numbers(41, 13, 6, 2, dtype="float16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "SHARD_BYTES", 4096)
        build(path, "k", {"fields": InMemory(values)})
        yield values, ArrayStore.open(path)["fields"]


@settings(max_examples=100)
@given(st.data())
def test_a_gathered_window_equals_the_slice(windowed, data):
    values, stored = windowed
    frames, longest = data.draw(st.sampled_from([(1, 1), (2, 1), (4, 4), (13, 1), (3, 6), (1, 50)]))
    window = st.integers(1, longest).flatmap(
        lambda stride: st.tuples(st.integers(0, 40), st.integers(0, 12 - (frames - 1) * stride), st.just(stride))
    )
    windows = data.draw(st.lists(window, max_size=12))
    rows, starts, strides = (torch.tensor([w[i] for w in windows], dtype=torch.int64) for i in range(3))
    batch = stored.gather(rows, starts, frames, None if longest == 1 else strides)
    assert batch.dtype == torch.float32 and batch.shape == (len(windows), frames, 6, 2)
    for sample, (row, start, stride) in zip(batch, windows, strict=True):
        expected = values[row, start : start + (frames - 1) * stride + 1 : stride].astype(np.float32)
        np.testing.assert_array_equal(sample.numpy(), expected)


def test_rows_too_wide_for_one_call_are_copied_one_by_one(tmp_path, monkeypatch):
    values = numbers(5, 4, 300_000, dtype="float16")
    monkeypatch.setattr(layout, "SHARD_BYTES", 2 * values[0].nbytes)
    build(tmp_path / "s", "k", {"u": InMemory(values)})
    stored, ids = ArrayStore.open(tmp_path / "s")["u"], torch.tensor([4, 0, 4, 3])
    np.testing.assert_array_equal(stored.rows(ids).numpy(), values[ids])
    window = stored.gather(ids, torch.tensor([0, 1, 2, 0]), 2)
    np.testing.assert_array_equal(window[2].numpy(), values[4, 2:].astype(np.float32))
    with pytest.raises(IndexError, match="rows 0 to 5 asked of 5 rows"):
        stored.rows(torch.tensor([0, 5]))


def test_a_batch_is_owned_and_can_be_changed_without_harm(tmp_path):
    values = numbers(4, 3, 5)
    build(tmp_path / "s", "k", {"u": InMemory(values)})
    stored = ArrayStore.open(tmp_path / "s")["u"]
    stored.gather(torch.tensor([1]), torch.tensor([0]), 3).zero_()
    np.testing.assert_array_equal(stored.gather(torch.tensor([1]), torch.tensor([0]), 3)[0].numpy(), values[1])
    assert verify(tmp_path / "s") == []


@pytest.mark.parametrize(("row", "start"), [(4, 0), (-1, 0), (0, 2), (0, -1), (0, -4), (0, 9)])
def test_a_window_outside_the_data_is_an_error(tmp_path, row, start):
    build(tmp_path / "s", "k", {"u": InMemory(numbers(4, 3, 5))})
    stored = ArrayStore.open(tmp_path / "s")["u"]
    for _ in range(2):  # before and after its shard is mapped
        with pytest.raises(IndexError, match=r"(rows|frames) .* asked of"):
            stored.gather(torch.tensor([row]), torch.tensor([start]), 2)
        stored.gather(torch.tensor([3]), torch.tensor([1]), 2)
    with pytest.raises(IndexError, match="frames 0 to 3 asked of rows of 3 frames"):
        stored.gather(torch.tensor([0]), torch.tensor([0]), 4)
    with pytest.raises(IndexError, match="frames 0 to 4 asked of rows of 3 frames"):
        stored.gather(torch.tensor([0, 1]), torch.tensor([0, 0]), 3, torch.tensor([1, 2]))
    with pytest.raises(IndexError, match="frames -1 to 2 asked of rows of 3 frames"):
        stored.gather(torch.tensor([0, 1]), torch.tensor([1, 0]), 3, torch.tensor([-1, 1]))


def shard_of(path: Path, number: int) -> Path:
    return next(path.glob(f"fields.{number:05d}.*.bin"))


@pytest.fixture
def store_path(tmp_path, small_shards):
    build(tmp_path / "s", "k", {"fields": InMemory(numbers(40, 9, 16))})
    return tmp_path / "s"


def test_a_flipped_byte_is_found_at_first_read_and_by_verify(store_path):
    bad = shard_of(store_path, 2)
    content = bytearray(bad.read_bytes())
    content[1000] ^= 1
    bad.write_bytes(content)
    stored = ArrayStore.open(store_path)["fields"]
    healthy = stored.rows(torch.tensor([0]))
    assert healthy.shape == (1, 9, 16)
    with pytest.raises(StoreDamaged, match=bad.name):
        stored.rows(torch.arange(40))
    assert len(verify(store_path)) == 1 and bad.name in verify(store_path)[0]


def test_a_truncated_or_missing_shard_is_found_when_the_store_is_opened(store_path):
    cut, gone = shard_of(store_path, 1), shard_of(store_path, 3)
    cut.write_bytes(cut.read_bytes()[:-4])
    with pytest.raises(StoreDamaged, match=cut.name):
        ArrayStore.open(store_path)
    gone.unlink()
    problems = verify(store_path)
    assert len(problems) == 2 and cut.name in problems[0] and gone.name in problems[1]


def test_a_bad_shard_alone_is_rebuilt(store_path):
    values = numbers(40, 9, 16)
    before = contents(store_path)
    cut, gone = shard_of(store_path, 1), shard_of(store_path, 3)
    cut.write_bytes(cut.read_bytes()[:-4])
    gone.unlink()
    source = InMemory(values)
    build(store_path, "k", {"fields": source})
    assert source.asked == [(first, first + rows) for first, rows in np.array(plan(values.shape, "float32"))[[1, 3]]]
    assert contents(store_path) == before


def test_a_changed_index_is_found(store_path):
    index = store_path / "index.json"
    index.write_text(index.read_text().replace('"key": "k"', '"key": "j"'))
    with pytest.raises(StoreDamaged, match=r"index\.json"):
        ArrayStore.open(store_path)
    assert "index.json" in verify(store_path)[0]


def test_an_interrupted_build_resumes_and_leaves_nothing_half_written(tmp_path, small_shards):
    values, path = numbers(40, 9, 16), tmp_path / "s"
    with pytest.raises(KeyboardInterrupt):
        build(path, "k", {"fields": InMemory(values, fails_at=20)})
    with pytest.raises(UserError, match="no complete store"):
        ArrayStore.open(path)
    finished = [name for name in files(path) if name.endswith(".bin")]
    for name in finished:  # whatever has a final name is whole
        first, rows = plan(values.shape, "float32")[int(name.split(".")[1])]
        assert (path / name).read_bytes() == values[first : first + rows].tobytes()
    assert 0 < len(finished) < len(plan(values.shape, "float32"))

    (path / "fields.00000.999.tmp").write_bytes(b"left by a killed process")
    damaged = path / finished[0]
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    source = InMemory(values)
    build(path, "k", {"fields": source})
    assert source.asked[0] == (0, plan(values.shape, "float32")[0][1])  # the damaged one is written again
    assert len(source.asked) == len(plan(values.shape, "float32")) - len(finished) + 1
    np.testing.assert_array_equal(ArrayStore.open(path)["fields"].rows(torch.arange(40)).numpy(), values)

    fresh = tmp_path / "fresh"
    build(fresh, "k", {"fields": InMemory(values)})
    assert contents(path) == contents(fresh)


def test_a_complete_store_is_left_alone(store_path):
    before = {file.name: file.stat().st_mtime_ns for file in store_path.iterdir()}
    source, seen = InMemory(numbers(40, 9, 16)), []
    build(store_path, "k", {"fields": source}, lambda done, total: seen.append((done, total)))
    assert source.asked == [] and {done for done, _ in seen} == {40 * 9 * 16 * 4}
    assert {file.name: file.stat().st_mtime_ns for file in store_path.iterdir()} == before


def test_a_store_with_shards_of_another_size_is_still_read_and_mended(store_path, monkeypatch):
    before = contents(store_path)
    monkeypatch.setattr(layout, "SHARD_BYTES", 10_000)
    shard_of(store_path, 1).unlink()
    build(store_path, "k", {"fields": InMemory(numbers(40, 9, 16))})
    assert contents(store_path) == before
    assert ArrayStore.open(store_path)["fields"].rows(torch.arange(40)).shape == (40, 9, 16)


def test_progress_ends_at_the_whole(tmp_path, small_shards):
    seen = []
    build(tmp_path / "s", "k", {"u": InMemory(numbers(40, 9, 16))}, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1] == (40 * 9 * 16 * 4,) * 2 and len(seen) > 2


def test_another_key_is_refused_until_the_store_is_removed(store_path):
    before = contents(store_path)
    with pytest.raises(UserError, match="key k, wanted other"):
        build(store_path, "other", {"fields": InMemory(numbers(40, 9, 16, seed=1))})
    with pytest.raises(UserError, match="key k, wanted other"):
        ArrayStore.open(store_path, "other")
    assert contents(store_path) == before
    shutil.rmtree(store_path)
    build(store_path, "other", {"fields": InMemory(numbers(40, 9, 16, seed=1))})
    stored = ArrayStore.open(store_path, "other")["fields"].rows(torch.arange(40)).numpy()
    np.testing.assert_array_equal(stored, numbers(40, 9, 16, seed=1))
    assert len(files(store_path)) == len(before)


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        ({"arrays": None}, "'arrays' is missing"),
        ({"key": None}, "'key' is missing"),
        ({"arrays": [1]}, "no attribute 'items'"),
        ({"arrays": {"fields": {}}}, "'dtype' is missing"),
        ({"arrays": {"fields": {"dtype": "colour", "shape": [1, 2], "shards": []}}}, "colour"),
        ({"arrays": {"fields": {"dtype": "float32", "shape": [1, 2], "shards": [{}]}}}, "missing 5 required"),
    ],
)
def test_a_sealed_index_that_is_none_is_damaged(store_path, lost, why):
    index = store_path / "index.json"
    content = unseal(index.read_bytes()) | lost
    index.write_bytes(seal({name: value for name, value in content.items() if value is not None}))
    with pytest.raises(StoreDamaged, match=rf"index\.json is damaged \(.*{why}.*\); remove .*s and run the same"):
        ArrayStore.open(store_path)


def test_an_index_of_brackets_and_a_claim_of_nothing_are_damaged(store_path):
    (store_path / "index.json").write_bytes(b"[" * 200_000)
    assert "index.json is damaged (it is nested too deeply)" in verify(store_path)[0]
    (store_path / "index.json").unlink()
    (store_path / "partial.json").write_bytes(seal({"key": "k"}))
    with pytest.raises(StoreDamaged, match=r"partial\.json is damaged \('arrays' is missing\)"):
        build(store_path, "k", {"fields": InMemory(numbers(4, 3))})


def test_copies_of_shards_in_an_unfinished_build_are_not_taken_for_shards(tmp_path, small_shards):
    path, values = tmp_path / "s", numbers(40, 9, 16)
    with pytest.raises(KeyboardInterrupt):
        build(path, "k", {"fields": InMemory(values, fails_at=20)})
    shard = next(path.glob("fields.00000.*.bin"))
    for ending in (" (copy).bin", ".old.bin"):
        shard.with_name(shard.stem + ending).write_bytes(shard.read_bytes())
    shard.unlink()
    again = InMemory(values)
    build(path, "k", {"fields": again})
    assert again.asked[0][0] == 0 and shard.is_file() and verify(path) == []


def test_shards_of_an_unfinished_build_of_another_key_are_never_mixed_in(tmp_path, small_shards):
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "s", "old", {"fields": InMemory(numbers(40, 9, 16), fails_at=20)})
    with pytest.raises(UserError, match="unfinished store"):
        build(tmp_path / "s", "new", {"fields": InMemory(numbers(40, 9, 16, seed=1))})
    with pytest.raises(UserError, match="other arrays or shapes"):
        build(tmp_path / "s", "old", {"fields": InMemory(numbers(41, 9, 16))})
    (tmp_path / "s" / "partial.json").unlink()  # as when a build is killed at its very start
    build(tmp_path / "s", "new", {"fields": InMemory(numbers(40, 9, 16, seed=1))})
    stored = ArrayStore.open(tmp_path / "s")["fields"].rows(torch.arange(40)).numpy()
    np.testing.assert_array_equal(stored, numbers(40, 9, 16, seed=1))


def test_a_read_only_store_is_used_without_writing(store_path):
    before = {file.name: file.stat().st_mtime_ns for file in store_path.iterdir()}
    for file in store_path.iterdir():
        file.chmod(stat.S_IRUSR)
    store_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        ArrayStore.open(store_path, "k")["fields"].rows(torch.arange(40))
        assert verify(store_path) == []
        assert {file.name: file.stat().st_mtime_ns for file in store_path.iterdir()} == before
    finally:
        store_path.chmod(stat.S_IRWXU)


def test_more_shards_than_file_descriptors_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "SHARD_BYTES", 64)
    values = numbers(400, 4, 4)
    build(tmp_path / "s", "k", {"fields": InMemory(values)})
    assert len(plan(values.shape, "float32")) == 400
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        stored = ArrayStore.open(tmp_path / "s")["fields"]
        np.testing.assert_array_equal(stored.rows(torch.arange(400)).numpy(), values)
        assert len(os.listdir("/proc/self/fd")) < 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Broken(InMemory):
    def read(self, lo, hi):
        raise OSError("data.hdf5 is truncated")


def test_a_failure_of_the_source_is_not_blamed_on_the_store(tmp_path):
    with pytest.raises(OSError, match=r"data\.hdf5"):
        build(tmp_path / "s", "k", {"u": Broken(numbers(4, 3))})


class Endless:
    shape, dtype = (2, 2**50), np.dtype("float32")

    def read(self, lo, hi):
        raise AssertionError("nothing may be made before the space is checked")


def test_space_is_checked_before_any_work(tmp_path):
    with pytest.raises(UserError, match="MiB more"):
        build(tmp_path / "s", "k", {"u": Endless()})


def test_a_disk_that_refuses_leaves_a_build_that_can_be_resumed(tmp_path, small_shards):
    values, path = numbers(40, 9, 16), tmp_path / "s"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))  # the kernel refuses larger files, as a full disk would
    try:
        with pytest.raises(UserError, match="finished shards are kept"):
            build(path, "k", {"fields": InMemory(values)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(path) == ["partial.json"]
    build(path, "k", {"fields": InMemory(values)})
    np.testing.assert_array_equal(ArrayStore.open(path)["fields"].rows(torch.arange(40)).numpy(), values)


def test_an_unknown_array_names_those_there_are(store_path):
    with pytest.raises(UserError, match="it has fields"):
        ArrayStore.open(store_path)["latents"]
