"""Kernels of the spectral block and of draws on a GPU: torch's results, and the same bits every time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from ups.bench.roofline import Counting
from ups.data.draws import Draws
from ups.fields import Boundary, Grid, Side
from ups.kernels import INSTALLED, usable
from ups.models.geometry import Frame
from ups.models.operator import pointwise, spectral
from ups.models.operator.spectral import Bases, Spectral, beside, complex_as_real

pytestmark = pytest.mark.skipif(not (INSTALLED and torch.cuda.is_available()), reason="the kernels are a GPU's")

SHAPES = [(3, 37, 24), (2, 9, 70, 64), (2, 5000, 16), (1, 5, 6, 7, 8)]


def both(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Values and gradients of a function by kernels are those of torch's operations in float64."""
    ours = [tensor.detach().float().cuda().requires_grad_() for tensor in inputs]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    results = [function(*ours), function(*exact)]
    upstream = torch.randn_like(results[1])
    gradients = [
        torch.autograd.grad(results[0], ours, upstream.float().cuda()),
        torch.autograd.grad(results[1], exact, upstream),
    ]
    for found, wanted in zip((results[0], *gradients[0]), (results[1], *gradients[1]), strict=True):
        assert found.dtype == torch.float32
        assert float((found.cpu().double() - wanted).norm() / wanted.norm()) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_block_does_at_each_point_is_that_of_torch_with_its_gradients(shape: tuple[int, ...]) -> None:
    batch, width = shape[0], shape[-1]
    x, numbers = torch.randn(shape), torch.randn(batch, 3 * width)
    one, other = torch.randn(2 * width), torch.randn(width)
    wide, narrow = torch.randn(2 * width, width) / width**0.5, torch.randn(width, 2 * width) / width**0.5
    torch.set_float32_matmul_precision("highest")

    def block(x: Tensor, numbers: Tensor, wide: Tensor, one: Tensor, narrow: Tensor, other: Tensor) -> Tensor:
        gain, shift, gate = numbers.chunk(3, -1)
        active = pointwise.activated(pointwise.modulated(x, gain, shift, True), wide, one, None, True)
        return pointwise.gated(x, gate, active, narrow, other, None, True)

    both(block, x, numbers, wide, one, narrow, other)


def test_the_matrix_of_a_complex_product_is_that_of_torch_with_its_gradient() -> None:
    both(complex_as_real, torch.randn(5, 24, 48))


@pytest.mark.parametrize(("shape", "kinds"), list(product(SHAPES, ["pp", "vv", "ff", "vf", "fv"])))
def test_neighbours_are_those_of_torch_with_their_gradients(shape: tuple[int, ...], kinds: str) -> None:
    sides = {"p": Side("periodic"), "v": Side("value"), "f": Side("flux")}
    boundary = Boundary(tuple((sides[kinds[0]], sides[kinds[1]]) for _ in shape[1:-1]))
    for axes in ((), (0,), tuple(range(len(shape) - 2))):
        bases = Bases("task", boundary, axes, (), ())
        both(lambda x, mixed, bases=bases: beside(x, mixed, bases, True), torch.randn(shape), torch.randn(shape))


@pytest.mark.parametrize("modes", [3, 64])
def test_a_block_in_three_dimensions_is_that_of_torch_with_its_gradients(modes: int) -> None:
    """On a box with two periodic axes and walls, with neighbours along the bounded axis or along all three."""
    around, walls = (Side("periodic"), Side("periodic")), (Side("value"), Side("flux"))
    frame = Frame(Grid.cell_centred((8, 12, 10)), Boundary((around, around, walls)), (1, 1, 1))
    torch.manual_seed(0)
    architecture = Spectral({"box": frame}, width=16, modes=modes)
    exact = architecture.block().double().train()
    block = copy.deepcopy(exact).float().cuda()
    here, there = (
        architecture.tables("box", frame, lambda table, like=own.inner_bias: table.to(like)) for own in (exact, block)
    )
    assert here.local_axes == ((2,) if modes == 64 else (0, 1, 2))
    torch.set_float32_matmul_precision("highest")
    x, numbers, upstream = torch.randn(2, 8, 12, 10, 16), torch.randn(2, 48), torch.randn(2, 8, 12, 10, 16)
    found, wanted = (
        torch.autograd.grad(
            own(given := x.to(like).requires_grad_(), said := numbers.to(like).requires_grad_(), tables),
            [given, said, *own.parameters()],
            upstream.to(like),
        )
        for own, tables, like in ((block, there, block.inner_bias), (exact, here, exact.inner_bias))
    )
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours.cpu().double() - theirs).norm()) < 5e-6 * float(theirs.norm())


def test_kernels_are_used_where_gradients_are_asked_for_and_hidden_from_who_counts() -> None:
    x = torch.randn(2, 8, 16, device="cuda", requires_grad=True)
    assert usable(spectral.mixing_kernel, x) is spectral.mixing_kernel
    with Counting():
        assert usable(spectral.mixing_kernel, x) is None
    assert usable(spectral.mixing_kernel, x.cpu()) is None


def test_a_gradient_has_the_same_bits_every_time() -> None:
    x, numbers = torch.randn(16, 64, 64, 64, device="cuda"), torch.randn(16, 192, device="cuda")
    gain, shift, _ = numbers.requires_grad_().chunk(3, -1)
    x.requires_grad_()
    found = [
        torch.autograd.grad(pointwise.modulated(x, gain, shift, True).square().sum(), [x, numbers]) for _ in range(3)
    ]
    for again in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], again, strict=True))


@pytest.mark.parametrize("size", [1, 2, 7, 600, 4096])
def test_normal_numbers_are_those_of_torch(size: int) -> None:
    step, slots = torch.tensor(7 + 12345678901), torch.tensor([0, 3, 5, 2**40 + 3])
    for seed in range(4):
        here, there = (
            Draws(seed, "operator", step.to(d), slots.to(d)).normal("noise", (size,)) for d in ("cpu", "cuda")
        )
        assert torch.allclose(here, there.cpu(), rtol=2e-7, atol=0)
