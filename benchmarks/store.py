"""How fast batches come from a mapped store, against the same gather from an array in memory.

    python benchmarks/store.py                 # a Markdown table, in a few seconds; leave the cores to it

Windows of random trajectories and frames, the same ones for both, whose pages are warm. In memory: NumPy's own gather,
`values[rows[:, None], frames]`, as a tensor. Both take turns, in many rounds; rates and ratio are medians.

A store of 13 GB (holes on the disk: 2,000 trajectories of 200 × 128 × 128, half precision) is opened; one is built by
one worker process and by two, whose start is not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor

from ups.store.build import build, write_shards
from ups.store.claim import planned
from ups.store.layout import INDEX, ArrayLayout, Index, Shard, plan, row_bytes
from ups.store.read import ArrayStore

BATCH, BATCHES, ROUNDS = 64, 100, 41
LARGE = (2000, 200, 128, 128, 1)
CASES = (  # name, shape of the set, frames of a window, dtype
    ("3 × 256", (1000, 201, 256, 1), 3, "float32"),
    ("2 × 64 × 64 × 2", (120, 101, 64, 64, 2), 2, "float32"),
    ("3 × 256", (1000, 201, 256, 1), 3, "float16"),
    ("2 × 64 × 64 × 2", (120, 101, 64, 64, 2), 2, "float16"),
)


@dataclass(frozen=True)
class Noise:
    """Random rows, the same ones in every process."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, lo: int, hi: int) -> np.ndarray:
        rows = [np.random.default_rng(row).standard_normal(self.shape[1:], dtype=np.float32) for row in range(lo, hi)]
        return np.stack(rows).astype(self.dtype)


def main() -> None:
    torch.set_num_threads(1)
    print(f"{_processor()}; torch {torch.__version__}, NumPy {np.__version__}\n")
    with tempfile.TemporaryDirectory() as folder:
        print(f"| windows, batch {BATCH} | stored as | shards | mapped, samples/s | in memory, samples/s | ratio |")
        print("|---|---|---|---|---|---|")
        for number, (name, shape, frames, dtype) in enumerate(CASES):
            print(_gathers(Path(folder) / str(number), name, shape, frames, dtype))
        print("\n| what | |\n|---|---|")
        print(f"| opening 13 GB in 200 shards | {1000 * _opening(Path(folder) / 'large'):.1f} ms |")
        for workers in (1, 2):
            rate, size = _building(Path(folder) / f"built{workers}", workers)
            print(f"| building {size / 1e6:.0f} MB, {workers} worker{'s' * (workers > 1)} | {rate / 1e6:.0f} MB/s |")


def _gathers(path: Path, name: str, shape: tuple[int, ...], frames: int, dtype: str) -> str:
    source = Noise(shape, np.dtype(dtype))
    values = source.read(0, shape[0])
    build(path, "k", {"fields": source})
    stored = ArrayStore.open(path)["fields"]
    rng = np.random.default_rng(0)
    batches = [
        (
            torch.from_numpy(rng.integers(0, shape[0], BATCH)),
            torch.from_numpy(rng.integers(0, shape[1] - frames, BATCH)),
        )
        for _ in range(BATCHES)
    ]

    def mapped(rows: Tensor, starts: Tensor) -> Tensor:
        return stored.gather(rows, starts, frames)

    def in_memory(rows: Tensor, starts: Tensor) -> Tensor:
        times = starts.numpy()[:, None] + np.arange(frames)
        return torch.from_numpy(values[rows.numpy()[:, None], times]).float()

    assert all(torch.equal(mapped(*batch), in_memory(*batch)) for batch in batches)
    ours, theirs = _turns((mapped, in_memory), batches)
    rates = " | ".join(f"{BATCH * BATCHES / np.median(took):,.0f}" for took in (ours, theirs))
    shards = len(list(path.glob("*.bin")))
    return f"| {name} | {dtype} | {shards} | {rates} | {np.median(theirs / ours):.2f} |"


def _turns(
    gathers: tuple[Callable[[Tensor, Tensor], Tensor], ...], batches: list[tuple[Tensor, Tensor]]
) -> list[np.ndarray]:
    """Seconds of each round of each."""
    took = np.zeros((len(gathers), ROUNDS))
    for turn in range(ROUNDS):
        for number, gather in enumerate(gathers):
            begin = time.perf_counter()
            for rows, starts in batches:
                gather(rows, starts)
            took[number, turn] = time.perf_counter() - begin
    return list(took)


def _opening(path: Path) -> float:
    """Seconds to open a store whose shards are zeros that take no room."""
    path.mkdir()
    shards, sums = [], {}
    for number, (first, rows) in enumerate(plan(LARGE, "float16")):
        size = rows * row_bytes(LARGE, "float16")
        if size not in sums:
            sums[size] = zlib.crc32(bytes(size))
        shard = Shard(f"fields.{number:05d}.{sums[size]:08x}.bin", first, rows, size, sums[size])
        with (path / shard.file).open("wb") as hole:
            hole.truncate(size)
        shards.append(shard)
    (path / INDEX).write_bytes(Index("k", {"fields": ArrayLayout("float16", LARGE, tuple(shards))}).sealed())
    begin = time.perf_counter()
    ArrayStore.open(path, "k")
    return time.perf_counter() - begin


def _building(path: Path, workers: int) -> tuple[float, int]:
    """Bytes a second from the first finished shard to the last, and the bytes of the store."""
    arrays = {"fields": Noise((2000, 201, 256, 1), np.dtype(np.float32))}
    with planned(path, "k", arrays, lambda done, total: None) as todo:
        ends, sizes = [], []
        for _, shard in write_shards(path, todo.missing, arrays, workers):
            ends.append(time.perf_counter())
            sizes.append(shard.bytes)
        return sum(sizes[1:]) / (ends[-1] - ends[0]), todo.total


def _processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0].partition(': ')[2] if names else platform.machine()}"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
