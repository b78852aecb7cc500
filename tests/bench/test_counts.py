"""What a step computes and moves, against arithmetic done by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ups.bench.roofline import Counting, count_step
from ups.fields import Boundary, Grid
from ups.models.geometry import Frame
from ups.models.operator.spectral import Spectral


def test_a_linear_layer_costs_two_flop_a_weight_and_sample_and_three_products_with_its_backward_pass():
    layer, x = nn.Linear(32, 16, bias=False), torch.randn(8, 32, requires_grad=True)
    with Counting() as forward:
        layer(x)
    assert forward.flop == 2 * 8 * 32 * 16
    # y = xWᵀ, dx = dy W, dW = dyᵀ x
    still = torch.optim.SGD(layer.parameters())
    assert count_step(lambda: layer(x).sum().backward(), layer, still).flop == 3 * 2 * 8 * 32 * 16


def test_a_product_moves_its_factors_and_its_result():
    a, b = torch.randn(4, 8), torch.randn(8, 2)
    with Counting() as counting:
        _ = (a @ b).T  # the transpose is a view and moves nothing
    assert counting.moved == 4 * (4 * 8 + 8 * 2 + 4 * 2)


def test_a_product_of_a_batch_of_rows_moves_no_more_than_one_of_the_rows():
    rows, b = torch.randn(2, 3, 8), torch.randn(8, 2)
    with Counting() as counting:
        _ = rows @ b  # a product of matrices, seen as a batch again by a view that does not call itself one
    assert counting.moved == 4 * (6 * 8 + 8 * 2 + 6 * 2)


def test_a_broadcast_tensor_is_read_once():
    row = torch.randn(16).expand(64, 16)
    with Counting() as counting:
        torch.neg(row)
    assert counting.moved == 4 * 16 + 4 * 64 * 16


def test_complex_products_cost_four_times_as_much():
    a, b = (torch.randn(3, 5, 5, dtype=torch.complex64) for _ in range(2))
    with Counting() as counting:
        torch.bmm(a, b)
    assert counting.flop == 4 * 2 * 3 * 5**3


def test_fourier_transforms_cost_five_n_log_n_and_half_of_it_for_real_numbers():
    with Counting() as real:
        back = torch.fft.rfft(torch.randn(6, 64))
        torch.fft.irfft(back, n=64)
    assert real.flop == pytest.approx(2 * 0.5 * 5 * 6 * 64 * math.log2(64))


def test_a_spectral_block_costs_its_transforms_its_mixing_and_its_two_layers():
    width, modes, points, batch = 8, 4, 32, 3
    frame = Frame(Grid.cell_centred((points,)), Boundary.all("periodic", 1), (1,))
    spectral = Spectral({"waves": frame}, width=width, modes=modes)
    block, bases = spectral.block(), spectral.tables("waves", frame, lambda table: table.float())
    x, modulation = torch.randn(batch, points, width), torch.randn(batch, 3 * width)
    with Counting() as counting, torch.no_grad():
        block(x, modulation, bases)
    rows, many = 2 * modes, batch * width  # cosines and sines; what each transform is applied to
    transforms = 2 * (2 * rows * points * many)  # analysis and synthesis
    mixing = 2 * modes * batch * (2 * width) * (2 * width)  # (c, s) of every sample times its mode's matrix
    inner = 2 * batch * points * (4 * width) * (2 * width)  # h, mixed and two neighbours to the hidden width
    outer = 2 * batch * points * (2 * width) * width
    assert counting.flop == transforms + mixing + inner + outer


def test_attention_on_a_cpu_costs_two_products_and_five_in_the_backward_pass():
    """Scores and values; in the backward pass the scores again, and the gradients of values, scores, keys, queries."""
    batch, heads, tokens, width = 2, 3, 16, 8
    q, k, v = (torch.randn(batch, heads, tokens, width, requires_grad=True) for _ in range(3))
    product = 2 * batch * heads * tokens * tokens * width
    with Counting() as counting:
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        assert counting.flop == 2 * product
        out.sum().backward()
    assert counting.flop == 7 * product


def test_the_least_traffic_of_adamw_is_weights_eleven_times_and_what_is_kept_twice():
    layer = nn.Linear(32, 16, bias=False)
    x = torch.randn(8, 32)
    optimiser = torch.optim.AdamW(layer.parameters())

    def step() -> None:
        optimiser.zero_grad()
        layer(x).square().mean().backward()
        optimiser.step()

    counts = count_step(step, layer, optimiser)
    assert counts.parameters == 4 * 32 * 16
    assert counts.kept == 4 * (8 * 32 + 8 * 16)  # x for the weight's gradient, y for the square's
    assert counts.moments == 2 * counts.parameters  # AdamW's; its count of steps is no array
    assert counts.least == 11 * counts.parameters + 2 * counts.kept
