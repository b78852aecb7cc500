"""Darcy flow in two dimensions: steady, or the published frame of a transient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes import chebyshev
from ups.equations.schemes.marching import block_means, in_rows
from ups.equations.uniforms import uniforms
from ups.errors import UserError
from ups.fields import Batch, Grid, Kind

_BUMPS = 5
_THRESHOLD = 1.857
_LOW, _HIGH = 0.1, 1.0
_RESIDUAL = 1e-8
_ROWS = 64
_LATTICE = 16
_ATTEMPTS = 6
_TIME = 1.75
_WAVES = 4


@dataclass(frozen=True)
class Darcy(Equation):
    """−∇·(a ∇u) = β on the unit square, u = 0 on its walls.

    Pressure u of a flow through a medium of two permeabilities, a ∈ {0.1, 1}: smooth, highest inside regions of low
    permeability, with kinks along their edges. The medium is the published one: the sum of five bumps
    exp(−|x − xₘ|²/s), xₘ ~ U(0, 1)², s ~ U(0, ½), is 1 where it exceeds a threshold and 0.1 elsewhere. The published
    threshold is the mean over a batch of 200; ours is that mean's limit, 1.857 (49 % of the area is 1), so that a
    sample does not depend on its batch. A medium without permeable region (none on 16 × 16 points: 8 of 1000 draws) is
    drawn again: all such are one and the same sample, which would be in train and test. u is proportional to β, so one
    β is enough.

    Cell-centred finite volumes; a face's permeability is the arithmetic mean of its two cells. The zero lies on the
    walls, which are the outer cells' faces, half a cell from their centres: the stated problem, of second order, and
    the same on every grid.

    `target="transient"` makes data of the published files' kind instead: a frame of ∂u/∂t − ∇·(a ∇u) = β whose random
    start u₀ is not stored, with zero half a cell outside, in the centres of ghost cells (there the domain shrinks as
    the grid is refined, and the difference is of first order). The numbers are ours, not checked against the files:
    the time 1.75, and u₀, a level U(0.1, 10) and sines of U(0.01, 0.2), in one half of the samples a box of them. What
    is left of it at t = 1.75 is 30 % of u at β = 0.01, 10 % at 0.1, 2 % at 1 and 0.2 % at 10: no model can know it, so
    compare on steady targets or large β.
    """

    points: int = 64
    beta: float = 1.0
    target: str = "steady"

    name: ClassVar[str] = "darcy"
    title: ClassVar[str] = "Darcy flow"
    formula: ClassVar[str] = "−∇·(a ∇u) = β, u = 0 on the walls"
    file: ClassVar[str] = "2D_DarcyFlow_beta{beta}_Train.hdf5"
    sides: ClassVar[Kind] = "value"
    wall: ClassVar[tuple[float, ...]] = (0.0,)
    named: ClassVar[tuple[str, ...]] = ("beta",)
    static: ClassVar[tuple[str, ...]] = ("a",)
    steady: ClassVar[bool] = True
    dimension: ClassVar[int] = 2
    told: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.require("points", self.points >= 4, "give at least 4")
        self.require("beta", math.isfinite(self.beta), "give a finite source")
        self.require("target", self.target in ("steady", "transient"), "use steady or transient")

    @property
    def solver(self) -> str:
        if self.target == "transient":
            return f"cell-centred finite volume, zero in ghost cells, exact in time to t = {_TIME}"
        return "cell-centred finite volume, conjugate gradients to relative residual 1e-8"

    @property
    def times(self) -> Float[Tensor, " T"]:
        return torch.full((1,), 0.0 if self.target == "steady" else _TIME, dtype=torch.float64)

    def rate(self, state: Float[Tensor, "B X Y C"], static: Static) -> Float[Tensor, "B X Y C"]:
        """The residual β + ∇·(a ∇u)."""
        return (self.beta - self.operator(static["a"].double(), state[..., 0].double()))[..., None]

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T X Y C"]:
        """The same problems solved on fewer points per axis, the permeability averaged over the larger cells.

        Steady ones, also of a transient target: a batch does not have its start.
        """
        a = block_means(self.name, batch.static["a"].double(), points, (1, 2))
        return self._solved(a, torch.full_like(a, self.beta))[:, None, ..., None]

    def refine(self, values: Float[Tensor, "B X Y C"], static: Static, iterations: int) -> Float[Tensor, "B X Y C"]:
        """So many steps of the solver's conjugate gradients: each about halves the error's energy norm."""
        self.require("target", self.target == "steady", "only steady targets have no residual; do without refining")
        a, u = static["a"].double(), values[..., 0].double()
        return _conjugate_gradients(a, torch.full_like(a, self.beta), self._wall, u, 0.0, iterations)[0][..., None]

    def iterations(
        self, a: Float[Tensor, "B X Y"], start: Float[Tensor, "B X Y"], tolerance: float
    ) -> Int[Tensor, " B"]:
        """Steps of the solver from a start until each sample's residual is at most so much of β's norm."""
        a = a.double()
        return _conjugate_gradients(a, torch.full_like(a, self.beta), self._wall, start.double(), tolerance)[1]

    def energy(self, a: Float[Tensor, "B X Y"], u: Float[Tensor, "B X Y"]) -> Float[Tensor, " B"]:
        """The energy norm √⟨u · −∇·(a ∇u)⟩, of an error or of a solution."""
        return (u.double() * self.operator(a.double(), u.double())).mean((1, 2)).sqrt()

    @property
    def _wall(self) -> float:
        """How much nearer zero is to the outer cells' centres than these are to each other."""
        return 2.0 if self.target == "steady" else 1.0

    def permeability(self, seed: int, ids: Sequence[int], device: Device = "cpu") -> Float[Tensor, "B X Y"]:
        """The media of the given samples at the cell centres; each depends on (seed, index) alone."""
        draws = uniforms(seed, ids, _ATTEMPTS * 3 * _BUMPS).to(device).reshape(len(ids), _ATTEMPTS, 3 * _BUMPS)
        lattice = Grid.cell_centred((_LATTICE,)).positions[0].to(device)
        permeable = (_bumps(draws, lattice) > _THRESHOLD).flatten(2).any(-1)
        first = permeable.to(torch.int64).argmax(1)
        bumps = _bumps(draws[torch.arange(len(ids), device=device), first], self.grid.positions[0].to(device))
        return torch.where(bumps > _THRESHOLD, bumps.new_tensor(_HIGH), bumps.new_tensor(_LOW))

    def operator(self, a: Float[Tensor, "B X Y"], u: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
        """−∇·(a ∇u) on a's own n×n grid, zero on the walls; `operator(a, u) − β` is the discrete residual."""
        return _divergence(_faces(a, -2, self._wall), _faces(a, -1, self._wall), u) * a.shape[-1] ** 2

    def steady_state(
        self, a: Float[Tensor, "B X Y"], source: Float[Tensor, "B X Y"] | None = None
    ) -> Float[Tensor, "B X Y"]:
        """Solve operator(a, u) = source (β if none is given) to a relative residual of 1e-8 in every sample.

        Conjugate gradients in float64, preconditioned by the exact solution for a = 1 (sine transforms as matrices):
        the number of steps depends on the contrast of a (10: about 35), not on the grid. A sample stops at its own
        tolerance.
        """
        a = a.to(torch.float64)
        source = torch.full_like(a, self.beta) if source is None else source.to(torch.float64)
        return in_rows(self._solved, a, source, rows=_ROWS)

    def _solved(self, a: Float[Tensor, "B X Y"], source: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
        # Half of what is allowed: steps update the residual, which differs a little from that of u.
        u, _ = _conjugate_gradients(a, source, self._wall, torch.zeros_like(source), _RESIDUAL / 2)
        residual = (self.operator(a, u) - source).flatten(1).norm(dim=1)
        if not (residual <= _RESIDUAL * source.flatten(1).norm(dim=1)).all():
            raise UserError("darcy: the steady solve did not converge; give a coefficient that is positive and finite")
        return u

    def start(self, seed: int, ids: Sequence[int], device: Device = "cpu") -> Float[Tensor, "B X Y"]:
        """Random starts of the transient: u₀ = level + δ Σ sin(2π k·x + φ), level ~ U(0.1, 10), δ ~ U(0.01, 0.2), over
        the waves k ∈ {1 … 4}², in one half of the samples times a box with the sides of the published windows.
        """
        used = _ATTEMPTS * 3 * _BUMPS
        draws = uniforms(seed, ids, used + 7 + _WAVES**2)[:, used:].to(device)
        x = self.grid.positions[0].to(device)
        k = torch.arange(1, _WAVES + 1, dtype=torch.float64, device=device)
        angle = k[:, None, None, None] * x[:, None] + k[:, None, None] * x
        sines = torch.zeros(len(ids), self.points, self.points, dtype=torch.float64, device=device)
        for wave, phase in zip(angle.flatten(0, 1), draws[:, 7:].unbind(1), strict=True):
            sines += torch.sin(2 * math.pi * (wave + phase[:, None, None]))
        level, delta = 0.1 + 9.9 * draws[:, 0, None, None], 0.01 + 0.19 * draws[:, 1, None, None]
        left, right = 0.1 + 0.35 * draws[:, 2:4, None], 0.55 + 0.35 * draws[:, 4:6, None]
        box = (torch.tanh((x - left) / 0.01) - torch.tanh((x - right) / 0.01)) / 2
        u = level + delta * sines
        return torch.where(draws[:, 6, None, None] < 0.5, u * box[:, 0, :, None] * box[:, 1, None, :], u)

    def transient(
        self, a: Float[Tensor, "B X Y"], start: Float[Tensor, "B X Y"], time: float
    ) -> Float[Tensor, "B X Y"]:
        """u(t) = ū + exp(−tA)(u₀ − ū) with A = `operator` and its steady state ū: no error in time.

        The exponential is a Chebyshev series in A, whose spectrum ends at 8 n² max a: about 2,500 terms at 128 points.
        """
        if not ((a > 0) & (a <= _HIGH)).all():
            raise UserError(f"darcy: give a permeability above 0 and at most {_HIGH}")
        n = a.shape[-1]
        largest = 8 * n**2 * _HIGH
        series = chebyshev.coefficients(lambda value: torch.exp(-time * value), largest)

        def decay(a: Tensor, u: Tensor) -> Tensor:
            ax, ay = _faces(a, -2, self._wall) * n**2, _faces(a, -1, self._wall) * n**2
            return chebyshev.apply(series, lambda v: _divergence(ax, ay, v), largest, u)

        steady = self.steady_state(a)
        return steady + in_rows(decay, a.to(torch.float64), start.to(torch.float64) - steady)

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        """A steady solution has one frame; `times` only labels it."""
        if len(times) != 1:
            raise UserError(f"darcy is steady and has one frame, not {len(times)}; leave out the times")
        a = self.permeability(seed, ids, device)
        if self.target == "steady":
            u = self.steady_state(a)
        else:
            u = self.transient(a, self.start(seed, ids, device), float(times[0]))
        return u[:, None, :, :, None], {"a": a}


def _bumps(draws: Float[Tensor, "*B 15"], x: Float[Tensor, " n"]) -> Float[Tensor, "*B n n"]:
    """Σ exp(−|x − xₘ|²/s) on the grid x × x; five xₘ, five yₘ and five s/½ make a draw."""
    centre_x, centre_y, size = draws[..., None].split(_BUMPS, -2)
    size = 0.5 * size.clamp_min(1e-12)
    along_x, along_y = torch.exp(-((x - centre_x) ** 2) / size), torch.exp(-((x - centre_y) ** 2) / size)
    return (along_x[..., :, None] * along_y[..., None, :]).sum(-3)


def _faces(a: Float[Tensor, "B X Y"], axis: int, wall: float) -> Float[Tensor, "B Xf Yf"]:
    """Face coefficients along an axis: the mean of two cells, and `wall` times the cell's at a wall: twice where that
    is half as far.
    """
    n = a.shape[axis]
    lower, upper = a.narrow(axis, 0, n - 1), a.narrow(axis, 1, n - 1)
    return torch.cat((wall * a.narrow(axis, 0, 1), (lower + upper) / 2, wall * a.narrow(axis, n - 1, 1)), axis)


def _divergence(ax: Tensor, ay: Tensor, u: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
    """Outward flux of every cell, in units of 1/dx²; the walls are cells of value 0 at the faces' own distance."""
    flux_x = ax * torch.nn.functional.pad(u, (0, 0, 1, 1)).diff(dim=-2)
    flux_y = ay * torch.nn.functional.pad(u, (1, 1)).diff(dim=-1)
    return -(flux_x.diff(dim=-2) + flux_y.diff(dim=-1))


def _conjugate_gradients(
    a: Float[Tensor, "B X Y"],
    source: Float[Tensor, "B X Y"],
    wall: float,
    start: Float[Tensor, "B X Y"],
    tolerance: float,
    most: int | None = None,
) -> tuple[Float[Tensor, "B X Y"], Int[Tensor, " B"]]:
    """u from a start, and how many steps each sample took until its residual was so much of the source, or `most`."""
    n = a.shape[-1]
    ax, ay = _faces(a, -2, wall), _faces(a, -1, wall)
    sine, eigenvalues = _sine_basis(n, a.device)

    def precondition(r: Tensor) -> Tensor:
        return sine @ ((sine.T @ r @ sine) / eigenvalues) @ sine.T

    def dot(p: Tensor, q: Tensor) -> Tensor:
        return (p * q).sum((-2, -1), keepdim=True)

    right = source / n**2
    allowed = tolerance * dot(right, right).sqrt()
    u, r = start, right - _divergence(ax, ay, start)
    steps = torch.zeros(len(a), dtype=torch.int64, device=a.device)
    z = precondition(r)
    p, rz = z, dot(r, z)
    for _ in range(20 * n if most is None else most):
        active: Bool[Tensor, "B 1 1"] = dot(r, r).sqrt() > allowed
        if not active.any():
            break
        steps += active[:, 0, 0]
        q = _divergence(ax, ay, p)
        step = torch.where(active, rz / dot(p, q), 0.0)
        u = u + step * p
        r = r - step * q
        z = precondition(r)
        rz, previous = dot(r, z), rz
        p = z + torch.where(active, rz / previous, 0.0) * p
    return u, steps


def _sine_basis(n: int, device: torch.device) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
    """Eigenvectors sin(π k (i + ½)/n) of the cell-centred Laplacian with zero walls, as columns, and eigenvalues."""
    k = torch.arange(1, n + 1, dtype=torch.float64, device=device)
    i = torch.arange(n, dtype=torch.float64, device=device) + 0.5
    sine = torch.sin(math.pi / n * i[:, None] * k) * math.sqrt(2 / n)
    sine[:, -1] /= math.sqrt(2)
    values = 4 * torch.sin(math.pi * k / (2 * n)).square()
    return sine, values[:, None] + values
