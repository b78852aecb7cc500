"""Chunks of trajectories: solved by CPU workers or GPUs, and kept in files of their own until the whole is written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ups.data.generate.workers import in_workers
from ups.durable import sync
from ups.equations import Equation
from ups.errors import UserError
from ups.fields import Batch

_CPU = (64, 1 << 28)  # most trajectories and most bytes of float32 in a chunk
_GPU = (2048, 1 << 30)


@dataclass(frozen=True)
class Chunks:
    """The trajectories 0 … count − 1 of a family, cut into chunks. `device` is "cpu", "cuda" or one GPU, "cuda:1".

    A chunk's size follows from the equation's shape and the kind of device, never from the machine, since the size of a
    batch may change a trajectory's last digits. The last chunk is solved whole too, and cut.
    """

    equation: Equation
    seed: int
    count: int
    device: str
    folder: Path

    @cached_property
    def size(self) -> int:
        equation = self.equation
        values = len(equation.times) * math.prod(equation.grid.shape) * len(equation.channels)
        if equation.dimension == 3:  # where what is solved is many times what is stored, and takes long
            values *= equation.refinement**3
        most, room = _CPU if self.device == "cpu" else _GPU
        size = 2 ** int(math.log2(max(1, min(most, room // (4 * values)))))
        # A few trajectories are not worth a GPU's whole chunk; on CPUs a short file is the start of a long one.
        return size if self.device == "cpu" else min(size, 2 ** math.ceil(math.log2(self.count)))

    def __len__(self) -> int:
        return -(-self.count // self.size)

    def held(self, chunk: int) -> int:
        """How many trajectories of the data a chunk holds."""
        return min(self.size, self.count - chunk * self.size)

    def path(self, chunk: int) -> Path:
        return self.folder / f"{chunk:06d}.arrays"

    def finished(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.arrays"))

    def solve(self, chunk: int, device: str) -> Batch:
        first = chunk * self.size
        return self.equation.solve(self.seed, range(first, first + self.size), device=device)

    def save(self, chunk: int, batch: Batch) -> int:
        """Keep a chunk, whole or not at all. Its times, grid and boundary are the equation's."""
        arrays = {"values": batch.values}
        for kind in ("parameters", "static", "forcings"):
            arrays |= {f"{kind}.{name}": array for name, array in getattr(batch, kind).items()}
        if batch.mask is not None:
            arrays["mask"] = batch.mask
        temporary = self.folder / f"{chunk:06d}.{os.getpid()}.tmp"
        stored = {name: array[: self.held(chunk)].cpu().contiguous().numpy() for name, array in arrays.items()}
        head = json.dumps({name: (array.dtype.str, array.shape) for name, array in stored.items()}).encode()
        # The arrays' own memory, a call each: formats that copy it first, or write small pieces, take several times as
        # long as the disk. Arrays begin at multiples of 64 bytes, so that they can be mapped.
        with temporary.open("wb") as file:
            file.write(head.ljust(_padded(len(head) + 1) - 1) + b"\n")
            for array in stored.values():
                file.write(array.reshape(-1).view(np.uint8).data)
                file.write(bytes(_padded(array.nbytes) - array.nbytes))
        sync(temporary)
        temporary.rename(self.path(chunk))
        return chunk

    def read(self, chunk: int) -> Batch:
        """What was saved, mapped rather than copied into fresh memory, which would take as long as writing it."""
        with self.path(chunk).open("rb") as file:
            head = file.readline()
        arrays: dict[str, Tensor] = {}
        start = len(head)
        for name, (dtype, shape) in json.loads(head).items():
            mapped = np.memmap(self.path(chunk), dtype=dtype, mode="c", offset=start, shape=tuple(shape))
            arrays[name] = torch.from_numpy(mapped)
            start += _padded(mapped.nbytes)

        def of(kind: str) -> dict[str, Tensor]:
            return {
                name.removeprefix(f"{kind}."): array for name, array in arrays.items() if name.startswith(f"{kind}.")
            }

        first, held = chunk * self.size, self.held(chunk)
        return Batch(
            task=self.equation.name,
            values=arrays["values"],
            times=self.equation.times.expand(held, -1),
            grid=self.equation.grid,
            boundary=self.equation.boundary,
            parameters=of("parameters"),
            static=of("static"),
            ids=torch.arange(first, first + held),
            forcings=of("forcings"),
            mask=arrays.get("mask"),
        )

    def make(self, missing: Sequence[int], workers: int) -> Iterator[int]:
        """Solve and save chunks in any order, naming each as it is finished; every visible GPU has one worker."""
        devices = gpus(self.device) if self.device != "cpu" else ["cpu"] * workers
        devices = devices[: len(missing)]
        if len(devices) > 1:
            kept = f": finished parts are kept in {self.folder}"
            made = in_workers(self._make_here, missing, len(devices), kept, _choose_device, devices)
            yield from (chunk for chunk, _ in made)
        elif devices and devices[0] == "cpu":
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                for chunk in missing:
                    yield self.save(chunk, self.solve(chunk, "cpu"))
            finally:
                torch.set_num_threads(threads)
        elif devices:
            yield from self._make_on_gpu(missing, devices[0])

    def _make_here(self, chunk: int) -> int:
        return self.save(chunk, self.solve(chunk, _worker_device))

    def _make_on_gpu(self, missing: Sequence[int], device: str) -> Iterator[int]:
        """While the GPU solves a chunk, a thread copies and saves the one before."""
        strict = torch.are_deterministic_algorithms_enabled()
        # As in worker processes, which know nothing of a run's switch: one solver sums along an axis, for which torch
        # has no kernel that it calls deterministic.
        torch.use_deterministic_algorithms(False)
        try:
            with ThreadPoolExecutor(1) as saver:
                saving: Future[int] | None = None
                for chunk in missing:
                    batch = self.solve(chunk, device)
                    if saving is not None:
                        yield saving.result()
                    saving = saver.submit(self.save, chunk, batch)
                if saving is not None:
                    yield saving.result()
        finally:
            torch.use_deterministic_algorithms(strict)
            torch.cuda.empty_cache()  # a run asks next how much memory is free, and what torch keeps is not


def _padded(size: int) -> int:
    return -(-size // 64) * 64


def gpus(device: str) -> list[str]:
    """The GPUs that a device means: all visible ones for "cuda"."""
    if not device.startswith("cuda"):
        raise UserError(f"device is {device!r}; use cpu, cuda for every GPU, or cuda:0 for one")
    there = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if not there or (device != "cuda" and device not in there):
        raise UserError(f"device is {device!r}, but the GPUs here are {', '.join(there) or 'none'}; use one, or cpu")
    return there if device == "cuda" else [device]


_worker_device = "cpu"
"""Where this worker process solves."""


def _choose_device(number: int, devices: Sequence[str]) -> None:
    global _worker_device
    _worker_device = devices[number]
