"""What a machine may lack: shared memory, file descriptors, a disk that can be written; and what it must not double."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

import ups
from ups.store import layout
from ups.store.build import build
from ups.store.read import ArrayStore


class InMemory:
    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def read(self, lo: int, hi: int) -> np.ndarray:
        return self.values[lo:hi]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


BARE = """
import json, os, sys
from pathlib import Path
import numpy as np, torch
from ups.errors import UserError
from ups.store.build import build
from ups.store.read import ArrayStore
from ups.store.verify import verify

path = Path(sys.argv[1])
values = np.random.default_rng(0).standard_normal((300, 4, 64), dtype=np.float32)

class Source:
    shape, dtype = values.shape, values.dtype
    def read(self, lo, hi):
        raise AssertionError("nothing is to be made")

build(path, "k", {"fields": Source()})
stored = ArrayStore.open(path, "k")["fields"]
same = bool((stored.rows(torch.arange(300)).numpy() == values).all())
try:
    build(path.with_name("other"), "other", {"fields": Source()})
    said = ""
except UserError as error:
    said = str(error)
print(json.dumps({
    "same": same, "problems": verify(path), "said": said, "open": len(os.listdir("/proc/self/fd")),
    "shared": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
}))
"""


def test_a_built_store_needs_neither_shared_memory_nor_descriptors_nor_a_disk_that_can_be_written(
    tmp_path, monkeypatch
):
    """300 shards under `ulimit -n 256`, a /dev/shm of 64 MB, and a read-only file system, all at once."""
    monkeypatch.setattr(layout, "SHARD_BYTES", 1024)
    build(tmp_path / "s", "k", {"fields": InMemory(numbers(300, 4, 64))})
    assert len(list((tmp_path / "s").glob("*.bin"))) == 300
    mounts = (
        f"mount -t tmpfs -o size=64m tmpfs /dev/shm && mount --bind {tmp_path} {tmp_path} && "
        f"mount -o remount,bind,ro {tmp_path} && ulimit -n 256"
    )
    try:
        possible = subprocess.run(["unshare", "-m", "sh", "-c", mounts], capture_output=True).returncode == 0
    except FileNotFoundError:
        possible = False
    if not possible:
        pytest.skip("mounts in a namespace of their own need root")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$0" "$@"', sys.executable, "-c", BARE, str(tmp_path / "s")],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(ups.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["same"] and seen["problems"] == [] and seen["open"] < 32 and seen["shared"] == 64 * 2**20
    assert "Read-only file system" in seen["said"]


def _own_share(path: Path, pipe: Connection) -> None:
    """Read the whole store, then tell what its pages cost this process, resident and in proportion, when asked."""
    stored = ArrayStore.open(path)["fields"]
    total = float(stored.rows(torch.arange(len(stored))).sum())
    pipe.send(total)
    while pipe.recv():
        resident = proportional = 0
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if line.split(maxsplit=1)[0].count("-") == 1 and ":" not in line.split(maxsplit=1)[0]:
                ours = str(path) in line
            elif ours and line.startswith("Rss:"):
                resident += int(line.split()[1])
            elif ours and line.startswith("Pss:"):
                proportional += int(line.split()[1])
        pipe.send((resident * 1024, proportional * 1024))


def test_any_number_of_processes_share_the_same_pages(tmp_path):
    values = numbers(64, 16, 1024)
    build(tmp_path / "s", "k", {"fields": InMemory(values)})
    context = multiprocessing.get_context("forkserver")
    pipes, processes = [], []
    for _ in range(3):
        ours, theirs = context.Pipe()
        process = context.Process(target=_own_share, args=(tmp_path / "s", theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    totals = {pipe.recv() for pipe in pipes}
    assert len(totals) == 1
    for pipe in pipes:
        pipe.send(True)
        resident, proportional = pipe.recv()
        assert resident == values.nbytes and proportional <= values.nbytes / 3 + 4096
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(False)
        process.join(10)
