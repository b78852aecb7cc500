"""How fast trajectories are made, against NumPy vectorised in x: one trajectory at a time, same scheme, same steps.

    python benchmarks/generation.py                                   two processes of one thread each
    python benchmarks/generation.py --device cuda --count 10000       also times trajectories of other equations

Burgers at 1024 points, ν = 0.001, 201 frames. Times are warm ones (processes started, first calls made) of solving into
memory, on a GPU in the chunks of `ups data make`; nothing is written. NumPy solves a few of the same trajectories in
the same run; its time for all of them is its time a step times the steps that all of them take.
"""

from __future__ import annotations

import argparse
import datetime
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two threads that spin on shared cores are slower than one

import numpy as np
import torch
from torch import Tensor

from ups.data.generate.chunks import Chunks
from ups.equations import (
    Burgers,
    Compressible1D,
    Compressible2D,
    DiffusionReaction,
    Equation,
    GrayScott,
    RandomWaves,
    ShallowWater,
    Vorticity,
)
from ups.equations.schemes.finite_volume import stable_step

BURGERS = Burgers(points=1024, nu=0.001, frames=201)
OTHERS: list[tuple[str, Equation, int]] = [
    ("diffusion-reaction 128², 101 frames", DiffusionReaction(points=128, frames=101), 1000),
    ("compressible flow 128 points, 21 frames", Compressible1D(points=128, frames=21), 1200),
    ("compressible flow 64², 21 frames", Compressible2D(points=64, frames=21), 300),
    ("shallow water 64², 101 frames", ShallowWater(points=64, frames=101), 300),
    ("vorticity 64², 51 frames", Vorticity(points=64, frames=51), 300),
    ("Gray-Scott 64², 101 frames", GrayScott(points=64, frames=101), 300),
]
WORKERS = 2
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--count", type=int, help="Burgers trajectories; 128 on a CPU, 10,000 on a GPU")
    parser.add_argument("--reference", type=int, default=4, help="how many of them NumPy solves")
    parser.add_argument("--chunk", type=int, help="trajectories at a time on a GPU; as `ups data make` has them")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here")
    torch.set_num_threads(1)
    count = options.count or (10_000 if options.device == "cuda" else 128)

    if options.device == "cuda":
        seconds, steps, first = _on_gpu(BURGERS, count, options.chunk or _chunk(BURGERS, count))
    else:
        seconds, steps, first = _on_cores(count)
    rows = [("Burgers 1024 points, ν 0.001, 201 frames", count, seconds)]
    solved = min(options.reference, count, len(first))
    reference, per_step = _reference(first[:solved])
    ratio = per_step * steps / seconds
    if options.device == "cuda":
        rows += [(what, number, _on_gpu(equation, number, number)[0]) for what, equation, number in OTHERS]

    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{WORKERS} processes on {_processor()}"
    print(f"\n{where}; NumPy on {_processor()}; torch {torch.__version__}, NumPy {np.__version__}, {_today()}\n")
    print("Warm, into memory: nothing is written.\n")
    print("| what | trajectories | seconds | ms a trajectory |\n|---|---|---|---|")
    for what, number, took in rows:
        print(f"| {what} | {number} | {took:.1f} | {1000 * took / number:.2f} |")
    print(f"| the same Burgers in NumPy, one process | {solved} | {reference:.1f} | {1000 * reference / solved:.0f} |")
    print(
        f"\nNumPy: {1e6 * per_step:.0f} µs a step, {steps / count:.0f} steps a trajectory in the mean; "
        f"batched Burgers is {ratio:.1f} times as fast."
    )


def _chunk(equation: Equation, count: int) -> int:
    return Chunks(equation, SEED, count, "cuda", Path()).size


def _on_gpu(equation: Equation, count: int, chunk: int) -> tuple[float, int, Tensor]:
    """Seconds of a warm GPU from nothing to float32 fields in host memory; the steps taken (Burgers only); the first
    trajectories.
    """
    equation.solve(SEED, range(8), equation.times[:3], "cuda")
    torch.cuda.synchronize()
    seconds, steps, first = 0.0, 0, torch.empty(0)
    for start in range(0, count, chunk):
        began = time.perf_counter()
        values = equation.solve(SEED, range(start, min(start + chunk, count)), device="cuda").values.cpu()
        seconds += time.perf_counter() - began
        print(f"{equation.name}: {start + len(values)} of {count} in {seconds:.1f} s", flush=True)
        if isinstance(equation, Burgers):
            steps += _steps(values)
        first = values[:16].clone() if start == 0 else first
        torch.cuda.empty_cache()
    return seconds, steps, first


def _on_cores(count: int) -> tuple[float, int, Tensor]:
    """The same by one process a core. Their start (importing torch) is not counted: a data set is made by warm ones."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, mp_context=spawn) as pool:
        for ready in [pool.submit(_solve, [worker], 2) for worker in range(WORKERS)]:
            ready.result()
        began = time.perf_counter()
        parts = [pool.submit(_solve, range(w, count, WORKERS), BURGERS.frames) for w in range(WORKERS)]
        values = [part.result() for part in parts]
        seconds = time.perf_counter() - began
    whole = torch.empty(count, *values[0].shape[1:])
    for worker, part in enumerate(values):
        whole[worker::WORKERS] = torch.from_numpy(part)
    return seconds, _steps(whole), whole


def _solve(ids: Sequence[int], frames: int) -> np.ndarray:
    torch.set_num_threads(1)
    if frames == 2:
        time.sleep(0.5)  # so that both processes get one of the two first calls, which import and allocate
    return BURGERS.solve(SEED, ids, BURGERS.times[:frames]).values.numpy()


def _steps(values: Tensor) -> int:
    """How many steps all these trajectories took: the rule of Burgers, from the speed at each frame's start."""
    speed = values[:, :-1, :, 0].abs().amax(2).double()
    return sum(_divided(s) for s in speed.flatten().tolist())


def _divided(speed: float) -> int:
    """Into how many steps a frame is divided that starts with this largest speed."""
    bound = 2.0 ** math.ceil(math.log2(max(speed, 2**-6)))
    interval = BURGERS.duration / (BURGERS.frames - 1)
    return math.ceil(interval / stable_step(bound, 1 / BURGERS.points, BURGERS.viscosity))


def _reference(ours: Tensor) -> tuple[float, float]:
    """Seconds for the first trajectories in NumPy, and seconds a step; refuses to compare different results."""
    x = BURGERS.grid.positions[0]
    starts = RandomWaves.draw(SEED, range(len(ours)))(x).numpy()
    seconds, steps = 0.0, 0
    for row, start in enumerate(starts):
        began = time.perf_counter()
        frames = []
        for u, taken in _in_numpy(start):
            frames.append(u)
            steps += taken
        seconds += time.perf_counter() - began
        difference = np.abs(np.stack(frames) - ours[row, ..., 0].numpy()).max()
        if difference > 1e-3:  # float32, and rounding that a shock amplifies
            raise SystemExit(
                f"trajectory {row}: NumPy and ups differ by {difference:.1e}; the comparison means nothing"
            )
    return seconds, seconds / steps


def _in_numpy(u: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """The frames of one trajectory, and how many steps each took."""
    interval, dx = BURGERS.duration / (BURGERS.frames - 1), 1 / BURGERS.points
    yield u, 0
    for _ in range(BURGERS.frames - 1):
        steps = _divided(float(np.abs(u).max()))
        dt = interval / steps
        for _ in range(steps):
            euler = u + dt * _rate(u, dx, BURGERS.viscosity)
            u = 0.5 * (u + euler + dt * _rate(euler, dx, BURGERS.viscosity))
        yield u, steps


def _rate(u: np.ndarray, dx: float, viscosity: float) -> np.ndarray:
    """The scheme of `ups.equations.schemes.finite_volume` as one writes it in NumPy."""
    wide = np.concatenate((u[-2:], u, u[:2]))
    jump = wide[1:] - wide[:-1]
    before, after = jump[:-1], jump[1:]
    product = before * after
    rises = product > 0
    slope = np.divide(product, before + after, out=np.zeros_like(product), where=rises)
    left = wide[1:-2] + slope[:-1]
    right = wide[2:-1] - slope[1:]
    flux = 0.5 * (np.maximum(left, 0.0) ** 2 + np.minimum(right, 0.0) ** 2) - (viscosity / dx) * jump[1:-1]
    return (flux[:-1] - flux[1:]) / dx


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    return names[0].split(":")[1].strip() if names else platform.processor() or platform.machine()


def _today() -> str:
    return datetime.date.today().isoformat()


if __name__ == "__main__":
    main()
