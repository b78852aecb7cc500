"""What a spectral block does at each point by itself, between its products.

    modulated   h = (1 + γ) ⊙ x + β
    activated   a = σ(z + b)
    gated       y = x + (1 + g) ⊙ (o + b)

γ, β and g are a sample's own, b everybody's. By torch's operations the gradients of one of these are four passes over
the field, two of them sums, which take a GPU longer than the products between them. There, in training, each is one
pass by a kernel of ours (`pointwise_kernel`); elsewhere torch's operations compute the same, and can be differentiated
twice, by whoever looks for a start or a parameter.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ups.kernels import INSTALLED, differentiable
from ups.models.precision import product

if INSTALLED:
    from ups.models.operator import pointwise_kernel
else:
    pointwise_kernel = None

FLOOR = -60.0
"""σ is zero to all digits below; from −87 on it, and its gradient, would be denormal numbers, which make products on a
CPU several times slower. Muon's larger weights lead there. A GPU does not mind them, and is spared the passes."""


def modulated(
    x: Float[Tensor, "B *space D"], gain: Float[Tensor, "B D"], shift: Float[Tensor, "B D"], training: bool
) -> Float[Tensor, "B *space D"]:
    if training and (kernel := differentiable(pointwise_kernel, x)) is not None:
        return kernel.modulate(x, gain, shift)
    return torch.addcmul(_spread(shift, x), x, 1 + _spread(gain, x))


def activated(
    x: Float[Tensor, "B *space I"],
    weight: Float[Tensor, "H I"],
    bias: Float[Tensor, " H"],
    dtype: torch.dtype | None,
    training: bool,
) -> Float[Tensor, "B *space H"]:
    """σ(x Wᵀ + b), the product rounded to `dtype`."""
    if training and dtype is None and (kernel := differentiable(pointwise_kernel, x)) is not None:
        return kernel.activate(F.linear(x, weight), bias)
    inner = product(x, weight, bias, dtype)
    return F.silu(inner.clamp_min(FLOOR) if inner.device.type == "cpu" else inner)


def gated(
    x: Float[Tensor, "B *space D"],
    gate: Float[Tensor, "B D"],
    active: Float[Tensor, "B *space H"],
    weight: Float[Tensor, "D H"],
    bias: Float[Tensor, " D"],
    dtype: torch.dtype | None,
    training: bool,
) -> Float[Tensor, "B *space D"]:
    """x + (1 + g) ⊙ (a Wᵀ + b), the product rounded to `dtype`."""
    if training and dtype is None and (kernel := differentiable(pointwise_kernel, x)) is not None:
        return kernel.gate(x, gate, F.linear(active, weight), bias)
    return torch.addcmul(x, 1 + _spread(gate, x), product(active, weight, bias, dtype))


def _spread(numbers: Float[Tensor, "B D"], like: Float[Tensor, "B *space D"]) -> Float[Tensor, "B *ones D"]:
    return numbers.view(numbers.shape[0], *(1,) * (like.dim() - 2), -1)
