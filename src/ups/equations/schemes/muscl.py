"""What limited finite volume schemes for systems share: face states, admissible steps, each trajectory's own clock.

Fields inside are `(B, C, *space)`, channels first. A trajectory's steps follow from its own state alone (every row has
its own dt, and no operation mixes rows), so its bytes do not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ups.errors import UserError

COURANT = 0.3
_ATTEMPTS = 3
_MOST_STEPS = 1_000_000


class Balance(Protocol):
    """A system of conservation laws on a grid: what a step needs to know of it."""

    @property
    def name(self) -> str: ...

    def rate(
        self, u: Float[Tensor, "B C *space"], flat: Bool[Tensor, "B *space"] | None
    ) -> Float[Tensor, "B C *space"]:
        """d/dt of the cell averages u; cells marked `flat` are taken as constant, which makes their faces' fluxes of
        first order."""
        ...

    def admissible(self, u: Float[Tensor, "B C *space"]) -> Bool[Tensor, "B *space"]:
        """Where u is a state of the fluid: positive depth, density, pressure. Not a number is none."""
        ...


def padded(w: Shaped[Tensor, "*any"], dim: int, kind: str, width: int) -> Shaped[Tensor, "*wider"]:
    """w with `width` ghost cells on both ends of an axis: those of the other end (periodic) or the outermost (open)."""
    n = w.shape[dim]
    if kind == "periodic":
        before, after = w.narrow(dim, n - width, width), w.narrow(dim, 0, width)
    else:
        before, after = (w.narrow(dim, i, 1).repeat_interleave(width, dim) for i in (0, n - 1))
    return torch.cat((before, w, after), dim)


def face_states(
    w: Float[Tensor, "B C *space"], dim: int, kind: str, flat: Bool[Tensor, "B *space"] | None
) -> tuple[Float[Tensor, "B C *faces"], Float[Tensor, "B C *faces"]]:
    """States left and right of the n + 1 faces across an axis, which comes last in what is returned.

    Slopes are limited by van Leer's monotonised central difference: a face value never leaves the range of the cells
    beside it, so what is positive in the cells is positive on the faces.
    """
    p = padded(w, dim, kind, 2).movedim(dim, -1)
    jump = p[..., 1:] - p[..., :-1]
    before, after = jump[..., :-1], jump[..., 1:]
    most = torch.minimum(before.abs(), after.abs())
    half = torch.clamp((before + after) / 4, -most, most)  # half a slope: from the centre to the face
    rises = before * after > 0
    if flat is not None:
        rises = rises & ~padded(flat, dim, kind, 1).movedim(dim, -1)[:, None]
    half = torch.where(rises, half, 0.0)
    centre = p[..., 1:-1]
    return (centre + half)[..., :-1], (centre - half)[..., 1:]


def inflow(flux: Float[Tensor, "B C *faces"], dim: int, dx: float) -> Float[Tensor, "B C *space"]:
    """What fluxes through the faces of the last axis bring into the cells; the axis goes back to its place."""
    return ((flux[..., :-1] - flux[..., 1:]) / dx).movedim(-1, dim)


def heun(balance: Balance, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, "B C *space"]:
    """A step of the strong-stability-preserving Runge-Kutta method of order two: the mean of u and two Euler steps.

    Admissible states are a convex set, so the mean of admissible states is one.
    """
    return (u + _euler(balance, _euler(balance, u, dt), dt)) / 2


def _euler(balance: Balance, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, "B C *space"]:
    """An Euler step; around cells it would leave inadmissible, fluxes of first order are taken instead.

    A face still has one flux, so what is conserved stays so. If the whole field at first order does not help either,
    there is nothing honest left to do.
    """
    dt = dt.reshape(-1, *(1,) * (u.dim() - 1))
    stepped = u + dt * balance.rate(u, None)
    bad = ~balance.admissible(stepped)
    if not bad.any():
        return stepped
    rows = bad.flatten(1).any(1).nonzero()[:, 0]
    flat = bad[rows]
    for attempt in range(_ATTEMPTS + 1):
        flat = _with_neighbours(flat) if attempt < _ATTEMPTS else torch.ones_like(flat)
        again = u[rows] + dt[rows] * balance.rate(u[rows], flat)
        bad = ~balance.admissible(again)
        if not bad.any():
            stepped[rows] = again
            return stepped
        flat = flat | bad
    raise UserError(
        f"{balance.name}: a state left the range of the method (density, pressure or depth not positive), even at "
        "first order; ask for slower flow, smaller contrasts or more points"
    )


def _with_neighbours(marked: Bool[Tensor, "B *space"]) -> Bool[Tensor, "B *space"]:
    """Marked cells and those beside them. Wrapping at open ends marks a few cells more, which does no harm."""
    for dim in range(1, marked.dim()):
        marked = marked | marked.roll(1, dim) | marked.roll(-1, dim)
    return marked


def cover(
    u: Float[Tensor, "B C *space"],
    interval: float,
    longest: Callable[[Float[Tensor, "B C *space"]], Float[Tensor, " B"]],
    step: Callable[[Float[Tensor, "B C *space"], Float[Tensor, " B"]], Float[Tensor, "B C *space"]],
    name: str,
) -> Float[Tensor, "B C *space"]:
    """Every trajectory over the interval, in steps as long as `longest` allows in its present state.

    What remains is divided evenly, so the last step is not a short one. A trajectory that is through leaves the batch.
    """
    arrived = torch.empty_like(u)
    row = torch.arange(len(u), device=u.device)
    remaining = torch.full((len(u),), interval, dtype=torch.float64, device=u.device)
    for _ in range(_MOST_STEPS):
        steps = (remaining / longest(u)).ceil().clamp_min(1.0)
        dt = remaining / steps
        u = step(u, dt)
        through = steps == 1
        remaining = remaining - dt
        if through.any():
            arrived[row[through]] = u[through]
            row, remaining, u = row[~through], remaining[~through], u[~through]
            if len(row) == 0:
                return arrived
    raise UserError(f"{name}: {_MOST_STEPS} steps did not cover a time of {interval}; ask for slower flow")
