"""A store that ranks or worker processes write together: the same bytes, and nobody waits for who has failed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks

from ups.distributed.faults.crash import PeerFailed
from ups.distributed.runtime.settings import RuntimeConfig
from ups.distributed.runtime.start import Runtime
from ups.errors import Stopped, UserError
from ups.store import layout
from ups.store.build import build
from ups.store.ranks import build_on_ranks
from ups.store.read import ArrayStore
from ups.store.verify import verify

SMALL = 4096
"""Bytes of a shard, so that small arrays have several."""


@dataclass(frozen=True)
class Waves:
    """Rows that any process can make for itself; at row `fails_at`, something happens instead."""

    count: int = 40
    fails_at: int | None = None
    fault: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, 9, 16)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float32)

    def read(self, lo: int, hi: int) -> np.ndarray:
        if self.fails_at is not None and lo <= self.fails_at < hi:
            if self.fault == "killed":
                os._exit(1)
            raise {"mistake": UserError("row 20 is bad; mend it"), "bug": ZeroDivisionError("oops")}[self.fault]
        x = np.arange(9 * 16, dtype=np.float32).reshape(9, 16)
        return np.stack([np.sin(x * (row + 1)) for row in range(lo, hi)])


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(layout, "SHARD_BYTES", SMALL)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def build_here(path: Path, source: Waves, stop: int | None = None) -> tuple[str, list[int]]:
    """How the build of this rank ended, and what it was told of its progress."""
    layout.SHARD_BYTES = SMALL
    seen: list[int] = []
    with Runtime.start(RuntimeConfig(device="cpu", threads=1), 0) as runtime:

        def progress(done: int, total: int) -> None:
            seen.append(done)
            runtime.stop.asked = runtime.rank == stop
            runtime.check_stop("the finished shards are kept")

        try:
            build_on_ranks(runtime, path, "k", {"fields": source, "more": Waves(7)}, progress)
        except (UserError, Stopped, PeerFailed, ZeroDivisionError) as error:
            return f"{type(error).__name__}: {error}", seen
        # Every rank maps the files that the others wrote.
        ArrayStore.open(path, "k")["fields"].rows(torch.arange(40))
        return "built", seen


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, bytes]:
    """The files that one process writes."""
    build(tmp_path / "alone", "k", {"fields": Waves(), "more": Waves(7)})
    return contents(tmp_path / "alone")


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_the_shards_and_write_the_same_bytes(tmp_path, alone, size):
    ended = run_ranks(size, build_here, tmp_path / "s", Waves())
    assert [how for how, _ in ended] == ["built"] * size
    assert contents(tmp_path / "s") == alone
    shards = len(alone) - 1
    shares = [len(seen) for _, seen in ended]
    assert sum(shares) == shards and max(shares) - min(shares) <= 1


def test_workers_write_the_same_bytes(tmp_path, alone):
    seen = []
    build(
        tmp_path / "s",
        "k",
        {"fields": Waves(), "more": Waves(7)},
        lambda done, total: seen.append((done, total)),
        workers=2,
    )
    assert contents(tmp_path / "s") == alone and seen == sorted(seen) and seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize(
    ("fault", "said"), [("mistake", "row 20 is bad; mend it"), ("killed", r"process was killed.*shards are kept")]
)
def test_a_worker_that_fails_ends_the_build_with_a_sentence_and_keeps_what_is_finished(tmp_path, alone, fault, said):
    with pytest.raises(UserError, match=said):
        build(tmp_path / "s", "k", {"fields": Waves(fails_at=39, fault=fault), "more": Waves(7)}, workers=2)
    assert not (tmp_path / "s" / "index.json").exists()
    build(tmp_path / "s", "k", {"fields": Waves(), "more": Waves(7)})
    assert contents(tmp_path / "s") == alone


@pytest.mark.parametrize(
    ("fault", "own", "others"),
    [
        (
            "mistake",
            "UserError: row 20 is bad; mend it",
            "UserError: rank {}: row 20 is bad; mend it",
        ),
        ("bug", "ZeroDivisionError: oops", "PeerFailed: rank {}: ZeroDivisionError: oops"),
    ],
)
def test_a_rank_that_fails_ends_the_build_of_all_with_one_sentence(tmp_path, alone, fault, own, others):
    ended = [how for how, _ in run_ranks(3, build_here, tmp_path / "s", Waves(fails_at=20, fault=fault), timeout=20)]
    culprit = ended.index(own)
    assert [how for rank, how in enumerate(ended) if rank != culprit] == [others.format(culprit)] * 2
    left = contents(tmp_path / "s")
    assert {name: alone[name] for name in left if name.endswith(".bin")}.items() <= left.items()
    assert {name for name in left if not name.endswith(".bin")} == {"partial.json"}
    assert [how for how, _ in run_ranks(3, build_here, tmp_path / "s", Waves())] == ["built"] * 3
    assert contents(tmp_path / "s") == alone


def test_a_store_of_another_key_is_refused_on_every_rank(tmp_path):
    build(tmp_path / "s", "old", {"fields": Waves(), "more": Waves(7)})
    (first, _), (second, _) = run_ranks(2, build_here, tmp_path / "s", Waves(), timeout=20)
    assert first.startswith("UserError:") and "key old, wanted k" in first
    assert second == first.replace("UserError: ", "UserError: rank 0: ")


def test_a_rank_that_is_asked_to_stop_stops_the_others_and_the_build_can_go_on(tmp_path, alone):
    ended = [how for how, _ in run_ranks(2, build_here, tmp_path / "s", Waves(), 1, timeout=20)]
    assert ended == ["Stopped: rank 1: the finished shards are kept", "Stopped: the finished shards are kept"]
    assert [how for how, _ in run_ranks(2, build_here, tmp_path / "s", Waves())] == ["built"] * 2
    assert contents(tmp_path / "s") == alone


@dataclass(frozen=True)
class Slow(Waves):
    seconds: float = 0.0

    def read(self, lo: int, hi: int) -> np.ndarray:
        time.sleep(self.seconds if lo else 0.0)
        return super().read(lo, hi)


def build_slowly(path: Path, seconds: float) -> None:
    layout.SHARD_BYTES = SMALL
    build(path, "k", {"fields": Slow(seconds=seconds), "more": Waves(7)})


def start_builder(path: Path, seconds: float) -> Any:
    """Another process that builds the same store, `seconds` a shard after the first, which it has written."""
    other = multiprocessing.get_context("forkserver").Process(target=build_slowly, args=(path, seconds), daemon=True)
    other.start()
    end = time.monotonic() + 60
    while not list(path.glob("*.bin")):
        assert other.is_alive() and time.monotonic() < end
        time.sleep(0.01)
    return other


def test_a_second_builder_waits_for_the_first_and_makes_nothing_itself(tmp_path, alone):
    other, seen = start_builder(tmp_path / "s", 0.1), []
    with pytest.warns(UserWarning, match="is being built by another process; waiting for it"):
        build(
            tmp_path / "s",
            "k",
            {"fields": Waves(fails_at=39, fault="bug"), "more": Waves(7)},
            lambda done, total: seen.append(done),
        )
    other.join(10)
    assert other.exitcode == 0 and seen[-1] == sum(len(b) for n, b in alone.items() if n.endswith(".bin"))
    assert contents(tmp_path / "s") == alone


def test_a_builder_that_is_killed_leaves_its_shards_to_the_one_that_waits(tmp_path, alone):
    other, counted = start_builder(tmp_path / "s", 60.0), []

    def progress(done: int, total: int) -> None:
        counted.append(done)
        if len(counted) == 3:
            other.kill()

    with pytest.warns(UserWarning, match="another process"):
        build(tmp_path / "s", "k", {"fields": Waves(), "more": Waves(7)}, progress)
    other.join(10)
    assert other.exitcode == -signal.SIGKILL
    assert contents(tmp_path / "s") == alone and verify(tmp_path / "s") == []
