"""Incompressible flow between four walls, on a staggered grid of n × n cells of the unit square.

Velocities are `(B, 2, n, n)`: the mean of v_x on every cell's upper x face and that of v_y on its upper y face, so that
what flows into a cell and out of it is known without interpolation. The last cells' upper faces lie in the walls and
hold zeros; a cell before the first is the last one to `roll`, so every first cell finds its wall there too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

_AXES = (-2, -1)
_LAYER = 1 / 8  # as wide as a boundary layer after t = 1.6 at ν = 0.01


def at_faces(centres: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B 2 n n"]:
    """A vector field's components from the cells' centres to the faces, zero in the walls."""
    return _component_wise(lambda one, axis: _closed((one + one.roll(-1, axis)) / 2, axis), centres)


def at_centres(faces: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B 2 n n"]:
    """The components' averages over cells, of second order."""
    return _component_wise(lambda one, axis: (one + one.roll(1, axis)) / 2, faces)


def divergence(v: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B n n"]:
    """What flows out of every cell, over its area."""
    x, y = v.unbind(1)
    return v.shape[-1] * (x - x.roll(1, -2) + y - y.roll(1, -1))


def projected(v: Float[Tensor, "B 2 n n"]) -> tuple[Float[Tensor, "B 2 n n"], Float[Tensor, "B n n"]]:
    """v − ∇φ free of divergence, to rounding, and φ: cosines solve ∇²φ = ∇·v between closed walls."""
    tables = _tables(v.shape[-1], v.device)
    cosine = tables.cosine
    spectrum = (cosine @ divergence(v) @ cosine.mT) * tables.inverse
    potential = cosine.mT @ spectrum @ cosine
    return v - _gradient(potential), potential


def convection(v: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B 2 n n"]:
    """∇·(v v) at the faces, by central fluxes: it keeps momentum inside and, of a v without divergence, energy."""
    n = v.shape[-1]
    x, y = v.unbind(1)
    # In the walls one of the two factors is zero, so a roll may bring the other wall's neighbour into the other one.
    corner = (x + x.roll(-1, -1)) * (y + y.roll(-1, -2)) / 4
    along_x, along_y = at_centres(v).square().unbind(1)
    return n * torch.stack(
        (
            _closed(along_x.roll(-1, -2) - along_x + corner - corner.roll(1, -1), -2),
            _closed(along_y.roll(-1, -1) - along_y + corner - corner.roll(1, -2), -1),
        ),
        1,
    )


def laplacian(v: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B 2 n n"]:
    """∇²v of five points, with v = 0 on the walls."""
    n = v.shape[-1]

    def one_component(one: Tensor, axis: int) -> Tensor:
        across = -3 - axis
        normal = _closed(one.roll(1, axis) + one.roll(-1, axis) - 2 * one, axis)
        # The wall is half a cell away from the first face's middle.
        first, last = one.narrow(across, 0, 1), one.narrow(across, n - 1, 1)
        return normal + torch.cat((2 * first, one.diff(dim=across), -2 * last), across).diff(dim=across)

    return n**2 * _component_wise(one_component, v)


def march(
    v: Float[Tensor, "B 2 n n"], force: Float[Tensor, "B 2 n n"], nu: float, dt: float, steps: int
) -> Iterator[Float[Tensor, "B 2 n n"]]:
    """v after each of the steps, of second order; the force is given at the faces, v must have no divergence.

    Adams and Bashforth's method for convection, begun by a step of Heun's. Viscosity acts exactly on what convection,
    force and the last known pressure do; a projection then takes off what divergence is left, and corrects the
    pressure by as much.
    """
    push = force - convection(v)
    p = projected(push + nu * laplacian(v))[1]
    there, _ = _moved(v, p, push, nu, dt)
    v, p = _moved(v, p, (push + force - convection(there)) / 2, nu, dt)
    yield v
    for _ in range(steps - 1):
        before, push = push, force - convection(v)
        v, p = _moved(v, p, 1.5 * push - 0.5 * before, nu, dt)
        yield v


def at_rest_on_walls(v: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B 2 n n"]:
    """A flow without divergence, brought to rest on the walls within a layer of 1/8: its stream function fades there.

    v = (∂ψ/∂y, −∂ψ/∂x) with ψ at the cells' upper corners, zero on the walls: so differences of it have no divergence.
    """
    n = v.shape[-1]
    corner = torch.arange(1, n + 1, dtype=v.dtype, device=v.device) / n
    fading = torch.sin(math.pi / 2 * (torch.minimum(corner, 1 - corner) / _LAYER).clamp_max(1.0))
    psi = v[:, 0].cumsum(-1) * fading[:, None] * fading
    return torch.stack((psi - psi.roll(1, -1), psi.roll(1, -2) - psi), 1)


def speeds(v: Float[Tensor, "B 2 n n"]) -> Float[Tensor, " B"]:
    """Every flow's largest |v_x| + |v_y| on the faces of one cell."""
    fastest = _component_wise(lambda one, axis: torch.maximum(one.abs(), one.roll(1, axis).abs()), v)
    return fastest.sum(1).amax(_AXES)


def _moved(v: Tensor, p: Tensor, push: Tensor, nu: float, dt: float) -> tuple[Tensor, Tensor]:
    """v + ∫ e^(ν∇²(dt − s)) (push − ∇p + ν∇²v) ds, projected: sines are the Laplacian's eigenvectors between walls.

    v_y is taken transposed, so that both components have their faces along the rows.
    """
    tables = _tables(v.shape[-1], v.device)
    change = push - _gradient(p) + nu * laplacian(v)
    x, y = change.unbind(1)
    spectrum = tables.face_sine @ torch.stack((x, y.mT), 1) @ tables.centre_sine.mT
    x, y = (tables.face_sine @ (spectrum * _mean_decay(v.shape[-1], nu * dt, v.device)) @ tables.centre_sine).unbind(1)
    v, potential = projected(v + dt * torch.stack((x, y.mT), 1))
    return v, p + potential / dt


def _gradient(p: Float[Tensor, "B n n"]) -> Float[Tensor, "B 2 n n"]:
    n = p.shape[-1]
    return n * torch.stack([_closed(p.roll(-1, axis) - p, axis) for axis in _AXES], 1)


def _closed(faces: Float[Tensor, "B n n"], axis: int) -> Float[Tensor, "B n n"]:
    """Upper faces across an axis with the wall's set to zero, in place."""
    faces.narrow(axis, faces.shape[axis] - 1, 1).zero_()
    return faces


def _component_wise(act: Callable[[Tensor, int], Tensor], v: Float[Tensor, "B 2 n n"]) -> Float[Tensor, "B 2 n n"]:
    """act(component, the axis its faces lie across) of both."""
    return torch.stack([act(one, axis) for one, axis in zip(v.unbind(1), _AXES, strict=True)], 1)


@dataclass(frozen=True, eq=False)
class _Tables:
    """Eigenvectors of the five-point Laplacian as orthonormal rows: a transform is a product with a matrix an axis.

    cosine: cos(πk(i + ½)/n), closed cells; face_sine: sin(πk(i + 1)/n), zero on the walls at both ends, whose last row
    and column are zero as faces in walls are; centre_sine: sin(πk(i + ½)/n), zero half a cell outside.
    """

    cosine: Float[Tensor, "n n"]
    face_sine: Float[Tensor, "n n"]
    centre_sine: Float[Tensor, "n n"]
    inverse: Float[Tensor, "n n"]
    values: Float[Tensor, "n n"]


@lru_cache(maxsize=16)
def _tables(n: int, device: torch.device) -> _Tables:
    k = torch.arange(n, dtype=torch.float64, device=device)
    scale = math.sqrt(2 / n)
    cosine = scale * torch.cos(math.pi / n * k[:, None] * (k + 0.5))
    cosine[0] /= math.sqrt(2)
    face_sine = scale * torch.sin(math.pi / n * (k[:, None] + 1) * (k + 1))
    face_sine[-1], face_sine[:, -1] = 0.0, 0.0  # sin(πk) to rounding
    centre_sine = scale * torch.sin(math.pi / n * (k[:, None] + 1) * (k + 0.5))
    centre_sine[-1] /= math.sqrt(2)
    closed = -((2 * n) ** 2) * torch.sin(math.pi / (2 * n) * k).square()
    fixed = -((2 * n) ** 2) * torch.sin(math.pi / (2 * n) * (k + 1)).square()
    square = closed[:, None] + closed
    square[0, 0] = -math.inf  # a constant potential moves nothing
    return _Tables(cosine, face_sine, centre_sine, 1 / square, fixed[:, None] + fixed)


@lru_cache(maxsize=64)
def _mean_decay(n: int, diffused: float, device: torch.device) -> Float[Tensor, "n n"]:
    """(e^z − 1)/z of z = ν dt ∇²: the mean of e^(zs) over a step."""
    z = diffused * _tables(n, device).values
    return torch.expm1(z) / z
