"""A limited finite volume scheme for viscous Burgers: second order where smooth, no new extrema at shocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.graphs import record

_GPU_BLOCKS = (1024, 512, 256, 128)  # trajectories at a time on a GPU: the first fill it, and its cache at 1024 points
_BLOCK = 64  # trajectories at a time on a CPU: enough to hide the cost of calls, few enough for its caches


def burgers_march(
    u: Float[Tensor, "B X"], interval: float, dx: float, viscosity: float, steps: Int[Tensor, " B"]
) -> Float[Tensor, "B X"]:
    """u after `interval`, periodic: row i in steps[i] equal steps of Heun's method, an average of Euler steps.

    An Euler step adds −(F_{j+½} − F_{j−½}) dt/dx to the cell averages. States on both sides of a face come from slopes
    limited by van Leer's harmonic mean; the convective flux is Engquist-Osher's, F(u⁻, u⁺) = ½ max(u⁻, 0)² +
    ½ min(u⁺, 0)², which is monotone and admits no expansion shock; the viscous one is the central difference of the
    averages. One flux a face, so the mean is kept to rounding.

    Rows march together whatever their steps are; no operation mixes them, and those that need most go on alone.
    """
    counts, rows = steps.cpu().sort(descending=True, stable=True)
    rows = rows.to(u.device)
    dt = interval / counts.to(u)[:, None]
    unit = 2 * dx / dt  # of speed: in it the flux is max² + min² and nothing needs a factor; memory is the cost here
    scaled, diffusion = u[rows] / unit, dt * (viscosity / dx**2)
    march = _on_gpu if u.is_cuda else _on_cpu
    block = _GPU_BLOCKS[0] if u.is_cuda else _BLOCK
    for start in range(0, len(u), block):
        part = slice(start, start + block)
        scaled[part] = march(scaled[part], diffusion[part], arrivals(counts[part]))
    arrived = torch.empty_like(u)
    arrived[rows] = scaled * unit
    return arrived


class Arrival(NamedTuple):
    """The first `until` of some rows are on their way till step `step`, where those from `since` on are through."""

    step: int
    since: int
    until: int


def arrivals(counts: Int[Tensor, " b"]) -> list[Arrival]:
    """In order; `counts`, the steps of each row, must not increase."""
    steps, sizes = (found.tolist() for found in counts.unique(return_counts=True))
    ends = [len(counts) - before for before in accumulate(sizes, initial=0)]
    return [Arrival(*found) for found in zip(steps, ends[1:], ends[:-1], strict=True)]


def _on_cpu(u: Float[Tensor, "b X"], diffusion: Float[Tensor, "b 1"], stops: list[Arrival]) -> Float[Tensor, "b X"]:
    return _March(u, diffusion).run(stops)


def _on_gpu(u: Float[Tensor, "b X"], diffusion: Float[Tensor, "b 1"], stops: list[Arrival]) -> Float[Tensor, "b X"]:
    def begin(rows: int, cells: Tensor) -> tuple[Tensor, Callable[[], None]]:
        size = min(block for block in _GPU_BLOCKS if block >= rows)
        recorded = _recorded(size, u.shape[1], u.dtype, u.device)
        if recorded.cells.data_ptr() != cells.data_ptr():
            for held, given in ((recorded.cells, cells), (recorded.diffusion, diffusion)):
                held[:rows] = given[:rows]
                held[rows:] = 0.0
        return recorded.cells, recorded.graph.replay

    return taken_on_arrival(u, stops, begin)


def taken_on_arrival(
    u: Float[Tensor, "b X"],
    stops: list[Arrival],
    begin: Callable[[int, Tensor], tuple[Tensor, Callable[[], None]]],
) -> Float[Tensor, "b X"]:
    """Rows after so many steps each. `begin(rows, cells)` gives the place where the first rows of `cells` go on, and
    what moves them there by a step; rows beyond them may move too.
    """
    arrived, cells, done = torch.empty_like(u), u, 0
    for stop in stops:
        cells, step = begin(stop.until, cells)
        for _ in range(stop.step - done):
            step()
        arrived[stop.since : stop.until] = cells[stop.since : stop.until]
        done = stop.step
    return arrived


class _Recorded(NamedTuple):
    """A step of a block of rows, in place, as a CUDA graph: its kernels are shorter than the time to launch them."""

    cells: Float[Tensor, "b X"]
    diffusion: Float[Tensor, "b 1"]
    graph: torch.cuda.CUDAGraph


_EULER = """
template <typename T> T euler(T a, T b, T c, T d, T e, T diffusion, T start, T keep) {
    auto half_slope = [](T before, T after) { T p = before * after; return p > T(0) ? p / (before + after) : T(0); };
    auto flux = [diffusion](T left, T right, T jump) {
        T l = left > T(0) ? left : T(0), r = right < T(0) ? right : T(0);
        return l * l + r * r - diffusion * jump;
    };
    T sb = half_slope(b - a, c - b), sc = half_slope(c - b, d - c), sd = half_slope(d - c, e - d);
    T arrived = c + flux(b + sb, c - sc, c - b) - flux(c + sc, d - sd, d - c);
    return keep * start + (T(1) - keep) * arrived;
}
"""
"""`_March.step` of one cell c with its neighbours: one pass through memory instead of twenty. CUDA's compiler, which
comes with torch, compiles it at first use."""


@lru_cache(maxsize=16)
def _recorded(rows: int, points: int, dtype: torch.dtype, device: torch.device) -> _Recorded:
    euler = torch.cuda.jiterator._create_jit_fn(_EULER, keep=0.0)
    cells = torch.zeros(rows, points, dtype=dtype, device=device)
    diffusion = torch.zeros(rows, 1, dtype=dtype, device=device)

    def advanced(u: Tensor, keep: float) -> Tensor:
        wide = torch.cat((u[:, -2:], u, u[:, :2]), 1)
        shifted = [wide[:, start : start + points] for start in range(5)]
        return euler(*shifted, diffusion, cells, keep=keep)

    def step() -> None:
        cells.copy_(advanced(advanced(cells, 0.0), 0.5))

    outside, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(outside)
    with torch.cuda.stream(side):
        step()  # compiles and loads the kernels, which a recording must not
    outside.wait_stream(side)
    with record(side) as graph:
        step()
    return _Recorded(cells, diffusion, graph)


class _March:
    """Cells with two ghosts at each end, and the arrays that a step writes to, made once."""

    def __init__(self, cells: Float[Tensor, "b X"], diffusion: Float[Tensor, "b 1"]) -> None:
        rows, n = cells.shape
        self.diffusion = diffusion
        self.wide = cells.new_empty(rows, n + 4)
        self.cells = self.wide[:, 2:-2]
        self.cells.copy_(cells)
        self.jump = cells.new_empty(rows, n + 3)
        self.slope, self.total = (cells.new_empty(rows, n + 2) for _ in range(2))
        self.left, self.right = (cells.new_empty(rows, n + 1) for _ in range(2))
        self.start = cells.new_empty(rows, n)

    def run(self, stops: list[Arrival]) -> Float[Tensor, "B X"]:
        """All rows through."""
        whole, done = self.cells, 0
        for stop in stops:
            self._keep(stop.until)
            for _ in range(stop.step - done):
                self.step()
            done = stop.step
        return whole

    def _keep(self, rows: int) -> None:
        """Go on with the first rows only."""
        for name in ("wide", "cells", "diffusion", "jump", "slope", "total", "left", "right", "start"):
            setattr(self, name, getattr(self, name)[:rows])

    def step(self) -> None:
        self.start.copy_(self.cells)
        self._euler()
        self._euler()
        self.cells.add_(self.start).mul_(0.5)

    def _euler(self) -> None:
        wide, jump, slope, left, right = self.wide, self.jump, self.slope, self.left, self.right
        wide[:, :2] = self.cells[:, -2:]
        wide[:, -2:] = self.cells[:, :2]
        torch.sub(wide[:, 1:], wide[:, :-1], out=jump)
        before, after = jump[:, :-1], jump[:, 1:]
        torch.add(before, after, out=self.total)
        # Half of van Leer's slope, from the cell's centre to its face; where both jumps are zero it is 0/0, and zero.
        torch.mul(before, after, out=slope).clamp_min_(0.0).div_(self.total).nan_to_num_(0.0)
        torch.add(wide[:, 1:-2], slope[:, :-1], out=left).clamp_min_(0.0).square_()
        torch.sub(wide[:, 2:-1], slope[:, 1:], out=right).clamp_max_(0.0).square_()
        flux = left.add_(right).sub_(jump.mul_(self.diffusion)[:, 1:-1])
        self.cells.add_(flux[:, :-1]).sub_(flux[:, 1:])


def stable_step(speed: float, dx: float, viscosity: float) -> float:
    """The longest dt for which an Euler step makes no new extremum.

    A limited step is a mean of first-order steps of length 2 dt, and the viscous step shares the cell with it:
    dt (|u|/dx + ν/dx²) ≤ ½.
    """
    return 0.5 / (speed / dx + viscosity / dx**2)
