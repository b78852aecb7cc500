"""The wave equation in two dimensions, in a medium of varying speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations import chebyshev
from ups.equations.base import check_transient, frame_times, solved_batch
from ups.equations.draws import uniforms
from ups.equations.marching import block_means, in_rows, march
from ups.equations.periodic import waves
from ups.errors import UserError
from ups.fields import Batch, Boundary, Channel, Grid, TaskSpec

_SOURCES = 6
_LAYERS = 6
_UNIT = 5000.0
_FASTEST = {"gauss": 2.5, "layer": 1.0}


@dataclass(frozen=True)
class Wave:
    """∂²u/∂t² = c² ∇²u on the periodic unit square, at rest at t = 0, in a medium of speed c(x, y).

    Bumps split into rings that bend in the medium, focus and, in layers, reflect. Two media:

    - `gauss`: c = c₀ + Σ vᵢ exp(−|x − xᵢ|²/2σᵢ²), four bumps around the quarter points; c between 0.3 and about 1.2;
    - `layer`: three to six layers of constant speed 0.4 to 1 with wavy frontiers.

    After descriptions of the published sets (Wave-Gauss, Wave-Layer) are the start, two to six Gaussian bumps of height
    1 and width 0.039 to 0.156 with centres in (1/6, 5/6)², the numbers of the smooth medium (c₀ 1500 to 2500, v 1000 to
    2500, σ 1/12 to 1/6, centres off by up to 0.3125; here divided by 5000, so that a wave crosses about the square in
    the published time), and 15 frames 0.05 apart. Not as published: the square is periodic, where the published one
    absorbs at its sides, and start and medium are sums of all their periodic images; the layers' frontiers are ours.

    Solved without error in time: −c²∇² has the positive spectrum of a symmetric operator (in the inner product with
    weight 1/c²), and u(t) = cos(t√(−c²∇²)) u₀ is a Chebyshev series of it, with as many terms as leapfrog would need
    steps to be stable. The Laplacian is spectral. So with constant c the solution is exact, and always the energy
    ½∫((∂u/∂t)²/c² + |∇u|²) is kept to rounding. A frontier between layers is known to a
    cell only, which costs 0.1 % at 128 points.

    One frame is not the whole state: a model needs two. The mean of u is not conserved (that of ∂u/∂t /c² is).
    """

    points: int = 128
    medium: str = "gauss"
    frames: int = 15
    duration: float = 0.7

    name: ClassVar[str] = "wave"
    channels: ClassVar[tuple[str, ...]] = ("u",)
    static: ClassVar[tuple[str, ...]] = ("c",)
    steady: ClassVar[bool] = False
    layout: ClassVar[str] = "pdegym"

    def __post_init__(self) -> None:
        check_transient(self.name, self.points, self.frames, self.duration)
        if self.medium not in _FASTEST:
            raise UserError(f"wave: medium is {self.medium!r}; use one of {', '.join(_FASTEST)}")
        if self.points < 32:
            raise UserError(f"wave: points is {self.points}, too few for bumps of width 0.039; give at least 32")

    @property
    def solver(self) -> str:
        return f"spectral Laplacian, exact in time by Chebyshev series, {self.medium} medium, periodic"

    @property
    def published_name(self) -> str:
        return f"Wave-{self.medium.capitalize()}.nc"

    @property
    def grid(self) -> Grid:
        return Grid.cell_centred((self.points, self.points))

    @property
    def boundary(self) -> Boundary:
        return Boundary.all("periodic", 2)

    @property
    def parameters(self) -> dict[str, float]:
        return {}

    @property
    def times(self) -> Float[Tensor, " T"]:
        return frame_times(self.frames, self.duration)

    def task(self) -> TaskSpec:
        return TaskSpec(
            name=self.name,
            dimension=2,
            channels=(Channel("u"),),
            boundary=self.boundary,
            latent_spacing=1 / 64,
            static=("c",),
            history=2,
            dt=self.duration / (self.frames - 1),
            source={"equation": self.name},
        )

    def start(self, seed: int, ids: Sequence[int], device: torch.device | str = "cpu") -> Float[Tensor, "B X Y"]:
        """Two to six bumps at the cell centres."""
        draws = uniforms(seed, ids, 1 + 3 * _SOURCES).to(device)
        number = 2 + (5 * draws[:, 0]).floor()
        centre_x, centre_y, width = draws[:, 1:].unflatten(1, (3, _SOURCES)).unbind(1)
        present: Bool[Tensor, "B 6"] = torch.arange(_SOURCES, device=device) < number[:, None]
        bumps = self._bumps(1 / 6 + centre_x * 2 / 3, 1 / 6 + centre_y * 2 / 3, 0.039 + 0.117 * width)
        return (bumps * present[..., None, None]).sum(1)

    def speed(self, seed: int, ids: Sequence[int], device: torch.device | str = "cpu") -> Float[Tensor, "B X Y"]:
        """The media of the given trajectories at the cell centres."""
        used = 1 + 3 * _SOURCES
        draws = uniforms(seed, ids, used + 1 + 4 * _LAYERS)[:, used:].to(device)
        if self.medium == "layer":
            return self._layers(draws)
        x, y, strength, width = draws[:, 1:17].unflatten(1, (4, 4)).unbind(1)
        anchor = draws.new_tensor([0.25, 0.25, 0.75, 0.75]), draws.new_tensor([0.25, 0.75, 0.25, 0.75])
        centre_x, centre_y = anchor[0] + 0.625 * (x - 0.5), anchor[1] + 0.625 * (y - 0.5)
        bumps = self._bumps(centre_x, centre_y, (1 + width) / 12)
        strength = (1000 + 1500 * strength) / _UNIT
        return ((1500 + 1000 * draws[:, 0]) / _UNIT)[:, None, None] + (strength[..., None, None] * bumps).sum(1)

    def _layers(self, draws: Float[Tensor, "B 25"]) -> Float[Tensor, "B X Y"]:
        """Frontiers y = hᵢ + 0.05 sin(2πx + φᵢ) at sorted heights; above the last the first layer begins again."""
        x = self.grid.positions[0].to(draws.device)
        number = 3 + (4 * draws[:, 0]).floor()
        height, phase, speed, _ = draws[:, 1:].unflatten(1, (4, _LAYERS)).unbind(1)
        present = torch.arange(_LAYERS, device=draws.device) < number[:, None]
        height = torch.where(present, height, 2.0).sort(1).values
        frontier = height[..., None] + 0.05 * torch.sin(2 * math.pi * (x + phase[..., None]))
        below = (x > frontier[..., None]).sum(1) % number[:, None, None]
        return 0.4 + 0.6 * speed.gather(1, below.long().flatten(1)).unflatten(1, below.shape[1:])

    def _bumps(self, centre_x: Tensor, centre_y: Tensor, width: Tensor) -> Float[Tensor, "B M X Y"]:
        """exp(−|x − centre|²/2 width²) with all its periodic images: the images' sum is a product over the axes."""
        x = self.grid.positions[0].to(width.device)
        image = torch.arange(-2, 3, dtype=torch.float64, device=width.device)

        def along(centre: Tensor) -> Tensor:
            distance = x - centre[..., None, None] - image[:, None]
            return torch.exp(-(distance**2) / (2 * width[..., None, None] ** 2)).sum(-2)

        return along(centre_x)[..., :, None] * along(centre_y)[..., None, :]

    def _states(
        self, u: Float[Tensor, "B X Y"], c: Float[Tensor, "B X Y"], times: Float[Tensor, " T"]
    ) -> Iterator[Float[Tensor, "2 B X Y"]]:
        """u and ∂u/∂t at the times, started at rest."""
        n = u.shape[-1]
        square = waves(n, 1.0, u.device).square
        fastest = _FASTEST[self.medium]
        largest = fastest**2 * float(square.max())

        def operator(v: Tensor) -> Tensor:
            return c.square() * torch.fft.irfft2(square * torch.fft.rfft2(v), s=(n, n))

        def advance(state: Tensor, now: float, later: float) -> Tensor:
            cosine, sine = _propagators(round(later - now, 12), largest)
            (u_cos, w_cos), (u_sin, w_sin) = chebyshev.apply((cosine, sine), operator, largest, state)
            return torch.stack((u_cos + w_sin, w_cos - operator(u_sin)))

        yield from march(self.name, torch.stack((u, torch.zeros_like(u))), times, advance)

    def roll(
        self, u: Float[Tensor, "B X Y"], c: Float[Tensor, "B X Y"], times: Float[Tensor, " T"]
    ) -> Float[Tensor, "B T X Y 2"]:
        """u and ∂u/∂t, started at rest from u at t = 0, on u's own grid."""
        if not ((c > 0) & (c <= _FASTEST[self.medium])).all():
            raise UserError(f"wave: give a speed c above 0 and at most {_FASTEST[self.medium]}")
        return torch.stack([torch.stack(tuple(state), -1) for state in self._states(u, c, times)], 1)

    def acceleration(self, u: Float[Tensor, "B X Y"], c: Float[Tensor, "B X Y"]) -> Float[Tensor, "B X Y"]:
        """∂²u/∂t² = c² ∇²u with the five-point Laplacian: what second differences in time are scored by."""
        neighbours = u.roll(1, 1) + u.roll(-1, 1) + u.roll(1, 2) + u.roll(-1, 2)
        return c.square() * u.shape[-1] ** 2 * (neighbours - 4 * u)

    def rate(self, state: Float[Tensor, "B X Y C"], static: Mapping[str, Tensor]) -> Float[Tensor, "B X Y C"]:
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
        return self.roll(u, c, batch.times[0])[..., :1]

    def solve(
        self,
        seed: int,
        ids: Sequence[int],
        times: Float[Tensor, " T"] | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        times = self.times if times is None else times

        def frames(u: Tensor, c: Tensor) -> Tensor:
            return torch.stack([state[0].to(torch.float32) for state in self._states(u, c, times)], 1)

        c = self.speed(seed, ids, device)
        u = in_rows(frames, self.start(seed, ids, device), c)
        return solved_batch(self, ids, times, u[..., None], {"c": c})


@lru_cache(maxsize=64)
def _propagators(interval: float, largest: float) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """Chebyshev series of cos(t√λ) and sin(t√λ)/√λ on [0, largest]."""

    def sine(value: Tensor) -> Tensor:
        return interval * torch.sinc(value.sqrt() * (interval / math.pi))

    def cosine(value: Tensor) -> Tensor:
        return torch.cos(interval * value.sqrt())

    return chebyshev.coefficients(cosine, largest), chebyshev.coefficients(sine, largest)
