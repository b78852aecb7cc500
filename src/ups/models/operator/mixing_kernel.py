"""Two moves of a spectral block as kernels of Triton's, by torch's operations ten or so each.

complex_as_real    [A | B] of each mode → the real matrix of (c, s) → (cA + sB, sA − cB)
beside             a field, another one, and the first one's neighbours along some axes, as channels of one field
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

NAME = "the kernels of a block's mixing"
BLOCK = 1024
TILE = 4096
WRAPS, ZERO, EDGE = 0, 1, 2
"""What lies beyond the last point of an axis: its other end, nothing, or the last point itself."""
UNUSED = (1, 1, ZERO, ZERO)

Axis = tuple[int, int, int, int]
"""Points along it, points from one to the next, and what lies beyond its lower and its upper end."""


def complex_as_real(weight: Float[Tensor, "K D two_D"]) -> Float[Tensor, "K two_D two_D"]:
    return _ComplexAsReal.apply(weight)  # pyright: ignore[reportReturnType]


def beside(
    x: Float[Tensor, "B *space D"],
    other: Float[Tensor, "B *space D"],
    axes: Sequence[int],
    beyond: Sequence[tuple[int, int]],
) -> Float[Tensor, "B *space parts_D"]:
    """x, the other one, then the points below and above x along each of `axes`, with what lies `beyond` its ends."""
    shape = x.shape[1:-1]
    along = tuple((shape[axis], math.prod(shape[axis + 1 :]), *ends) for axis, ends in zip(axes, beyond, strict=True))
    return _Beside.apply(x, other, along)  # pyright: ignore[reportReturnType]


def try_out(device: torch.device) -> None:
    weight, x = (torch.zeros(shape, device=device, requires_grad=True) for shape in ((1, 2, 4), (1, 2, 16)))
    with torch.enable_grad():
        torch.autograd.grad(complex_as_real(weight).sum(), weight)
        torch.autograd.grad(beside(x, x, [0], [(WRAPS, WRAPS)]).sum(), x)


class _ComplexAsReal(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        modes, width = weight.shape[:2]
        out = weight.new_empty(modes, 2 * width, 2 * width)
        _launch_flat(_real, weight.contiguous(), out, out.numel(), width)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        modes, width = gradient.shape[0], gradient.shape[1] // 2
        out = gradient.new_empty(modes, width, 2 * width)
        _launch_flat(_real_backward, gradient.contiguous(), out, out.numel(), width)
        return out


class _Beside(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor, axes: tuple[Axis, ...]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.axes = axes
        x, other = x.contiguous(), other.contiguous()
        out = x.new_empty(*x.shape[:-1], (2 + 2 * len(axes)) * x.shape[-1])
        _launch_tiles(_beside, x, axes, x, other, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        width = gradient.shape[-1] // (2 + 2 * len(ctx.axes))
        x, other = (gradient.new_empty(*gradient.shape[:-1], width) for _ in range(2))
        _launch_tiles(_beside_backward, x, ctx.axes, gradient.contiguous(), x, other)
        return x, other, None


def _launch_flat(kernel: Any, source: Tensor, out: Tensor, size: int, width: int) -> None:
    with torch.cuda.device_of(source):
        kernel[(triton.cdiv(size, BLOCK),)](source, out, size, width, BLOCK=BLOCK)


def _launch_tiles(kernel: Any, x: Tensor, axes: tuple[Axis, ...], *tensors: Tensor) -> None:
    points, width = x[..., 0].numel(), x.shape[-1]
    columns = triton.next_power_of_2(width)
    rows = max(1, TILE // columns)
    numbers = [number for axis in (*axes, UNUSED, UNUSED, UNUSED)[:3] for number in axis]
    with torch.cuda.device_of(x):
        kernel[(triton.cdiv(points, rows),)](*tensors, points, width, rows, columns, len(axes), *numbers)


@triton.jit
def _real(weight, out, size, width, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    row, column = (places // (2 * width)) % (2 * width), places % (2 * width)
    lower, right = row >= width, column >= width
    mode = places // (4 * width * width)
    taken = tl.where(lower == right, column % width, width + column % width)  # A, A on the diagonal; B, −B beside it
    value = tl.load(weight + (mode * width + row % width) * 2 * width + taken, inside, 0.0)
    tl.store(out + places, tl.where(right & (row < width), -value, value), inside)


@triton.jit
def _real_backward(gradient, out, size, width, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < size
    column = places % (2 * width)
    row = (places // (2 * width)) % width
    mode = places // (2 * width * width)
    second = column >= width
    at = gradient + mode * 4 * width * width
    # A stands at (0, 0) and (1, 1); B at (1, 0), and with a minus at (0, 1).
    one = tl.load(at + (row + tl.where(second, width, 0)) * 2 * width + column % width, inside, 0.0)
    other = tl.load(at + (row + tl.where(second, 0, width)) * 2 * width + width + column % width, inside, 0.0)
    tl.store(out + places, tl.where(second, one - other, one + other), inside)


@triton.jit
def _beside(
    x, other, out, points, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXES: tl.constexpr,
    N_0: tl.constexpr, BY_0: tl.constexpr, BELOW_0: tl.constexpr, ABOVE_0: tl.constexpr,
    N_1: tl.constexpr, BY_1: tl.constexpr, BELOW_1: tl.constexpr, ABOVE_1: tl.constexpr,
    N_2: tl.constexpr, BY_2: tl.constexpr, BELOW_2: tl.constexpr, ABOVE_2: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    there = (columns < width)[None, :]
    inside = (rows < points)[:, None] & there
    to = out + rows[:, None] * (2 + 2 * AXES) * width + columns[None, :]
    tl.store(to, tl.load(x + rows[:, None] * width + columns[None, :], inside, 0.0), inside)
    tl.store(to + width, tl.load(other + rows[:, None] * width + columns[None, :], inside, 0.0), inside)
    if AXES > 0:
        _neighbours(x, to + 2 * width, rows, columns, inside, width, N_0, BY_0, BELOW_0, ABOVE_0)
    if AXES > 1:
        _neighbours(x, to + 4 * width, rows, columns, inside, width, N_1, BY_1, BELOW_1, ABOVE_1)
    if AXES > 2:
        _neighbours(x, to + 6 * width, rows, columns, inside, width, N_2, BY_2, BELOW_2, ABOVE_2)


@triton.jit
def _neighbours(
    x, to, rows, columns, inside, width,
    n: tl.constexpr, by: tl.constexpr, below: tl.constexpr, above: tl.constexpr,
):  # fmt: skip
    place = (rows // by) % n
    lower = tl.where(place > 0, rows - by, rows + (n - 1) * by if below == 0 else rows)
    upper = tl.where(place < n - 1, rows + by, rows - (n - 1) * by if above == 0 else rows)
    first = inside & ((place > 0) | (below != 1))[:, None]
    last = inside & ((place < n - 1) | (above != 1))[:, None]
    tl.store(to, tl.load(x + lower[:, None] * width + columns[None, :], first, 0.0), inside)
    tl.store(to + width, tl.load(x + upper[:, None] * width + columns[None, :], last, 0.0), inside)


@triton.jit
def _beside_backward(
    gradient, x, other, points, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXES: tl.constexpr,
    N_0: tl.constexpr, BY_0: tl.constexpr, BELOW_0: tl.constexpr, ABOVE_0: tl.constexpr,
    N_1: tl.constexpr, BY_1: tl.constexpr, BELOW_1: tl.constexpr, ABOVE_1: tl.constexpr,
    N_2: tl.constexpr, BY_2: tl.constexpr, BELOW_2: tl.constexpr, ABOVE_2: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (rows < points)[:, None] & (columns < width)[None, :]
    wide = (2 + 2 * AXES) * width
    total = tl.load(gradient + rows[:, None] * wide + columns[None, :], inside, 0.0)
    places = rows[:, None] * width + columns[None, :]
    tl.store(other + places, tl.load(gradient + rows[:, None] * wide + width + columns[None, :], inside, 0.0), inside)
    if AXES > 0:
        total += _to_neighbours(gradient + 2 * width, rows, columns, inside, width, wide, N_0, BY_0, BELOW_0, ABOVE_0)
    if AXES > 1:
        total += _to_neighbours(gradient + 4 * width, rows, columns, inside, width, wide, N_1, BY_1, BELOW_1, ABOVE_1)
    if AXES > 2:
        total += _to_neighbours(gradient + 6 * width, rows, columns, inside, width, wide, N_2, BY_2, BELOW_2, ABOVE_2)
    tl.store(x + places, total, inside)


@triton.jit
def _to_neighbours(
    gradient, rows, columns, inside, width, wide,
    n: tl.constexpr, by: tl.constexpr, below: tl.constexpr, above: tl.constexpr,
):  # fmt: skip
    place = (rows // by) % n
    # A point is the lower neighbour of the one above it, the last one that of the first where the axis wraps.
    upper = tl.where(place < n - 1, rows + by, rows - (n - 1) * by)
    lower = tl.where(place > 0, rows - by, rows + (n - 1) * by)
    is_lower = inside & ((place < n - 1) | (below == 0))[:, None]
    is_upper = inside & ((place > 0) | (above == 0))[:, None]
    total = tl.load(gradient + upper[:, None] * wide + columns[None, :], is_lower, 0.0)
    total += tl.load(gradient + width + lower[:, None] * wide + columns[None, :], is_upper, 0.0)
    if below == 2:
        total += tl.load(gradient + rows[:, None] * wide + columns[None, :], inside & (place == 0)[:, None], 0.0)
    if above == 2:
        last = inside & (place == n - 1)[:, None]
        total += tl.load(gradient + width + rows[:, None] * wide + columns[None, :], last, 0.0)
    return total
