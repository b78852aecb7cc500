"""A limited finite volume scheme for viscous Burgers: second order where smooth, no new extrema at shocks."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.equations.schemes.fused import fused
from ups.equations.schemes.repeated import repeat

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
    """In blocks of few sizes, filled up with rows at rest, so that few steps are recorded."""
    arrived, cells, done = torch.empty_like(u), u, 0
    for stop in stops:
        beyond = (0, 0, 0, min(block for block in _GPU_BLOCKS if block >= stop.until) - stop.until)
        state = tuple(torch.nn.functional.pad(rows[: stop.until], beyond) for rows in (cells, diffusion))
        cells, _ = repeat(heun, state, stop.step - done, "burgers")
        arrived[stop.since : stop.until] = cells[stop.since : stop.until]
        done = stop.step
    return arrived


def heun(u: Float[Tensor, "b X"], diffusion: Float[Tensor, "b 1"]) -> tuple[Tensor, Tensor]:
    """`_March.step` in few passes through a GPU's memory."""

    def advanced(cells: Tensor, keep: float) -> Tensor:
        wide = torch.cat((cells[:, -2:], cells, cells[:, :2]), 1)
        shifted = (wide[:, start : start + u.shape[1]] for start in range(5))
        return _euler(*shifted, diffusion, u, keep=keep)[0]

    return advanced(advanced(u, 0.0), 0.5), diffusion


@fused
def _euler(
    a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, diffusion: Tensor, start: Tensor, *, keep: float
) -> tuple[Tensor]:
    """An Euler step of a cell c with its neighbours; of where the row began, the share `keep` is kept."""
    jumps = [b - a, c - b, d - c, e - d]
    products = [before * after for before, after in pairwise(jumps)]
    low, own, high = (
        torch.where(product > 0, product / (before + after), 0.0)
        for product, (before, after) in zip(products, pairwise(jumps), strict=True)
    )
    inflow = (b + low).clamp_min(0.0).square() + (c - own).clamp_max(0.0).square() - diffusion * jumps[1]
    outflow = (c + own).clamp_min(0.0).square() + (d - high).clamp_max(0.0).square() - diffusion * jumps[2]
    return (keep * start + (1 - keep) * (c + inflow - outflow),)


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
