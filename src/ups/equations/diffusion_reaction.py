"""The FitzHugh-Nagumo diffusion-reaction system in two dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes.exponential import ETDRK4
from ups.equations.schemes.marching import block_means, in_rows, march
from ups.equations.uniforms import uniforms
from ups.errors import UserError
from ups.fields import Batch, Kind

_LENGTH = 2.0
_STEP = 0.025
_FIRST_STEP = 0.00625
_SETTLED = 0.05


@dataclass(frozen=True)
class DiffusionReaction(Equation):
    """∂u/∂t = D_u ∇²u + u − u³ − k − v,  ∂v/∂t = D_v ∇²v + u − v on (−1, 1)², no flux through the walls.

    An activator u and its inhibitor v, started from independent white noise of variance 1 in every cell. The noise
    has faded to u ≈ ±0.6 by t ≈ 0.5; labyrinths and spots, some 0.3 wide, grow out of what is left and are still
    growing at t = 5. Nothing is conserved. Published: D_u = 0.001, D_v = 0.005, k = 0.005, 128² cells, 101 frames to
    t = 5.

    The Laplacian is the five-point one of finite volumes, as in the published files, though the exact one would be as
    easy: both are diagonal in cosines. White noise lives on the grid's own scale, where the two differ by a factor of
    up to 2.5, and has no limit on finer grids: the grid is part of this problem, and its stored first frames depend on
    the choice. In time ETDRK4: diffusion is exact, the reaction of fourth order. Cosine transforms are products with
    128 × 128 matrices, so a step is few large operations.

    Out of reach: layers of width √D_u thinner than a cell (D_u n² < 1), which the grid would pin in place.
    """

    points: int = 128
    Du: float = 1e-3
    Dv: float = 5e-3
    k: float = 5e-3
    frames: int = 101
    duration: float = 5.0

    name: ClassVar[str] = "diffusion_reaction"
    title: ClassVar[str] = "Diffusion-reaction (FitzHugh-Nagumo)"
    formula: ClassVar[str] = "∂u/∂t = D_u ∇²u + u − u³ − k − v, ∂v/∂t = D_v ∇²v + u − v, no flux through the walls"
    method: ClassVar[str] = "five-point finite volume, cosine transforms, ETDRK4"
    file: ClassVar[str] = "2D_diff-react_NA_NA.h5"
    sides: ClassVar[Kind] = "flux"
    channels: ClassVar[tuple[str, ...]] = ("u", "v")
    layout: ClassVar[str] = "pdebench-grouped"
    dimension: ClassVar[int] = 2
    interval: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    named: ClassVar[tuple[str, ...]] = ("Du", "Dv", "k")
    told: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for setting in ("Du", "Dv"):
            self.require(setting, 0 < getattr(self, setting) < math.inf, "give a positive number")
        self.require("k", 0 <= self.k < 1, "give a number from 0 to below 1")
        if self.Du * self.points**2 < 1:
            raise UserError(
                f"diffusion_reaction: Du = {self.Du} makes layers thinner than a cell of {self.points} points; "
                f"give at least {math.ceil(self.Du**-0.5)} points"
            )

    def noise(self, seed: int, ids: Sequence[int], device: Device = "cpu") -> Float[Tensor, "B X Y 2"]:
        """The white noise that the given trajectories start from: Gaussian pairs by Box and Muller's formula."""
        draws = uniforms(seed, ids, 2 * self.points**2).to(device).unflatten(1, (2, self.points, self.points))
        return torch.view_as_real(torch.polar((-2 * torch.log1p(-draws[:, 0])).sqrt(), 2 * math.pi * draws[:, 1]))

    def step(self, state: Float[Tensor, "B X Y 2"], dt: float, steps: int = 1) -> Float[Tensor, "B X Y 2"]:
        """Steps of ETDRK4 on the state's own grid; dt is taken as given.

        Spectra are kept transposed, which saves moving them: Z = (x Cᵀ)ᵀ Cᵀ and x = (Z C)ᵀ C with the cosines C, and
        the Laplacian's eigenvalues do not change when the axes are exchanged.
        """
        cosine, integrator = _integrator(state.shape[1], self.Du, self.Dv, dt, state.device)

        def forward(x: Tensor) -> Tensor:
            return (x @ cosine.T).mT @ cosine.T

        def reaction(z: Tensor) -> Tensor:
            u, v = ((z @ cosine).mT @ cosine).unbind(1)
            difference = u - v
            return forward(torch.stack((difference - self.k - u * u * u, difference), 1))

        spectrum = forward(state.movedim(-1, 1))
        for _ in range(steps):
            spectrum = integrator.step(spectrum, reaction)
        return ((spectrum @ cosine).mT @ cosine).movedim(1, -1)

    def advance(self, state: Float[Tensor, "B X Y 2"], now: float, later: float) -> Float[Tensor, "B X Y 2"]:
        """Short steps while the noise is tall (−u³ relaxes it at rates up to 3 · 5²), longer ones once it is gone."""
        for begin, end, longest in ((now, min(later, _SETTLED), _FIRST_STEP), (max(now, _SETTLED), later, _STEP)):
            if end > begin:
                steps = math.ceil(round((end - begin) / longest, 9))
                state = self.step(state, round((end - begin) / steps, 12), steps)
        return state

    def rate(self, state: Float[Tensor, "B X Y C"], static: Static) -> Float[Tensor, "B X Y C"]:
        """Five-point diffusive fluxes, none through the walls, and the reaction."""
        u, v = state.unbind(-1)
        cells = (state.shape[1] / _LENGTH) ** 2
        return torch.stack(
            (
                self.Du * cells * _laplacian(u) + u - u**3 - self.k - v,
                self.Dv * cells * _laplacian(v) + u - v,
            ),
            -1,
        )

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T X Y C"]:
        """The same trajectories from their first frame averaged to fewer points."""
        start, times = block_means(self.name, batch.values[:, 0].double(), points, (1, 2)), batch.times[0]
        return torch.stack(list(march(self.name, start, times, self.advance, began=float(times[0]))), 1)

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        def frames(start: Tensor) -> Tensor:
            return torch.stack([state.to(torch.float32) for state in march(self.name, start, times, self.advance)], 1)

        return in_rows(frames, self.noise(seed, ids, device)), {}


@lru_cache(maxsize=16)
def _integrator(
    n: int, activator: float, inhibitor: float, dt: float, device: torch.device
) -> tuple[Float[Tensor, "n n"], ETDRK4]:
    """Cosines cos(π k (i + ½)/n) as orthonormal rows: eigenvectors of the five-point Laplacian between closed walls."""
    k = torch.arange(n, dtype=torch.float64, device=device)
    cosine = torch.cos(math.pi / n * k[:, None] * (k + 0.5)) * math.sqrt(2 / n)
    cosine[0] /= math.sqrt(2)
    values = -((2 * n / _LENGTH) ** 2) * torch.sin(math.pi * k / (2 * n)).square()
    laplacian = values[:, None] + values
    return cosine, ETDRK4.build(torch.stack((activator * laplacian, inhibitor * laplacian)), dt)


def _laplacian(u: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
    """Differences of the fluxes through the faces, in units of dx²."""
    flux_x = torch.nn.functional.pad(u.diff(dim=1), (0, 0, 1, 1))
    flux_y = torch.nn.functional.pad(u.diff(dim=2), (1, 1))
    return flux_x.diff(dim=1) + flux_y.diff(dim=2)
