"""Forced incompressible flow that carries particles, in two dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ups.equations import vorticity
from ups.equations.base import check_transient, frame_times, solved_batch
from ups.equations.marching import block_means, in_rows, march
from ups.equations.periodic import cell_averages, random_fields, waves
from ups.fields import Batch, Boundary, Channel, Grid, Invariant, TaskSpec

_LARGEST_WAVE = 16
_NUMBERS = 2 * (2 * _LARGEST_WAVE + 1) * (_LARGEST_WAVE + 1)  # that a random field takes
_COURANT = 0.4
_LONGEST = 0.1  # between looks at the speeds: the force, three standard deviations of it, changes them by 0.12 in that


@dataclass(frozen=True)
class Incompressible:
    """∂V/∂t + V·∇V = −∇p + ν ∇²V + f,  ∇·V = 0,  ∂m/∂t + ∇·(mV) = 0 on the periodic unit square.

    A static random force f(x, y) stirs a flow V, and V stretches a density m of passive particles into ever thinner
    filaments. V and f are Gaussian random fields with spectral densities |k|⁻³ and |k|⁻¹ of waves up to 16, of standard
    deviation 0.15 and 0.4 in each component: like PDEBench's set as remembered, not checked against it, so do not take
    these data for statistically equal to it. Published are 1000 frames on 512², and a square whose walls hold V = 0;
    this one is periodic, where a spectral method is exact and f only needs a mean of zero. m starts as ½ + ½ tanh(2g)
    with a random field g like V's, of variance 1.

    The means of Vx and Vy are zero and stay so, that of m is conserved. The flow is solved as vorticity, by the
    pseudo-spectral method of `vorticity.py`; m by limited finite volumes with Heun's method, whose face velocities are
    differences of the stream function, so that no cell gains particles and no new extremum appears. Filaments thinner
    than a cell are smeared over about three: there m depends on the grid, V does not.
    """

    points: int = 128
    nu: float = 0.01
    frames: int = 51
    duration: float = 5.0

    name: ClassVar[str] = "incompressible"
    channels: ClassVar[tuple[str, ...]] = ("Vx", "Vy", "particles")
    static: ClassVar[tuple[str, ...]] = ("force_x", "force_y")
    steady: ClassVar[bool] = False
    layout: ClassVar[str] = "pdebench-incompressible"

    def __post_init__(self) -> None:
        check_transient(self.name, self.points, self.frames, self.duration)
        vorticity.check_viscosity(self.name, self.nu, self.points)

    @property
    def refinement(self) -> int:
        """How many internal points a stored one has along each axis."""
        return vorticity.refinement(self.points, self.nu)

    @property
    def solver(self) -> str:
        n = self.points * self.refinement
        return (
            f"pseudo-spectral ETDRK4 in vorticity, limited finite volumes for particles, {n} points an axis, periodic, "
            f"steps chosen every {_LONGEST}"
        )

    @property
    def published_name(self) -> str:
        return f"ns_incom_inhom_2d_{self.points}-0.h5"

    @property
    def grid(self) -> Grid:
        return Grid.cell_centred((self.points, self.points))

    @property
    def boundary(self) -> Boundary:
        return Boundary.all("periodic", 2)

    @property
    def parameters(self) -> dict[str, float]:
        return {"nu": float(self.nu)}

    @property
    def times(self) -> Float[Tensor, " T"]:
        return frame_times(self.frames, self.duration)

    def task(self) -> TaskSpec:
        return TaskSpec(
            name=self.name,
            dimension=2,
            channels=(Channel("Vx", vector="V"), Channel("Vy", vector="V"), Channel("particles")),
            boundary=self.boundary,
            latent_spacing=1 / 32,
            parameters=("nu",),
            static=self.static,
            dt=self.duration / (self.frames - 1),
            invariants=tuple(Invariant(channel, tolerance=1e-5) for channel in self.channels),
            source={"equation": self.name},
        )

    def force(self, seed: int, ids: Sequence[int], n: int, device: torch.device | str = "cpu") -> Tensor:
        """f of the given trajectories at the centres of n × n cells: (B, 2, n, n)."""
        return random_fields(seed, ids, 2, _LARGEST_WAVE, _power_law(-1, 0.4), n, device)

    def start(self, seed: int, ids: Sequence[int], n: int, device: torch.device | str = "cpu") -> Tensor:
        """Vorticity and particles at t = 0 at the centres of n × n cells: (B, 2, n, n)."""

        def spinning(k: Tensor) -> Tensor:
            return 2 * math.pi * k * _power_law(-3, 0.15 * math.sqrt(2))(k)

        w = random_fields(seed, ids, 1, _LARGEST_WAVE, spinning, n, device, skip=2 * _NUMBERS)
        g = random_fields(seed, ids, 1, _LARGEST_WAVE, _power_law(-3, 1.0), n, device, skip=3 * _NUMBERS)
        return torch.cat((w, 0.5 + 0.5 * torch.tanh(2 * g)), 1)

    def _states(
        self, state: Float[Tensor, "B 2 n n"], force: Float[Tensor, "B 2 n n"], times: Float[Tensor, " T"]
    ) -> Iterator[Float[Tensor, "B 2 n n"]]:
        """Vorticity and particles at the times."""
        curl = _curl(force)

        def march_on(state: Tensor, dt: float, steps: int) -> Tensor:
            w, m = state.unbind(1)
            n = w.shape[-1]
            after = vorticity.face_velocities(torch.fft.rfft2(w), n)
            for _ in range(steps):
                w = vorticity.step(w, curl, self.nu, dt, 1)
                before, after = after, vorticity.face_velocities(torch.fft.rfft2(w), n)
                euler = m + dt * _transport(m, *before)
                m = 0.5 * (m + euler + dt * _transport(euler, *after))
            return torch.stack((w, m), 1)

        def go_on(state: Tensor, now: float, later: float) -> Tensor:
            return vorticity.advance(
                state, now, later, lambda s: vorticity.speeds(s[:, 0]), march_on, _COURANT, _LONGEST
            )

        yield from march(self.name, state, times, go_on)

    def roll(
        self, start: Float[Tensor, "B 2 n n"], force: Float[Tensor, "B 2 n n"], times: Float[Tensor, " T"]
    ) -> Float[Tensor, "B T n n 3"]:
        """Vx, Vy and particles, started from vorticity and particles at t = 0, on their own grid."""
        frames = [torch.cat((_velocity(s), s[:, 1:]), 1) for s in self._states(start, force, times)]
        return torch.stack(frames, 1).movedim(2, -1)

    def rate(self, state: Float[Tensor, "B X Y C"], static: Mapping[str, Tensor]) -> Float[Tensor, "B X Y C"]:
        """Central fluxes through the faces, and of the momentum's what central differences find free of divergence."""
        values, n = state.movedim(-1, 1), state.shape[1]
        change = torch.zeros_like(values)
        viscosity = values.new_tensor([self.nu, self.nu, 0.0])[:, None, None]
        for axis, speed in ((-2, values[:, :1]), (-1, values[:, 1:2])):
            after = values.roll(-1, axis)
            flux = (speed + speed.roll(-1, axis)) / 2 * (values + after) / 2 - viscosity * n * (after - values)
            change += n * (flux.roll(1, axis) - flux)
        force = torch.stack((static["force_x"], static["force_y"]), 1).to(change)
        momentum = torch.fft.rfft2(change[:, :2] + force)
        all_waves = waves(n, 1.0, state.device)
        x, y = n * torch.sin(all_waves.x / n), n * torch.sin(all_waves.y / n)
        square = x**2 + y**2
        divergence = (x * momentum[:, 0] + y * momentum[:, 1]) / square.where(square > 1e-6 * n**2, torch.inf)
        momentum = momentum - torch.stack((x * divergence, y * divergence), 1)
        return torch.cat((torch.fft.irfft2(momentum, s=(n, n)), change[:, 2:]), 1).movedim(1, -1)

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T X Y C"]:
        """The same trajectories from their first frame and force averaged to fewer points."""
        first = batch.values[:, 0].movedim(-1, 1)
        fields = torch.cat((first, batch.static["force_x"][:, None], batch.static["force_y"][:, None]), 1).double()
        fields = block_means(self.name, fields, points, (2, 3))
        start = torch.stack((_curl(fields[:, :2]), fields[:, 2]), 1)
        return self.roll(start, fields[:, 3:], batch.times[0] - batch.times[0, 0])

    def solve(
        self,
        seed: int,
        ids: Sequence[int],
        times: Float[Tensor, " T"] | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        times = self.times if times is None else times
        n = self.points * self.refinement

        def frames(start: Tensor, force: Tensor) -> Tensor:
            stored = []
            for state in self._states(start, force, times):
                particles = block_means(self.name, state[:, 1:], self.points, (2, 3))
                stored.append(torch.cat((cell_averages(_velocity(state), self.points), particles), 1).to(torch.float32))
            return torch.stack(stored, 1).movedim(2, -1)

        force = self.force(seed, ids, n, device)
        values = in_rows(frames, self.start(seed, ids, n, device), force)
        force_x, force_y = in_rows(lambda f: cell_averages(f, self.points), force).unbind(1)
        return solved_batch(self, ids, times, values, {"force_x": force_x, "force_y": force_y})


def _velocity(state: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B 2 n n"]:
    return vorticity.velocities(torch.fft.rfft2(state[:, 0]), state.shape[-1])


def _curl(v: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B n n"]:
    """∂v_y/∂x − ∂v_x/∂y of the resolved waves."""
    n = v.shape[-1]
    all_waves = waves(n, 1.0, v.device)
    x, y = torch.fft.rfft2(v).unbind(1)
    return torch.fft.irfft2(1j * all_waves.resolved * (all_waves.x * y - all_waves.y * x), s=(n, n))


def _transport(m: Float[Tensor, "B n n"], x_face: Tensor, y_face: Tensor) -> Float[Tensor, "B n n"]:
    """−∇·(mV) of cell averages, by upwind states with van Leer's slopes at the upper faces of every cell."""
    change = torch.zeros_like(m)
    for axis, speed in ((-2, x_face), (-1, y_face)):
        jump = m.roll(-1, axis) - m
        product = jump * jump.roll(1, axis)
        slope = torch.where(product > 0, product / (jump + jump.roll(1, axis)), 0.0)
        flux = speed.clamp_min(0.0) * (m + slope) + speed.clamp_max(0.0) * (m - slope).roll(-1, axis)
        change += flux.roll(1, axis) - flux
    return m.shape[-1] * change


def _power_law(exponent: float, rms: float) -> Callable[[Tensor], Tensor]:
    """Amplitudes of a field with spectral density |k|^exponent up to the largest wave, and of that rms."""

    def amplitude(k: Float[Tensor, "K L"]) -> Float[Tensor, "K L"]:
        weight = torch.where((k > 0) & (k <= _LARGEST_WAVE), k.clamp_min(1.0) ** (exponent / 2), 0.0)
        variance = weight[:, 1:].square().sum() + weight[:, 0].square().sum() / 2  # k_y = 0 holds each wave twice
        return rms * weight / variance.sqrt()

    return amplitude
