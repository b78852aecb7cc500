"""The kernels of `pointwise`, by Triton: one pass forwards, one backwards.

A program has a tile of points of one sample with all channels. Sums over points are written tile by tile and added up
by torch afterwards, in an order that is always the same: no digit depends on which program is first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

NAME = "the kernels of a block's points"
TILE = 4096
"""Numbers of a tile, its channels rounded up to a power of two."""
TILES = 32
"""Of one sample at most; of more points a program has several tiles, so that few sums are left to add up."""

Field = Float[Tensor, "B *space D"]
Numbers = Float[Tensor, "B D"]
Bias = Float[Tensor, " D"]


def modulate(x: Field, gain: Numbers, shift: Numbers) -> Field:
    return _Modulated.apply(x, gain, shift)  # pyright: ignore[reportReturnType]


def activate(inner: Field, bias: Bias) -> Field:
    return _Activated.apply(inner, bias)  # pyright: ignore[reportReturnType]


def gate(x: Field, gates: Numbers, outer: Field, bias: Bias) -> Field:
    return _Gated.apply(x, gates, outer, bias)  # pyright: ignore[reportReturnType]


class _Modulated(Function):
    @staticmethod
    def forward(ctx: Any, x: Field, gain: Numbers, shift: Numbers) -> Field:  # pyright: ignore[reportIncompatibleMethodOverride]
        x = x.contiguous()
        ctx.save_for_backward(x, gain)
        out = torch.empty_like(x)
        _launch(_modulate, x, x, gain, shift, out, gain.stride(0), shift.stride(0))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Field) -> tuple[Field, Numbers, Numbers]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, gain = ctx.saved_tensors
        out, sums = torch.empty_like(x), _sums(x)
        _launch(_modulate_backward, x, gradient.contiguous(), x, gain, out, sums, gain.stride(0))
        of_gain, of_shift = sums.sum(2)
        return out, of_gain, of_shift


class _Activated(Function):
    @staticmethod
    def forward(ctx: Any, inner: Field, bias: Bias) -> Field:  # pyright: ignore[reportIncompatibleMethodOverride]
        inner = inner.contiguous()
        ctx.save_for_backward(inner, bias)
        out = torch.empty_like(inner)
        _launch(_activate, inner, inner, bias, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Field) -> tuple[Field, Bias]:  # pyright: ignore[reportIncompatibleMethodOverride]
        inner, bias = ctx.saved_tensors
        out, sums = torch.empty_like(inner), _sums(inner)[0]
        _launch(_activate_backward, inner, gradient.contiguous(), inner, bias, out, sums)
        return out, sums.sum((0, 1))


class _Gated(Function):
    @staticmethod
    def forward(ctx: Any, x: Field, gates: Numbers, outer: Field, bias: Bias) -> Field:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, outer = x.contiguous(), outer.contiguous()
        ctx.save_for_backward(gates, outer, bias)
        out = torch.empty_like(x)
        _launch(_gate, x, x, gates, outer, bias, out, gates.stride(0))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Field) -> tuple[Field, Numbers, Field, Bias]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gates, outer, bias = ctx.saved_tensors
        out, sums = torch.empty_like(outer), _sums(outer)
        _launch(_gate_backward, outer, gradient.contiguous(), gates, outer, bias, out, sums, gates.stride(0))
        return gradient, sums[0].sum(1), out, sums[1].sum((0, 1))


def try_out(device: torch.device) -> None:
    """Launch each of them once."""
    x, numbers, bias = (torch.zeros(s, device=device, requires_grad=True) for s in ((1, 2, 16), (1, 16), (16,)))
    with torch.enable_grad():
        h = modulate(x, numbers, numbers)
        torch.autograd.grad(gate(x, numbers, activate(h, bias), bias).sum(), [x, numbers, bias])


def _sizes(x: Field) -> tuple[int, int, int, int]:
    """Points and channels; points of a tile, tiles of a program."""
    points, width = x[0, ..., 0].numel(), x.shape[-1]
    rows = max(1, TILE // triton.next_power_of_2(width))
    return points, width, rows, triton.cdiv(triton.cdiv(points, rows), TILES)


def _sums(x: Field) -> Float[Tensor, "2 B tiles D"]:
    """Room for two sums of each program."""
    points, width, rows, loops = _sizes(x)
    return torch.empty(2, len(x), triton.cdiv(points, rows * loops), width, device=x.device)


def _launch(kernel: Callable[..., None], x: Field, *arguments: Any) -> None:
    points, width, rows, loops = _sizes(x)
    grid = (len(x), triton.cdiv(points, rows * loops))
    launched: Any = kernel
    with torch.cuda.device_of(x):
        launched[grid](*arguments, points, width, ROWS=rows, COLUMNS=triton.next_power_of_2(width), LOOPS=loops)


@triton.jit
def _modulate(
    x, gain, shift, out, by_gain, by_shift, points, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    sample, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    there = columns < width
    factor = 1 + tl.load(gain + sample * by_gain + columns, there, 0.0)
    added = tl.load(shift + sample * by_shift + columns, there, 0.0)
    for loop in range(LOOPS):
        rows = (tl.program_id(1) * LOOPS + loop) * ROWS + tl.arange(0, ROWS)
        inside = (rows < points)[:, None] & there[None, :]
        places = (sample * points + rows)[:, None] * width + columns[None, :]
        tl.store(out + places, tl.load(x + places, inside, 0.0) * factor[None, :] + added[None, :], inside)


@triton.jit
def _modulate_backward(
    gradient, x, gain, out, sums, by_gain, points, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    sample, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    there = columns < width
    factor = 1 + tl.load(gain + sample * by_gain + columns, there, 0.0)
    of_gain = tl.zeros((COLUMNS,), tl.float32)
    of_shift = tl.zeros((COLUMNS,), tl.float32)
    for loop in range(LOOPS):
        rows = (tl.program_id(1) * LOOPS + loop) * ROWS + tl.arange(0, ROWS)
        inside = (rows < points)[:, None] & there[None, :]
        places = (sample * points + rows)[:, None] * width + columns[None, :]
        upstream = tl.load(gradient + places, inside, 0.0)
        tl.store(out + places, upstream * factor[None, :], inside)
        of_gain += tl.sum(upstream * tl.load(x + places, inside, 0.0), 0)
        of_shift += tl.sum(upstream, 0)
    place = (sample * tl.num_programs(1) + tl.program_id(1)) * width + columns
    tl.store(sums + place, of_gain, there)
    tl.store(sums + tl.num_programs(0) * tl.num_programs(1) * width + place, of_shift, there)


@triton.jit
def _activate(
    inner, bias, out, points, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOOPS: tl.constexpr
):  # fmt: skip
    sample, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    there = columns < width
    added = tl.load(bias + columns, there, 0.0)
    for loop in range(LOOPS):
        rows = (tl.program_id(1) * LOOPS + loop) * ROWS + tl.arange(0, ROWS)
        inside = (rows < points)[:, None] & there[None, :]
        places = (sample * points + rows)[:, None] * width + columns[None, :]
        z = tl.load(inner + places, inside, 0.0) + added[None, :]
        tl.store(out + places, z * tl.sigmoid(z), inside)


@triton.jit
def _activate_backward(
    gradient, inner, bias, out, sums, points, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    sample, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    there = columns < width
    added = tl.load(bias + columns, there, 0.0)
    of_bias = tl.zeros((COLUMNS,), tl.float32)
    for loop in range(LOOPS):
        rows = (tl.program_id(1) * LOOPS + loop) * ROWS + tl.arange(0, ROWS)
        inside = (rows < points)[:, None] & there[None, :]
        places = (sample * points + rows)[:, None] * width + columns[None, :]
        z = tl.load(inner + places, inside, 0.0) + added[None, :]
        share = tl.sigmoid(z)
        passed = tl.load(gradient + places, inside, 0.0) * share * (1 + z * (1 - share))
        tl.store(out + places, passed, inside)
        of_bias += tl.sum(passed, 0)
    place = (sample * tl.num_programs(1) + tl.program_id(1)) * width + columns
    tl.store(sums + place, of_bias, there)


@triton.jit
def _gate(
    x, gates, outer, bias, out, by_gate, points, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    sample, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    there = columns < width
    factor = 1 + tl.load(gates + sample * by_gate + columns, there, 0.0)
    added = factor * tl.load(bias + columns, there, 0.0)
    for loop in range(LOOPS):
        rows = (tl.program_id(1) * LOOPS + loop) * ROWS + tl.arange(0, ROWS)
        inside = (rows < points)[:, None] & there[None, :]
        places = (sample * points + rows)[:, None] * width + columns[None, :]
        o = tl.load(outer + places, inside, 0.0)
        tl.store(out + places, tl.load(x + places, inside, 0.0) + (o * factor[None, :] + added[None, :]), inside)


@triton.jit
def _gate_backward(
    gradient, gates, outer, bias, out, sums, by_gate, points, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    sample, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    there = columns < width
    factor = 1 + tl.load(gates + sample * by_gate + columns, there, 0.0)
    added = tl.load(bias + columns, there, 0.0)
    of_gate = tl.zeros((COLUMNS,), tl.float32)
    of_bias = tl.zeros((COLUMNS,), tl.float32)
    for loop in range(LOOPS):
        rows = (tl.program_id(1) * LOOPS + loop) * ROWS + tl.arange(0, ROWS)
        inside = (rows < points)[:, None] & there[None, :]
        places = (sample * points + rows)[:, None] * width + columns[None, :]
        upstream = tl.load(gradient + places, inside, 0.0)
        passed = upstream * factor[None, :]
        tl.store(out + places, passed, inside)
        of_gate += tl.sum(upstream * (tl.load(outer + places, inside, 0.0) + added[None, :]), 0)
        of_bias += tl.sum(passed, 0)
    place = (sample * tl.num_programs(1) + tl.program_id(1)) * width + columns
    tl.store(sums + place, of_gate, there)
    tl.store(sums + tl.num_programs(0) * tl.num_programs(1) * width + place, of_bias, there)
