"""A system that UPS does not know, in a file that says what it holds: Korteweg and de Vries' equation, solved here.

    ∂u/∂t + u ∂u/∂x + δ² ∂³u/∂x³ = 0 on a ring of length 2, δ = 0.022

after Zabusky and Kruskal (1965), from few random waves: they steepen, and break up into solitons that pass through one
another. Fourier, dispersion exact by an integrating factor, Runge and Kutta's fourth order, products without aliases.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from ups.bench.data import Held
from ups.data.convert import convert
from ups.fields import Batch, Boundary, Grid, Header

NAME = "korteweg_de_vries"
LENGTH, DELTA = 2.0, 0.022
POINTS, FRAMES, DURATION = 256, 41, 1.0
WAVES = 3
_STEP = 1e-3


def solve(u: Float[Tensor, "B X"], times: Float[Tensor, " T"]) -> Float[Tensor, "B T X"]:
    """The solution from u at the first time."""
    n = u.shape[-1]
    k = 2 * math.pi / LENGTH * torch.arange(n // 3 + 1, dtype=torch.float64, device=u.device)
    frames, spectrum = [u], torch.fft.rfft(u)[:, : len(k)]

    def slope(w: Tensor) -> Tensor:
        return -0.5j * k * torch.fft.rfft(torch.fft.irfft(w, n=n).square())[:, : len(k)]

    for interval in times.diff().tolist():
        steps = math.ceil(round(interval / _STEP, 6))
        h = interval / steps
        half = torch.exp(0.5j * h * DELTA**2 * k**3)  # what dispersion does in half a step
        for _ in range(steps):
            a = slope(spectrum)
            b = slope(half * (spectrum + 0.5 * h * a))
            c = slope(half * spectrum + 0.5 * h * b)
            d = slope(half * (half * spectrum + h * c))
            spectrum = half * (half * (spectrum + h / 6 * a) + h / 3 * (b + c)) + h / 6 * d
        frames.append(torch.fft.irfft(spectrum, n=n))
    return torch.stack(frames, 1)


def starts(count: int, seed: int, x: Float[Tensor, " X"]) -> Float[Tensor, "B X"]:
    """Three random waves, of rms 1."""
    draw = torch.Generator().manual_seed(seed)
    amplitude, phase = torch.rand(2, count, WAVES, 1, dtype=torch.float64, generator=draw)
    order = torch.arange(1, WAVES + 1, dtype=torch.float64)[:, None]
    u = (amplitude * torch.cos(2 * math.pi * (order * x / LENGTH + phase))).sum(1)
    return u / u.square().mean(1, keepdim=True).sqrt()


def write(path: Path, count: int, seed: int, device: torch.device | str = "cpu", points: int = POINTS) -> Path:
    """So many trajectories as a file of The Well's layout; one that is there is kept."""
    if path.is_file():
        return path
    grid, times = Grid.cell_centred((points,), ((0.0, LENGTH),)), torch.linspace(0, DURATION, FRAMES).double()
    values = solve(starts(count, seed, grid.positions[0].double()).to(device), times).cpu().float()[..., None]
    boundary = Boundary.all("periodic", 1)
    notes = {"solver": "Fourier, exact dispersion, fourth order", "seed": seed}
    header = Header(NAME, ("u",), grid, times, boundary, {"delta": DELTA}, notes=notes)
    parameters = {"delta": torch.full((count,), DELTA, dtype=torch.float64)}
    whole = Batch(NAME, values, times.expand(count, -1), grid, boundary, parameters, {}, torch.arange(count))
    path.parent.mkdir(parents=True, exist_ok=True)
    convert(Held(header, whole), path, "well")
    return path
