"""What limited finite volume schemes for systems share: face states, admissible steps, each trajectory's own clock.

Fields inside are `(B, C, *space)`, channels first. A trajectory's steps follow from its own state alone (every row has
its own dt, and no operation mixes rows), so its bytes do not depend on what else is in the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ups.equations.schemes.fused import fused, recordable
from ups.equations.schemes.marching import march
from ups.equations.schemes.repeated import repeat
from ups.errors import UserError

COURANT = 0.3
_ATTEMPTS = 3
_MOST_STEPS = 1_000_000
MOST_STAGES = 401
_GPU_CELLS = (2**18, 2**17, 2**16, 2**15)  # in a block: the first fill a GPU, and stay in its cache


@dataclass(frozen=True)
class Balance(ABC):
    """A system of conservation laws on a grid of cells of sides `spacing`: what a step needs to know of it. Equal ones
    hash alike.
    """

    name: str
    spacing: tuple[float, ...]

    @abstractmethod
    def longest(self, u: Float[Tensor, "B C *space"]) -> Float[Tensor, " B"]:
        """The longest step each trajectory may take from its present state."""

    def step(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, "B C *space"]:
        """One step, with all that may be needed to make it, or an error."""
        return heun(self, u, dt)

    def stages(self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """How many stages of its own a step's stiff part takes. `step` refuses more than `MOST_STAGES`."""
        return torch.zeros_like(dt)

    def attempt(
        self, u: Float[Tensor, "B C *space"], dt: Float[Tensor, " B"], stages: int
    ) -> tuple[Float[Tensor, "B C *space"], Bool[Tensor, " B"]]:
        """The step of `step` where it is an ordinary one of at most so many stages, and where that is.

        No decision is made on the host, so it can be recorded.
        """
        return attempt_heun(lambda u: self.rate(u, None), self.admissible, u, dt)

    @abstractmethod
    def rate(
        self, u: Float[Tensor, "B C *space"], flat: Bool[Tensor, "B *space"] | None
    ) -> Float[Tensor, "B C *space"]:
        """d/dt of the cell averages u; cells marked `flat` are taken as constant, which makes their faces' fluxes of
        first order."""

    @abstractmethod
    def admissible(self, u: Float[Tensor, "B C *space"]) -> Bool[Tensor, "B *space"]:
        """Where u is a state of the fluid: positive depth, density, pressure. Not a number is none."""


def padded(w: Shaped[Tensor, "*any"], dim: int, kind: str, width: int) -> Shaped[Tensor, "*wider"]:
    """w with `width` ghost cells on both ends of an axis: those of the other end (periodic) or the outermost (open)."""
    n = w.shape[dim]
    if kind == "periodic":
        before, after = w.narrow(dim, n - width, width), w.narrow(dim, 0, width)
    else:
        shape = list(w.shape)
        shape[dim] = width
        before, after = (w.narrow(dim, i, 1).expand(shape) for i in (0, n - 1))
    return torch.cat((before, w, after), dim)


def face_states(
    w: Float[Tensor, "B C *space"], dim: int, kind: str, flat: Bool[Tensor, "B *space"] | None
) -> tuple[Float[Tensor, "B C *faces"], Float[Tensor, "B C *faces"]]:
    """States left and right of the n + 1 faces across an axis, which comes last in what is returned.

    Slopes are limited by van Leer's monotonised central difference: a face value never leaves the range of the cells
    beside it, so what is positive in the cells is positive on the faces.
    """
    p = padded(w, dim, kind, 2).movedim(dim, -1)
    centre = p[..., 1:-1]
    lower, upper = _limited(p[..., :-2], centre, p[..., 2:])
    if flat is not None:
        constant = padded(flat, dim, kind, 1).movedim(dim, -1)[:, None]
        lower, upper = (torch.where(constant, centre, side) for side in (lower, upper))
    return upper[..., :-1], lower[..., 1:]


@fused
def _limited(before: Tensor, centre: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """A cell's values at its lower and its upper face."""
    back, ahead = centre - before, after - centre
    most = torch.minimum(back.abs(), ahead.abs())
    half = torch.clamp((back + ahead) / 4, -most, most)  # half a slope: from the centre to the face
    half = torch.where(back * ahead > 0, half, 0.0)
    return centre - half, centre + half


def with_inflow(
    change: Float[Tensor, "B C *space"], flux: Sequence[Float[Tensor, "B *faces"]], dim: int, dx: float
) -> Float[Tensor, "B C *space"]:
    """`change` and what the channels' fluxes through the faces of the last axis bring into the cells."""
    faces = torch.stack(list(flux), 1)
    return _with_difference(change, faces[..., :-1].movedim(-1, dim), faces[..., 1:].movedim(-1, dim), dx=dx)[0]


@fused
def _with_difference(change: Tensor, before: Tensor, behind: Tensor, *, dx: float) -> tuple[Tensor]:
    return (change + (before - behind) / dx,)


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
    dt = per_row(dt, u)
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


def attempt_heun(
    rate: Callable[[Float[Tensor, "B C *space"]], Float[Tensor, "B C *space"]],
    admissible: Callable[[Float[Tensor, "B C *space"]], Bool[Tensor, "B *space"]],
    u: Float[Tensor, "B C *space"],
    dt: Float[Tensor, " B"],
) -> tuple[Float[Tensor, "B C *space"], Bool[Tensor, " B"]]:
    """The step of `heun`, and for which trajectories both Euler steps are admissible as they are."""
    dt = per_row(dt, u)
    (once,) = _moved(u, rate(u), dt)
    (twice,) = _moved(once, rate(once), dt)
    return (u + twice) / 2, (admissible(once) & admissible(twice)).flatten(1).all(1)


@fused
def _moved(u: Tensor, rate: Tensor, dt: Tensor) -> tuple[Tensor]:
    return (u + dt * rate,)


def per_row(values: Shaped[Tensor, " B"], u: Float[Tensor, "B C *space"]) -> Shaped[Tensor, "B 1 *ones"]:
    """A number for each trajectory, to be used with u."""
    return values.reshape(-1, *(1,) * (u.dim() - 1))


def longest_step(speeds: Sequence[Float[Tensor, "B *space"]], spacing: Sequence[float]) -> Float[Tensor, " B"]:
    """Courant number 0.3 along the fastest axis, from the speed of the fastest wave along each."""
    rates = (speed.flatten(1).amax(1) / dx for speed, dx in zip(speeds, spacing, strict=True))
    return COURANT / reduce(torch.maximum, rates)


def _with_neighbours(marked: Bool[Tensor, "B *space"]) -> Bool[Tensor, "B *space"]:
    """Marked cells and those beside them. Wrapping at open ends marks a few cells more, which does no harm."""
    for dim in range(1, marked.dim()):
        marked = marked | marked.roll(1, dim) | marked.roll(-1, dim)
    return marked


def cover(balance: Balance, u: Float[Tensor, "B C *space"], interval: float) -> Float[Tensor, "B C *space"]:
    """Every trajectory over the interval, in steps as long as `longest` allows in its present state.

    What remains is divided evenly, so the last step is not a short one.
    """
    if not recordable(u):
        return _step_by_step(balance, u, interval)
    cells = u[0, 0].numel()
    return in_rounds(balance, u, interval, [max(1, block // cells) for block in _GPU_CELLS])


def states(
    balance: Balance, u: Float[Tensor, "B C *space"], times: Float[Tensor, " T"], refusal: str
) -> Iterator[Float[Tensor, "B C *space"]]:
    """The states at `times`, started from u at t = 0; a start that is not admissible is refused."""
    if not balance.admissible(u).all():
        raise UserError(f"{balance.name}: {refusal}")
    yield from march(balance.name, u, times, lambda u, now, later: cover(balance, u, later - now))


def _next_step(
    balance: Balance, u: Float[Tensor, "B C *space"], remaining: Float[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """How many steps are to come, and how long the next one is."""
    steps = (remaining / balance.longest(u)).ceil().clamp_min(1.0)
    return steps, remaining / steps


def _step_by_step(balance: Balance, u: Float[Tensor, "B C *space"], interval: float) -> Float[Tensor, "B C *space"]:
    """All trajectories together; one that is through leaves the batch."""
    arrived = torch.empty_like(u)
    row = torch.arange(len(u), device=u.device)
    remaining = torch.full((len(u),), interval, dtype=torch.float64, device=u.device)
    for _ in range(_MOST_STEPS):
        steps, dt = _next_step(balance, u, remaining)
        u = balance.step(u, dt)
        through = steps == 1
        remaining = remaining - dt
        if through.any():
            arrived[row[through]] = u[through]
            row, remaining, u = row[~through], remaining[~through], u[~through]
            if len(row) == 0:
                return arrived
    raise _endless(balance, interval)


def in_rounds(
    balance: Balance, u: Float[Tensor, "B C *space"], interval: float, sizes: list[int]
) -> Float[Tensor, "B C *space"]:
    """The same for a GPU, which must not wait for the host at every step.

    A round: the host looks once at how many steps and stages every trajectory needs, sorts those alike into blocks (of
    `sizes` rows, so that few shapes occur), and each block takes that many steps at once. Rows that are through rest.
    So do rows whose step is not an ordinary one (`attempt`): the next round begins with that step by `step`, and where
    stages were too few the row is given more from then on.
    """
    u, taken = u.clone(), 0
    remaining = torch.full((len(u),), interval, dtype=torch.float64, device=u.device)
    stuck = torch.zeros_like(remaining, dtype=torch.bool)
    least = torch.zeros(len(u), dtype=torch.int64)
    while taken < _MOST_STEPS:
        steps, dt = _next_step(balance, u, remaining)
        looked = torch.stack((steps * (remaining > 0), balance.stages(u, dt), stuck.double())).cpu()
        steps, stages = looked[0].clamp_max(_MOST_STEPS).long(), looked[1].long()
        waiting = (looked[2] > 0) | (stages > MOST_STAGES)
        if not steps.any():
            return u
        if waiting.any():
            rows = waiting.nonzero()[:, 0].to(u.device)
            u[rows] = balance.step(u[rows], dt[rows])
            remaining[rows] -= dt[rows]
            stuck[rows] = False
            least = torch.where(waiting & (stages > 0), stages + 2, least)
        steps = steps.masked_fill(waiting, 0)
        for block, size, most in blocks(steps, stages.maximum(least), sizes):
            times = int(steps[block].max())
            rows = block.to(u.device)
            # Filled up with copies of its first row that are through.
            filled = torch.cat((rows, rows[:1].expand(size - len(rows))))
            left = remaining[filled]
            left[len(rows) :] = 0.0
            state = u[filled], left, stuck[filled]
            state = repeat(_ordinary_step(balance, most), state, times, (balance, most))
            u[rows], remaining[rows], stuck[rows] = (part[: len(rows)] for part in state)
        taken += int(steps.max())
    raise _endless(balance, interval)


def blocks(
    steps: Int[Tensor, " B"], stages: Int[Tensor, " B"], sizes: list[int]
) -> Iterator[tuple[Int[Tensor, " b"], int, int]]:
    """Rows that have steps to take, those with the same stages and similar steps together; with each block the size it
    is filled up to and the stages it is given.
    """
    given = torch.tensor([_enough(int(count)) for count in stages.tolist()])
    for most in given[steps > 0].unique().tolist():
        rows = ((given == most) & (steps > 0)).nonzero()[:, 0]
        rows = rows[steps[rows].argsort(descending=True, stable=True)]
        while len(rows):
            size = max((size for size in sizes if size <= 4 / 3 * len(rows)), default=min(sizes))
            yield rows[:size], size, most
            rows = rows[size:]


def _enough(stages: int) -> int:
    """The next larger of few numbers: 0, 3, 5, 7, 9, 13, 17, 25, 33, 49 …"""
    if stages <= 3:
        return 3 if stages else 0
    unit = 2 ** max(1, (stages - 2).bit_length() - 2)
    return -(-(stages - 1) // unit) * unit + 1


def _ordinary_step(balance: Balance, stages: int) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """One step of rows that are on their way and not stuck."""

    def step(u: Tensor, remaining: Tensor, stuck: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dt = _next_step(balance, u, remaining)[1]
        stepped, done = balance.attempt(u, dt, stages)
        stuck = stuck | ~done
        moves = ~stuck & (remaining > 0)
        return torch.where(per_row(moves, u), stepped, u), torch.where(moves, remaining - dt, remaining), stuck

    return step


def _endless(balance: Balance, interval: float) -> UserError:
    return UserError(f"{balance.name}: {_MOST_STEPS} steps did not cover a time of {interval}; ask for slower flow")
