"""The shallow water equations in two dimensions: a radial dam break."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ups.equations.base import Device, Equation, Solution, Static
from ups.equations.schemes.fused import fused
from ups.equations.schemes.marching import block_means
from ups.equations.schemes.muscl import Balance, face_states, longest_step, states, with_inflow
from ups.equations.uniforms import uniforms
from ups.errors import UserError
from ups.fields import Batch, Invariant, Kind

GRAVITY = 1.0
_EXTENT = (-2.5, 2.5)
_INSIDE, _OUTSIDE = 2.0, 1.0
_LARGEST_RADIUS = 0.7
_FRONT = 1.34  # speed of the planar bore between depths 2 and 1 is 1.336; a radial one is slower
_LENGTH = _EXTENT[1] - _EXTENT[0]


@dataclass(frozen=True)
class ShallowWater(Equation):
    """∂h/∂t + ∇·(hv) = 0,  ∂(hv)/∂t + ∇·(hvv) + ∇(h²/2) = 0 on (−2.5, 2.5)², gravity 1, open on all sides.

    A circular dam breaks: depth 2 within a radius r ~ U(0.3, 0.7), 1 outside, at rest. A bore runs out and a
    rarefaction in, which focuses at the centre and overshoots to a dip; the bore is at r ≈ 2 by t = 1, inside the
    domain, so the mean of h is kept until then. One number is all that differs between samples.

    Depth alone is stored, as published, and is not the whole state: a model needs two frames (`history=2`), and `rate`
    refuses; `roll` gives h, hu and hv. A cell cut by the dam holds the mean depth (to first order in its size). Were
    it one or the other by its centre, 1,000 radii would make 81 different samples on 128² cells: equal ones in train
    and test.

    HLLC fluxes of limited h and v (`muscl.py`), SSP-RK2, Courant number 0.3. Published: 128² points, 101 frames.
    """

    points: int = 128
    frames: int = 101
    duration: float = 1.0

    name: ClassVar[str] = "shallow_water"
    closed: ClassVar[bool] = False
    title: ClassVar[str] = "Shallow water, radial dam break"
    formula: ClassVar[str] = "∂h/∂t + ∇·(hv) = 0, ∂(hv)/∂t + ∇·(hvv) + ∇(h²/2) = 0, open on all sides"
    method: ClassVar[str] = "HLLC, MUSCL (monotonised central), SSP-RK2 on {n} cells an axis"
    file: ClassVar[str] = "2D_rdb_NA_NA.h5"
    channels: ClassVar[tuple[str, ...]] = ("h",)
    sides: ClassVar[Kind] = "open"
    conserved: ClassVar[tuple[str, ...]] = ("h",)
    layout: ClassVar[str] = "pdebench-grouped"
    dimension: ClassVar[int] = 2
    interval: ClassVar[tuple[float, float]] = _EXTENT
    history: ClassVar[int] = 2

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        """The mean depth, while the bore is inside."""
        inside = _LARGEST_RADIUS + _FRONT * self.duration < _EXTENT[1]
        return super().invariants if inside else ()

    def roll(self, u0: Float[Tensor, "B 3 X Y"], times: Float[Tensor, " T"]) -> Float[Tensor, "B T 3 X Y"]:
        """h, hu and hv at `times`, started from u0 at t = 0, on u0's own grid over the whole domain."""
        return torch.stack(list(self._states(u0, times)), 1)

    def _states(self, u0: Float[Tensor, "B 3 X Y"], times: Float[Tensor, " T"]) -> Iterator[Float[Tensor, "B 3 X Y"]]:
        water = Water(self.name, (_LENGTH / u0.shape[2], _LENGTH / u0.shape[3]))
        return states(water, u0, times, "a start has a depth that is not positive; the bed must be wet everywhere")

    def rate(self, state: Float[Tensor, "B X Y C"], static: Static) -> Float[Tensor, "B X Y C"]:
        raise UserError(
            f"{self.name}: depth alone has no rate, since the flow is not stored; score predictions of this task by "
            "their conserved mean instead"
        )

    def coarse(self, batch: Batch, points: int) -> Float[Tensor, "B T X Y C"]:
        """The same dam breaks on fewer points per axis; only from t = 0, where the water is known to be at rest."""
        if batch.times[:, 0].any():
            raise UserError(f"{self.name}: the flow of a later frame is not stored; give trajectories from t = 0")
        h = block_means(self.name, batch.values[:, 0, ..., 0].double(), points, (1, 2))
        return self.roll(_at_rest(h), batch.times[0])[:, :, 0, ..., None]

    def radii(self, seed: int, ids: Sequence[int]) -> Float[Tensor, " B"]:
        """The dams' radii; each depends on (seed, index) alone."""
        return 0.3 + 0.4 * uniforms(seed, ids, 1)[:, 0]

    def start(self, seed: int, ids: Sequence[int], device: Device = "cpu") -> Float[Tensor, "B 3 X Y"]:
        x = self.grid.positions[0].to(device)
        distance = (x[:, None].square() + x.square()).sqrt()
        radius = self.radii(seed, ids).to(device)[:, None, None]
        share = ((radius - distance) / (_LENGTH / self.points) + 0.5).clamp(0.0, 1.0)
        return _at_rest(_OUTSIDE + (_INSIDE - _OUTSIDE) * share)

    def solutions(self, seed: int, ids: Sequence[int], times: Float[Tensor, " T"], device: Device) -> Solution:
        rolled = self._states(self.start(seed, ids, device), times)
        depths = torch.stack([u[:, 0].to(torch.float32) for u in rolled], 1)  # all that is stored, as it is stored
        return depths[..., None], {}


class Water(Balance):
    """The discrete equations for h, hu, hv, open on all sides."""

    def admissible(self, u: Float[Tensor, "B 3 X Y"]) -> Bool[Tensor, "B X Y"]:
        return (u[:, 0] > 0) & u.isfinite().all(1)

    def longest(self, u: Float[Tensor, "B 3 X Y"]) -> Float[Tensor, " B"]:
        wave = (GRAVITY * u[:, 0]).sqrt()
        return longest_step([flow.abs() / u[:, 0] + wave for flow in (u[:, 1], u[:, 2])], self.spacing)

    def rate(self, u: Float[Tensor, "B 3 X Y"], flat: Bool[Tensor, "B X Y"] | None) -> Float[Tensor, "B 3 X Y"]:
        w = torch.cat((u[:, :1], u[:, 1:] / u[:, :1]), 1)
        change = torch.zeros_like(u)
        for axis, dx in enumerate(self.spacing):
            left, right = face_states(w, axis - 2, "open", flat)
            change = with_inflow(change, _hllc(*left.unbind(1), *right.unbind(1), axis=axis), axis - 2, dx)
        return change


@fused
def _hllc(*sides: Tensor, axis: int) -> list[Tensor]:
    """The flux of h, hu, hv across faces: two waves for depth and normal flow, between which the velocity along the
    face comes from the side the water comes from.

    Outer speeds are the extremes of the water's own and of Roe's mean: no expansion shocks, no negative depths.
    """
    n, t, left, right = 1 + axis, 2 - axis, sides[:3], sides[3:]
    h_l, h_r, u_l, u_r = left[0], right[0], left[n], right[n]
    root_l, root_r = h_l.sqrt(), h_r.sqrt()
    mean = (root_l * u_l + root_r * u_r) / (root_l + root_r)
    wave = (GRAVITY * (h_l + h_r) / 2).sqrt()
    slow = torch.minimum(u_l - GRAVITY**0.5 * root_l, mean - wave).clamp_max(0.0)
    fast = torch.maximum(u_r + GRAVITY**0.5 * root_r, mean + wave).clamp_min(0.0)
    q_l, q_r = h_l * u_l, h_r * u_r
    push_l, push_r = q_l * u_l + GRAVITY * h_l.square() / 2, q_r * u_r + GRAVITY * h_r.square() / 2
    water = (fast * q_l - slow * q_r + slow * fast * (h_r - h_l)) / (fast - slow)
    push = (fast * push_l - slow * push_r + slow * fast * (q_r - q_l)) / (fast - slow)
    shear = water * torch.where(water >= 0, left[t], right[t])
    return [water, push, shear] if n < t else [water, shear, push]


def _at_rest(h: Float[Tensor, "B X Y"]) -> Float[Tensor, "B 3 X Y"]:
    return torch.stack((h, torch.zeros_like(h), torch.zeros_like(h)), 1)
