"""From an array to a simulator, in one call each: five arrays of the kinds people bring, from solvers of a few lines.

    python benchmarks/from_array.py [--budget "2 min"] [--case NUMBER ...] [--runs DIR]

The table has each call's time and its rollout error on trajectories kept from training, over persistence's and over
that of an FNO that trained as long on the same data.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ups


def periodic_start(random: np.random.Generator, count: int, shape: tuple[int, ...], waves: int) -> np.ndarray:
    """Sums of few waves around a box, of rms 1."""
    field = random.normal(size=(count, *shape))
    spectrum = np.fft.fftn(field, axes=range(1, field.ndim))
    k = np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in shape), indexing="ij")
    spectrum *= np.exp(-sum(each**2 for each in k) / waves**2)
    field = np.fft.ifftn(spectrum, axes=range(1, field.ndim)).real
    return field / np.sqrt(np.square(field).mean(tuple(range(1, field.ndim)), keepdims=True))


def burgers(random: np.random.Generator) -> dict[str, Any]:
    """u_t + u u_x = ν u_xx around a ring, ν of each trajectory its own: Fourier, with the diffusion exact."""
    count, n, dt, parts = 300, 128, 0.05, 40
    nu = random.uniform(0.01, 0.04, count)
    k = 2 * np.pi * np.fft.rfftfreq(n, 1 / n)
    keep = k < 2 / 3 * k.max()
    h = dt / parts
    decay = np.exp(-nu[:, None] * k**2 * h)

    def slope(w: np.ndarray) -> np.ndarray:
        return -0.5j * k * keep * np.fft.rfft(np.fft.irfft(w, n) ** 2)

    w = np.fft.rfft(periodic_start(random, count, (n,), 3))
    frames = [np.fft.irfft(w, n)]
    for step in range(20 * parts):
        middle = (w + 0.5 * h * slope(w)) * np.sqrt(decay)
        w = w * decay + h * slope(middle) * np.sqrt(decay)
        if (step + 1) % parts == 0:
            frames.append(np.fft.irfft(w, n))
    u = np.stack(frames, 1).astype(np.float32)
    return {"data": u, "dt": dt, "lengths": [1.0], "parameters": {"nu": nu}}


def between_walls(random: np.random.Generator) -> dict[str, Any]:
    """u_t = D ∇²u + u − u³ − v, v_t = E ∇²v + (u − v) / 4 on 48 × 80 points, no flux: five points, small steps."""
    count, shape, h, parts = 120, (48, 80), 0.01, 25
    u, v = (periodic_start(random, count, (96, 160), 3)[:, :48, :80] * size for size in (0.8, 0.3))
    spacing = 1 / 48

    def bend(f: np.ndarray) -> np.ndarray:
        g = np.pad(f, ((0, 0), (1, 1), (1, 1)), "edge")
        return (g[:, 2:, 1:-1] + g[:, :-2, 1:-1] + g[:, 1:-1, 2:] + g[:, 1:-1, :-2] - 4 * f) / spacing**2

    frames = [np.stack([u, v], -1)]
    for step in range(15 * parts):
        u, v = u + h * (0.002 * bend(u) + u - u**3 - v), v + h * (0.004 * bend(v) + (u - v) / 4)
        if (step + 1) % parts == 0:
            frames.append(np.stack([u, v], -1).astype(np.float32))
    data = np.stack(frames, 1).astype(np.float32)
    assert data.shape[2:4] == shape
    return {"data": data, "dt": h * parts, "lengths": [1.0, 80 / 48], "boundary": "flux", "channels": ["u", "v"]}


def box(random: np.random.Generator) -> dict[str, Any]:
    """u_t = ε ∇²u + u − u³ around a box of 24³ points: Fourier, the stiff part implicit."""
    count, n, h, parts = 60, 24, 0.02, 10
    k = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, 1 / n),) * 3, indexing="ij")
    stiff = 1 + h * 0.003 * sum(each**2 for each in k)
    u = 0.7 * periodic_start(random, count, (n, n, n), 3)
    frames = [u]
    for step in range(10 * parts):
        u = np.fft.ifftn(np.fft.fftn(u + h * (u - u**3), axes=(1, 2, 3)) / stiff, axes=(1, 2, 3)).real
        if (step + 1) % parts == 0:
            frames.append(u)
    return {"data": np.stack(frames, 1).astype(np.float32), "dt": h * parts, "lengths": [1.0] * 3}


def weather(random: np.random.Generator) -> dict[str, Any]:
    """A temperature carried around a circle of latitude by a wind that differs from place to place, with units."""
    import xarray

    count, n, h, parts = 200, 96, 0.1, 10
    x = np.arange(n) * 100.0  # km
    wind = 60.0 * (1 + 0.3 * np.sin(2 * np.pi * np.arange(n) / n))  # km/h
    k = 2 * np.pi * np.fft.rfftfreq(n, 100.0)

    def slope(f: np.ndarray) -> np.ndarray:
        w = np.fft.rfft(f)
        return -wind * np.fft.irfft(1j * k * w, n) + 2e4 * np.fft.irfft(-(k**2) * w, n)

    f = 285.0 + 8.0 * periodic_start(random, count, (n,), 4)
    frames = [f]
    for step in range(24 * parts):
        f = f + h * slope(f + 0.5 * h * slope(f))
        if (step + 1) % parts == 0:
            frames.append(f)
    hours = ("time", np.arange(25) * h * parts, {"units": "h"})
    coordinates = {"time": hours, "x": ("x", x, {"units": "km"})}
    return {"data": xarray.DataArray(np.stack(frames, 1), coordinates, ("sample", "time", "x"), "T", {"units": "K"})}


def ragged(random: np.random.Generator) -> dict[str, Any]:
    """u_t = D u_xx + 4 u (1 − u) around a ring, followed for 12 to 30 frames."""
    count, n, h, parts = 250, 96, 0.005, 10
    k = 2 * np.pi * np.fft.rfftfreq(n, 1 / n)
    stiff = np.exp(-0.002 * k**2 * h)
    u = 0.5 + 0.45 * np.tanh(periodic_start(random, count, (n,), 4)) - 0.05
    frames = [u]
    for step in range(29 * parts):
        u = np.fft.irfft(np.fft.rfft(u + h * 4 * u * (1 - u)) * stiff, n)
        if (step + 1) % parts == 0:
            frames.append(u)
    whole = np.stack(frames, 1).astype(np.float32)
    return {
        "data": [each[:length] for each, length in zip(whole, random.integers(12, 31, count), strict=True)],
        "dt": 0.05,
    }


CASES: dict[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "1D, ν per trajectory": burgers,
    "2D 48×80, two channels, walls": between_walls,
    "3D 24³": box,
    "xarray with units": weather,
    "ragged lengths": ragged,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="2 min")
    parser.add_argument("--runs", type=Path, default=Path("runs/from_array"))
    parser.add_argument("--case", type=int, action="append", help="its number, from 1")
    told = parser.parse_args()
    rows = [
        "| case | seconds | UPS | FNO | persistence | UPS / persistence | UPS / FNO |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, (name, make) in enumerate(CASES.items(), start=1):
        if told.case and number not in told.case:
            continue
        case = make(np.random.default_rng(number))
        began = time.perf_counter()
        sim = ups.fit(**case, budget=told.budget, compare="fno", runs=told.runs, name=f"case-{number}")
        took = time.perf_counter() - began
        (views,) = sim.scores.values()
        error = views["rollout"]["nrmse"]
        ours, rival, trivial = (error[who] for who in ("model", "fno", "persistence"))
        cells = (f"{took:.0f}", *(f"{v:.2g}" for v in (ours, rival, trivial, ours / trivial, ours / rival)))
        rows.append(f"| {name} | {' | '.join(cells)} |")
        print("\n".join(rows), flush=True)


if __name__ == "__main__":
    main()
