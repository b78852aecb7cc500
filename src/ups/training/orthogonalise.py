"""Newton-Schulz: a matrix's singular values brought near 1 by products alone."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""p(σ) = aσ + bσ³ + cσ⁵ by K. Jordan (2024): steep at 0, so that few iterations do, which then stay about 1."""
ITERATIONS = 5
SMALLEST = 1e-7
"""A matrix of a smaller norm is not brought to 1: it is zero but for rounding."""


def orthogonalise(matrices: Float[Tensor, "*batch m n"]) -> Float[Tensor, "*batch m n"]:
    """U diag(σ) Vᵀ → U diag(p⁵(σ / ‖σ‖)) Vᵀ for each matrix of a batch: what was above 0.002 ends
    between 0.68 and 1.21, what was smaller has grown up to 485 times.

    Newton-Schulz in the matrices' own precision: in bfloat16, sharded and whole updates would differ by a tenth. Zero
    stays zero.
    """
    a, b, c = QUINTIC
    x = matrices.reshape(-1, *matrices.shape[-2:])
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x  # so that the Gram matrix is the smaller of the two
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp_min(SMALLEST)
    for _ in range(ITERATIONS):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).reshape(matrices.shape)
