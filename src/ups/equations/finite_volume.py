"""A limited finite volume scheme for viscous Burgers: second order where smooth, no new extrema at shocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK = 16  # trajectories at a time on a CPU: at 1024 points their seven arrays stay in the second-level cache
_GPU_BLOCK = 1024  # and on a GPU: enough to fill it, and at 1024 points not far above its cache


def burgers_steps(
    u: Float[Tensor, "B X"], dt: float, dx: float, viscosity: float, steps: int = 1
) -> Float[Tensor, "B X"]:
    """`steps` steps of Heun's method, an average of Euler steps (what bounds an Euler step bounds it), periodic.

    An Euler step adds −(F_{j+½} − F_{j−½}) dt/dx to the cell averages. States on both sides of a face come from slopes
    limited by van Leer's harmonic mean; the convective flux is Engquist-Osher's, F(u⁻, u⁺) = ½ max(u⁻, 0)² +
    ½ min(u⁺, 0)², which is monotone and admits no expansion shock; the viscous one is the central difference of the
    averages. One flux a face, so the mean is kept to rounding.
    """
    # In units of 2 dx/dt the flux is max² + min² and nothing else needs a factor: memory traffic is the cost here.
    unit, diffusion = 2 * dx / dt, viscosity * dt / dx**2
    cpu = u.device.type == "cpu"
    stepped = []
    for block in u.split(_BLOCK if cpu else _GPU_BLOCK):
        if cpu:
            march = _March(*block.shape, block)
            step = march.step
        else:
            march, step = _recorded(_GPU_BLOCK, block.shape[1], block.dtype, block.device)
        march.start_from(block / unit, diffusion)
        for _ in range(steps):
            step()
        stepped.append(march.cells[: len(block)] * unit)
    return torch.cat(stepped)


@lru_cache(maxsize=4)
def _recorded(rows: int, points: int, dtype: torch.dtype, device: torch.device) -> tuple[_March, Callable[[], None]]:
    """A step of so many trajectories on a GPU as a CUDA graph: its kernels are shorter than the time to launch them."""
    march = _March(rows, points, torch.empty(0, dtype=dtype, device=device))
    march.start_from(march.cells.new_zeros(0, points), 0.0)
    outside, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(outside)
    with torch.cuda.stream(side):
        march.step()  # loads the kernels, which a recording must not
    outside.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        march.step()
    return march, graph.replay


class _March:
    """Cells with two ghosts at each end, and the arrays that a step writes to, made once; of the kind of `like`."""

    def __init__(self, rows: int, n: int, like: Tensor) -> None:
        self.wide = like.new_empty(rows, n + 4)
        self.cells = self.wide[:, 2:-2]
        self.diffusion = like.new_empty(())
        self.jump = like.new_empty(rows, n + 3)
        self.slope, self.total = (like.new_empty(rows, n + 2) for _ in range(2))
        self.left, self.right = (like.new_empty(rows, n + 1) for _ in range(2))
        self.start = like.new_empty(rows, n)

    def start_from(self, cells: Float[Tensor, "b X"], diffusion: float) -> None:
        """Take these as the first rows; further ones are at rest."""
        self.cells[: len(cells)] = cells
        self.cells[len(cells) :] = 0.0
        self.diffusion.fill_(diffusion)

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
