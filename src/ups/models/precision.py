"""Which products of a model may be rounded, and which may not.

`training.precision=bfloat16` rounds the factors of the products that go through `product` and those of attention: a
block's `products` is the type they take there. All else keeps the type of the state: the field, the residual stream,
norms, modulation, spectral transforms and mixing, stem, head, losses, gradients of weights, averages and reductions. A
rounded residual stream cost a prototype six times the rollout error; a rounded increment to it is small beside it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def product(
    x: Float[Tensor, "*B I"],
    weight: Float[Tensor, "O I"],
    bias: Float[Tensor, " O"] | None,
    dtype: torch.dtype | None,
) -> Float[Tensor, "*B O"]:
    """x Wᵀ + b with factors and result rounded to `dtype` (None: as they are); the sum within is float32 or wider."""
    if dtype is None:
        return F.linear(x, weight, bias)
    return F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
