"""A limited finite volume scheme for viscous Burgers: second order where smooth, no new extrema at shocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK = 64  # trajectories at a time on a CPU: enough to hide the cost of calls, few enough for its caches


def burgers_march(
    u: Float[Tensor, "B X"], interval: float, dx: float, viscosity: float, steps: Sequence[int]
) -> Float[Tensor, "B X"]:
    """u after `interval`, periodic: row i in steps[i] equal steps of Heun's method, an average of Euler steps.

    An Euler step adds −(F_{j+½} − F_{j−½}) dt/dx to the cell averages. States on both sides of a face come from slopes
    limited by van Leer's harmonic mean; the convective flux is Engquist-Osher's, F(u⁻, u⁺) = ½ max(u⁻, 0)² +
    ½ min(u⁺, 0)², which is monotone and admits no expansion shock; the viscous one is the central difference of the
    averages. One flux a face, so the mean is kept to rounding.

    Rows march together whatever their steps are; no operation mixes them, and those that need most go on alone.
    """
    order = sorted(range(len(u)), key=lambda row: -steps[row])
    rows = torch.tensor(order, device=u.device)
    counts = [steps[row] for row in order]
    dt = interval / torch.tensor(counts, dtype=u.dtype, device=u.device)[:, None]
    unit = 2 * dx / dt  # of speed: in it the flux is max² + min² and nothing needs a factor; memory is the cost here
    scaled, diffusion = u[rows] / unit, dt * (viscosity / dx**2)
    block = _BLOCK if u.device.type == "cpu" else max(len(u), 1)
    for start in range(0, len(u), block):
        part = slice(start, start + block)
        scaled[part] = _March(scaled[part], diffusion[part]).run(counts[part])
    arrived = torch.empty_like(u)
    arrived[rows] = scaled * unit
    return arrived


class _March:
    """Cells with two ghosts at each end, and the arrays that a step writes to, made once."""

    def __init__(self, cells: Float[Tensor, "B X"], diffusion: Float[Tensor, "B 1"]) -> None:
        rows, n = cells.shape
        self.wide = cells.new_empty(rows, n + 4)
        self.cells = self.wide[:, 2:-2]
        self.cells.copy_(cells)
        self.diffusion = diffusion
        self.jump = cells.new_empty(rows, n + 3)
        self.slope, self.total = (cells.new_empty(rows, n + 2) for _ in range(2))
        self.left, self.right = (cells.new_empty(rows, n + 1) for _ in range(2))
        self.start = torch.empty_like(cells)

    def run(self, counts: Sequence[int]) -> Float[Tensor, "B X"]:
        """All rows through; `counts`, the steps of each, must not increase."""
        whole, done = self.cells, 0
        for count in sorted(set(counts)):
            self._keep(sum(c >= count for c in counts))
            for _ in range(count - done):
                self.step()
            done = count
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
