"""Make a data set with our own solvers: the same bytes whatever the number of workers, and resumable.

Trajectories are solved in chunks of 64 (the last one is solved whole too, and cut), each by one thread, so neither the
workers nor the number of trajectories change a trajectory's rounding. Finished chunks are kept beside the file until it
is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import h5py
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from ups.data.header import batch_from
from ups.data.layouts import named_layout
from ups.durable import sync
from ups.equations import Equation
from ups.errors import UserError
from ups.fields import Header

CHUNK = 64
VERSION = 1  # of the bytes a solver makes; raised when any solver's output changes

Progress = Callable[[int, int], None]


def generate(
    equation: Equation,
    count: int,
    seed: int,
    path: str | Path,
    workers: int = 1,
    progress: Progress | None = None,
) -> Path:
    """Solve trajectories 0 … count − 1 of the family `seed` and write them as a PDEBench-layout HDF5 file.

    If the file is there and was made with the same equation, count, seed and version, it is kept; any other file under
    that name is refused. Interrupted, a second call goes on where the first stopped. `progress(done, total)` is called
    with numbers of trajectories. With more than one worker, a script must call this under `if __name__ == "__main__"`.
    """
    path = Path(path)
    if count < 1 or workers < 1:
        raise UserError(f"{path}: count is {count} and workers {workers}; both must be at least 1")
    key = data_key(equation, count, seed)
    if path.exists():
        if _key_of(path) != key:
            raise UserError(
                f"{path} exists and was not made with this equation, count and seed; remove it or choose another path"
            )
        if progress is not None:
            progress(count, count)
        return path
    folder = path.with_name(f".{path.name}.chunks-{key[:16]}")
    _check_space(path, equation, count, kept=len(list(folder.glob("*.safetensors"))))
    folder.mkdir(parents=True, exist_ok=True)
    missing = [chunk for chunk in range(_chunks(count)) if not _chunk_path(folder, chunk).exists()]

    done = count - sum(_size(chunk, count) for chunk in missing)
    try:
        if progress is not None:
            progress(done, count)
        for chunk in _make_chunks(equation, seed, missing, folder, workers):
            done += _size(chunk, count)
            if progress is not None:
                progress(done, count)
        _assemble(equation, count, seed, key, folder, path)
    except BrokenProcessPool as error:
        raise UserError(
            f"{path}: a worker process was killed, perhaps for want of memory; start again with fewer workers, "
            "finished parts are kept"
        ) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(
            f"{path}: the disk is full; free some space and start again, finished parts are kept"
        ) from error
    shutil.rmtree(folder)
    return path


def data_key(equation: Equation, count: int, seed: int) -> str:
    """A hash of everything the file's bytes follow from."""
    content = {
        "equation": equation.name,
        "parameters": equation.parameters,
        "solver": equation.solver,
        "grid": [positions.tolist() for positions in equation.grid.positions],
        "times": equation.times.tolist(),
        "count": count,
        "seed": seed,
        "version": VERSION,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _chunks(count: int) -> int:
    return -(-count // CHUNK)


def _size(chunk: int, count: int) -> int:
    return min(CHUNK, count - chunk * CHUNK)


def _chunk_path(folder: Path, chunk: int) -> Path:
    return folder / f"{chunk:06d}.safetensors"


def _key_of(path: Path) -> str | None:
    try:
        with h5py.File(path, "r") as file:
            key = file.attrs.get("key")
    except OSError:  # not HDF5, or truncated: not ours
        return None
    return key if isinstance(key, str) else None


def _check_space(path: Path, equation: Equation, count: int, kept: int) -> None:
    """The chunks still to make and the final file lie on the disk together."""
    frames = len(equation.times) + len(equation.static)
    trajectory = 4 * frames * math.prod(equation.grid.shape)
    needed = trajectory * (count + CHUNK * (_chunks(count) - kept)) + 2**20
    place = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UserError(
            f"{path}: making it needs {needed / 2**20:.1f} MiB, {place} has {free / 2**20:.1f} MiB free; "
            "free some space or choose another place"
        )


def _make_chunk(equation: Equation, seed: int, chunk: int, folder: Path) -> int:
    batch = equation.solve(seed, range(chunk * CHUNK, (chunk + 1) * CHUNK))
    final = _chunk_path(folder, chunk)
    temporary = folder / f"{chunk:06d}.{os.getpid()}.tmp"
    save_file({"values": batch.values, **{f"static.{name}": field for name, field in batch.static.items()}}, temporary)
    sync(temporary)
    temporary.rename(final)
    return chunk


def _make_chunks(equation: Equation, seed: int, chunks: Sequence[int], folder: Path, workers: int) -> Iterator[int]:
    """Make the chunks in any order, naming each as it is finished."""
    if workers == 1 or len(chunks) < 2:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for chunk in chunks:
                yield _make_chunk(equation, seed, chunk, folder)
        finally:
            torch.set_num_threads(threads)
        return
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])  # torch is imported once, and files after the first start at once
    pool = ProcessPoolExecutor(min(workers, len(chunks)), mp_context=context, initializer=_start_worker)
    try:
        futures = [pool.submit(_make_chunk, equation, seed, chunk, folder) for chunk in chunks]
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """One thread. Ctrl-C reaches workers too, but is the parent's to answer; its end, however it came, is theirs."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _assemble(equation: Equation, count: int, seed: int, key: str, folder: Path, path: Path) -> None:
    header = Header(
        task=equation.name,
        channels=equation.channels,
        grid=equation.grid,
        times=equation.times,
        boundary=equation.boundary,
        parameters=equation.parameters,
        static=equation.static,
        notes={
            "equation": equation.name,
            "solver": equation.solver,
            "seed": seed,
            "version": VERSION,
            "key": key,
        },
    )
    with named_layout(equation.layout).writer(path, header, count) as writer:
        for chunk in range(_chunks(count)):
            size, first = _size(chunk, count), chunk * CHUNK
            arrays = load_file(_chunk_path(folder, chunk))
            static = {name: arrays[f"static.{name}"][:size].numpy() for name in equation.static}
            values, rows = arrays["values"][:size].numpy(), np.arange(first, first + size)
            writer.write(batch_from(header, rows, slice(None), values, static))
