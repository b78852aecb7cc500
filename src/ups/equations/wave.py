"""The wave equation in two dimensions, in a medium of varying speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes.marching import block_means, in_rows, march
from ups.equations.uniforms import uniforms
from ups.errors import UserError
from ups.fields import Batch, Kind

_SOURCES = 6
_LAYERS = 6
_UNIT = 5000.0
_MEDIA = ("gauss", "layer")
_COURANT = 0.6  # of c dt/dx; the finest waves along the diagonal become unstable at 0.7
_LINE, _PARABOLA = (2.0, -1.0), (3.0, -3.0, 1.0)  # what continues them: u₋₁ from u₀, u₁, …
_FEWEST_POINTS = 256  # along an axis: ten to the width of the narrowest bump


@dataclass(frozen=True)
class Wave(Equation):
    """∂²u/∂t² = c² ∇²u on the unit square, ∂u/∂t + c ∂u/∂n = 0 on its sides, at rest at t = 0, in a medium c(x, y).

    Bumps split into rings that bend in the medium, focus, in layers reflect, and leave through the sides. Two media:

    - `gauss`: c = c₀ + Σ vᵢ exp(−|x − xᵢ|²/2σᵢ²), four bumps around the quarter points; c between 0.3 and about 1.2;
    - `layer`: three to six layers of constant speed 0.4 to 1 with wavy frontiers.

    After descriptions of the published sets (Wave-Gauss, Wave-Layer) are the start, two to six Gaussian bumps of height
    1 and width 0.039 to 0.156 with centres in (1/6, 5/6)², the numbers of the smooth medium (c₀ 1500 to 2500, v 1000 to
    2500, σ 1/12 to 1/6, centres off by up to 0.3125; here divided by 5000, so that a wave crosses about the square in
    the published time), absorbing sides, and 15 frames 0.05 apart. The layers' frontiers are ours, and so is how the
    sides absorb: Engquist and Majda's first condition, which lets out all of a wave that meets a side straight on, and
    sends back (1 − cos θ)/(1 + cos θ) of one that comes at an angle θ: 3 % at 20°, a sixth at 45°.

    Solved by leapfrog, corrected to fourth order in space and time, the sides by Mur's box scheme of second order, on
    256 cells an axis or more; averages over the `points` cells are stored, 0.03 % off in smooth media, and 0.2 % in
    layers, whose frontiers are known to a cell only. The energy ½∫((∂u/∂t)²/c² + |∇u|²) falls by what leaves.

    One frame is not the whole state: a model needs two. Nothing is conserved.
    """

    points: int = 128
    medium: str = "gauss"
    frames: int = 15
    duration: float = 0.7

    name: ClassVar[str] = "wave"
    closed: ClassVar[bool] = False
    title: ClassVar[str] = "Waves in a medium"
    formula: ClassVar[str] = "∂²u/∂t² = c² ∇²u, ∂u/∂t + c ∂u/∂n = 0 on the sides"
    method: ClassVar[str] = "leapfrog of fourth order, Mur's absorbing sides, {medium} medium, {n} points an axis"
    sides: ClassVar[Kind] = "open"
    static: ClassVar[tuple[str, ...]] = ("c",)
    layout: ClassVar[str] = "pdegym"
    history: ClassVar[int] = 2
    dimension: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("medium", self.medium in _MEDIA, f"use one of {', '.join(_MEDIA)}")
        self.require("points", self.points >= 32, "give at least 32, fewer do not resolve bumps of width 0.039")

    @property
    def refinement(self) -> int:
        return -(-_FEWEST_POINTS // self.points)

    @property
    def published_name(self) -> str:
        return f"Wave-{self.medium.capitalize()}.nc"

    def start(self, seed: int, ids: Sequence[int], n: int, device: Device = "cpu") -> Float[Tensor, "B n n"]:
        """Two to six bumps at the centres of n × n cells."""
        draws = uniforms(seed, ids, 1 + 3 * _SOURCES).to(device)
        number = 2 + (5 * draws[:, 0]).floor()
        centre_x, centre_y, width = draws[:, 1:].unflatten(1, (3, _SOURCES)).unbind(1)
        present: Bool[Tensor, "B 6"] = torch.arange(_SOURCES, device=device) < number[:, None]
        bumps = _bumps(1 / 6 + centre_x * 2 / 3, 1 / 6 + centre_y * 2 / 3, 0.039 + 0.117 * width, n)
        return (bumps * present[..., None, None]).sum(1)

    def speed(self, seed: int, ids: Sequence[int], n: int, device: Device = "cpu") -> Float[Tensor, "B n n"]:
        used = 1 + 3 * _SOURCES
        draws = uniforms(seed, ids, used + 1 + 4 * _LAYERS)[:, used:].to(device)
        if self.medium == "layer":
            return _layers(draws, n)
        x, y, strength, width = draws[:, 1:17].unflatten(1, (4, 4)).unbind(1)
        anchor = draws.new_tensor([0.25, 0.25, 0.75, 0.75]), draws.new_tensor([0.25, 0.75, 0.25, 0.75])
        centre_x, centre_y = anchor[0] + 0.625 * (x - 0.5), anchor[1] + 0.625 * (y - 0.5)
        bumps = _bumps(centre_x, centre_y, (1 + width) / 12, n)
        strength = (1000 + 1500 * strength) / _UNIT
        return ((1500 + 1000 * draws[:, 0]) / _UNIT)[:, None, None] + (strength[..., None, None] * bumps).sum(1)

    def roll_in(
        self, u: Float[Tensor, "B X Y"], c: Float[Tensor, "B X Y"], times: Float[Tensor, " T"]
    ) -> Float[Tensor, "B T X Y 2"]:
        """u and ∂u/∂t, started at rest from u at t = 0, on u's own grid."""
        if not ((c > 0) & c.isfinite()).all():
            raise UserError("wave: give a finite speed c above 0")

        def frames(u: Tensor, c: Tensor, fastest: float) -> Tensor:
            return torch.stack([torch.stack(state, -1) for state in self._states(u, c, times, fastest)], 1)

        return _by_speed(frames, u, c)

    def _states(
        self, u: Float[Tensor, "B X Y"], c: Float[Tensor, "B X Y"], times: Float[Tensor, " T"], fastest: float
    ) -> Iterator[tuple[Float[Tensor, "B X Y"], Float[Tensor, "B X Y"]]]:
        """u and ∂u/∂t at the times, started at rest, in steps that are stable up to the speed `fastest`."""
        n = u.shape[-1]

        def advance(state: Tensor, now: float, later: float) -> Tensor:
            steps = math.ceil((later - now) * n * fastest / _COURANT)
            return _leapfrog(state, c, (later - now) / steps, steps)

        whole = _with_ghosts(u, _LINE)
        for state in march(self.name, torch.stack((whole, torch.zeros_like(whole))), times, advance):
            yield state[0, :, 1:-1, 1:-1], state[1, :, 1:-1, 1:-1]

    def acceleration(self, u: Float[Tensor, "B X Y"], c: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
        """∂²u/∂t² = c² ∇²u with the five-point Laplacian: what second differences in time are scored by.

        What leaves through the sides does not follow from u alone. There u is continued as a parabola: do not score
        the outermost two cells.
        """
        whole = _with_ghosts(u, _PARABOLA)
        around = whole[:, 2:, 1:-1] + whole[:, :-2, 1:-1] + whole[:, 1:-1, 2:] + whole[:, 1:-1, :-2]
        return (c * u.shape[-1]).square() * (around - 4 * u)

    def rate(self, state: Float[Tensor, "B X Y C"], static: Static) -> Float[Tensor, "B X Y C"]:
        """One frame of u does not say how fast it moves."""
        raise UserError(
            "wave: ∂u/∂t does not follow from one frame of u, so frames have no balance; "
            "compare their second differences in time with `Wave.acceleration`"
        )

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T X Y C"]:
        """The same trajectories from their first frame, at rest, start and medium averaged to fewer points."""
        if float(batch.times[0, 0]) != 0:
            raise UserError("wave: a trajectory is at rest at t = 0 only; give batches that begin there")
        u, c = (
            block_means(self.name, field.double(), points, (1, 2))
            for field in (batch.values[:, 0, ..., 0], batch.static["c"])
        )
        return self.roll_in(u, c, batch.times[0])[..., :1]

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        n = self.points * self.refinement

        def frames(u: Tensor, c: Tensor, fastest: float) -> Tensor:
            states = self._states(u, c, times, fastest)
            return torch.stack([block_means(self.name, u, self.points, (1, 2)).to(torch.float32) for u, _ in states], 1)

        def in_batches(u: Tensor, c: Tensor, fastest: float) -> Tensor:
            return in_rows(partial(frames, fastest=fastest), u, c)

        u = _by_speed(in_batches, self.start(seed, ids, n, device), self.speed(seed, ids, n, device))
        return u[..., None], {"c": self.speed(seed, ids, self.points, device)}


def _by_speed(solve: Callable[[Tensor, Tensor, float], Tensor], u: Tensor, c: Tensor) -> Float[Tensor, "B *out"]:
    """solve(u, c, fastest) with waves of like speed together, so that steps follow from each medium's own fastest."""
    level = (2 * c.amax((1, 2)).log2()).ceil()
    rows = [(level == value).nonzero()[:, 0] for value in level.unique()]
    parts = [solve(u[row], c[row], 2 ** float(level[row[0]] / 2)) for row in rows]
    return torch.cat(parts)[torch.cat(rows).argsort()]


def _leapfrog(state: Float[Tensor, "2 B m m"], c: Float[Tensor, "B n n"], dt: float, steps: int) -> Tensor:
    """Steps of u and ∂u/∂t, both with a frame of ghost cells around the square.

    A side lies between ghosts and the cells inside. There (u_ghost + u_cell)/2 changes by −c (u_ghost − u_cell)/dx,
    both taken in the middle of the step.
    """
    n = c.shape[-1]
    u, w = state.clone().unbind(0)
    cells, moving = u[:, 1:-1, 1:-1], w[:, 1:-1, 1:-1]
    strength = dt * (n * c).square()
    sides = []
    for axis in (1, 2):
        for ghost, cell in ((0, 1), (-1, -2)):
            courant = dt * n * c.select(axis, ghost)
            sides.append((u.select(axis, ghost)[:, 1:-1], u.select(axis, cell)[:, 1:-1], (courant - 1) / (courant + 1)))
    courant = (dt * n * c).square()

    def curvature() -> Tensor:
        """dt²/6 of ∂³u/∂t³, by which the mean of the changes before and after a time is more than ∂u/∂t then."""
        return dt * strength / 6 * (_closed_differences(moving, 1) + _closed_differences(moving, 2))

    moving += strength / 2 * _corrected(u, courant) + curvature()
    for step in range(steps):
        before = [cell.clone() for _, cell, _ in sides]
        cells += dt * moving
        for (ghost, cell, ratio), old in zip(sides, before, strict=True):
            ghost.copy_(old + ratio * (cell - ghost))
        moving += (strength if step < steps - 1 else strength / 2) * _corrected(u, courant)
    moving -= curvature()
    return torch.stack((u, w))


def _corrected(u: Float[Tensor, "B m m"], courant: Float[Tensor, "B n n"]) -> Float[Tensor, "B n n"]:
    """dx² ∇²u with which leapfrog is of fourth order in space and time; `courant` is (c dt/dx)².

    Second differences are too large by dx²/12 of the fourth derivative, and so is leapfrog by dt²/12 of that in time,
    ∂⁴u/∂t⁴ = c²∇²(c²∇²u). Neither correction flows through the sides.
    """
    inside = u[:, 1:-1, 1:-1]
    x = u[:, 2:, 1:-1] + u[:, :-2, 1:-1] - 2 * inside
    y = u[:, 1:-1, 2:] + u[:, 1:-1, :-2] - 2 * inside
    in_time = courant * (x + y)
    return x + y + (_closed_differences(in_time - x, 1) + _closed_differences(in_time - y, 2)) / 12


def _closed_differences(v: Float[Tensor, "B n n"], axis: int) -> Float[Tensor, "B n n"]:
    """Second differences along an axis with nothing beyond its ends."""
    nothing = torch.zeros_like(v.narrow(axis, 0, 1))
    return torch.cat((nothing, v.diff(dim=axis), nothing), axis).diff(dim=axis)


def _with_ghosts(u: Float[Tensor, "B n n"], weights: Sequence[float]) -> Float[Tensor, "B m m"]:
    """u with a frame of cells around it, continued from the nearest ones; the stencil does not see the corners."""
    for axis in (1, 2):
        last = u.shape[axis] - 1
        before, after = (
            torch.stack([weight * u.narrow(axis, abs(end - k), 1) for k, weight in enumerate(weights)]).sum(0)
            for end in (0, last)
        )
        u = torch.cat((before, u, after), axis)
    return u


def _layers(draws: Float[Tensor, "B 25"], n: int) -> Float[Tensor, "B n n"]:
    """Frontiers y = hᵢ + 0.05 sin(2πx + φᵢ) at sorted heights, one fewer than layers."""
    x = (torch.arange(n, dtype=torch.float64, device=draws.device) + 0.5) / n
    number = 3 + (4 * draws[:, 0]).floor()
    height, phase, speed, _ = draws[:, 1:].unflatten(1, (4, _LAYERS)).unbind(1)
    present = torch.arange(_LAYERS, device=draws.device) < number[:, None] - 1
    height = torch.where(present, height, 2.0).sort(1).values
    frontier = height[..., None] + 0.05 * torch.sin(2 * math.pi * (x + phase[..., None]))
    below = (x > frontier[..., None]).sum(1)
    return 0.4 + 0.6 * speed.gather(1, below.flatten(1)).unflatten(1, below.shape[1:])


def _bumps(centre_x: Tensor, centre_y: Tensor, width: Tensor, n: int) -> Float[Tensor, "B M n n"]:
    """exp(−|x − centre|²/2 width²) at the centres of n × n cells."""
    x = (torch.arange(n, dtype=torch.float64, device=width.device) + 0.5) / n
    along_x, along_y = (
        torch.exp(-((x - centre[..., None]) ** 2) / (2 * width[..., None] ** 2)) for centre in (centre_x, centre_y)
    )
    return along_x[..., :, None] * along_y[..., None, :]
