"""Muon's kernel on a GPU: what the optimiser computes by torch's products in float64, or nothing if told to skip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ups.bench.roofline import Counting
from ups.training.muon import Muon, _has_kernel

muon_kernel = pytest.importorskip("ups.training.muon_kernel", exc_type=ImportError)
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="the kernel is a GPU's")

SHAPES = [(5, 12), (80, 40), (64, 64), (128, 64), (3, 64, 128), (2, 3, 40, 80), (128, 128), (192, 64), (4, 64, 192)]
ROUNDING = 15 * 2**-11
"""Of fifteen products whose factors have eleven bits, relative."""


@pytest.fixture(autouse=True)
def tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)
    muon_kernel.builds.cache_clear()


def optimiser_of(weight: nn.Parameter) -> Muon:
    return Muon([{"params": [weight], "weight_decay": 0.1, "orthogonal": True}], lr=0.02)


@pytest.mark.parametrize("shape", SHAPES)
def test_three_steps_are_those_of_float64(shape: tuple[int, ...]) -> None:
    draws = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=draws, dtype=torch.float64)
    exact, ours = nn.Parameter(start.clone()), nn.Parameter(start.float().cuda())
    if torch.cuda.get_device_properties(0).major == 9:  # with less memory, fewer shapes fit
        assert _has_kernel(ours)
    assert not _has_kernel(exact)
    optimisers = [optimiser_of(exact), optimiser_of(ours)]
    for _ in range(3):
        exact.grad = torch.randn(shape, generator=draws, dtype=torch.float64)
        ours.grad = exact.grad.float().cuda().mT.contiguous().mT  # as a product may leave it
        for optimiser in optimisers:
            optimiser.step()
    moved = (exact.detach() - start).norm()
    assert float((ours.detach().cpu() - exact).detach().norm() / moved) < ROUNDING
    momenta = [o.state[w]["momentum_buffer"].cpu().double() for o, w in zip(optimisers, (exact, ours), strict=True)]
    assert torch.allclose(momenta[0], momenta[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(48, 32, 64), (48, 64, 64), (192, 64, 128), (132, 128, 128)])
def test_the_same_matrices_give_the_same_bits_every_time(shape: tuple[int, ...]) -> None:
    start, gradient = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda")
    if not muon_kernel.fits(start):
        pytest.skip("this GPU's processors have no room for such matrices")
    rate, skipped = torch.full((), 0.02, device="cuda"), torch.zeros((), device="cuda")
    first, wrong = torch.zeros_like(start), torch.zeros((), dtype=torch.long, device="cuda")
    for number in range(500):
        weight, momentum = start.clone(), torch.zeros_like(start)
        muon_kernel.update(weight, momentum, gradient, rate, skipped, 0.95, 0.1, 1.0)
        first = weight if number == 0 else first
        wrong += (weight != first).any(-1).any(-1).sum()
    assert first.isfinite().all() and int(wrong) == 0


def test_a_flag_skips_a_step_and_zero_is_not_divided_by() -> None:
    weight = nn.Parameter(torch.randn(3, 40, 80, device="cuda"))
    optimiser = optimiser_of(weight)
    optimiser.state[weight]["momentum_buffer"].normal_()
    before = [weight.detach().clone(), optimiser.state[weight]["momentum_buffer"].clone()]
    weight.grad = torch.full_like(weight, torch.nan)
    optimiser.found_inf = torch.ones((), device="cuda")  # pyright: ignore[reportAttributeAccessIssue]
    optimiser.step()
    assert torch.equal(weight, before[0]) and torch.equal(optimiser.state[weight]["momentum_buffer"], before[1])
    optimiser.found_inf.zero_()  # pyright: ignore[reportAttributeAccessIssue]
    optimiser.state[weight]["momentum_buffer"].zero_()
    weight.grad.zero_()
    optimiser.step()
    assert torch.allclose(weight, before[0] * (1 - 0.02 * 0.1), rtol=1e-6, atol=0)


def test_operations_are_counted_as_torch_s_own() -> None:
    weight = nn.Parameter(torch.randn(3, 40, 80, device="cuda"))
    weight.grad = torch.randn_like(weight)
    with Counting() as counting:
        optimiser_of(weight).step()
    assert counting.flop == 3 * 5 * 2 * 40**2 * (2 * 80 + 40)


def test_what_no_processor_has_room_for_or_must_not_be_rounded_is_left_to_products() -> None:
    assert not _has_kernel(nn.Parameter(torch.zeros(128, 256, device="cuda")))
    assert not _has_kernel(nn.Parameter(torch.zeros(64, 64, device="cuda").T))
    torch.set_float32_matmul_precision("highest")
    assert not _has_kernel(nn.Parameter(torch.zeros(40, 80, device="cuda")))


def test_where_triton_cannot_build_torch_s_operations_are_used_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unbuilt:
        def __getitem__(self, grid: tuple[int]) -> None:
            raise RuntimeError("no C compiler was found\nand more")

    muon_kernel.builds.cache_clear()
    monkeypatch.setattr(muon_kernel, "_update", Unbuilt())
    weight = nn.Parameter(torch.randn(40, 80, device="cuda"))
    with pytest.warns(UserWarning, match=r"\(no C compiler was found\); torch's operations compute the same"):
        assert not _has_kernel(weight)
    assert optimiser_of(weight).kernels() == "0 of 1"
