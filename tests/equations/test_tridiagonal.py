"""Cyclic reduction against dense elimination."""

import pytest
import torch

from ups.equations.schemes.tridiagonal import Tridiagonal


@pytest.mark.parametrize("n", [1, 2, 3, 8, 37, 64, 127])
def test_cyclic_reduction_solves_systems_whose_diagonal_dominates(n):
    generator = torch.Generator().manual_seed(n)
    lower, upper, right = torch.rand(3, 5, n, dtype=torch.float64, generator=generator) - 0.5
    lower[:, 0] = upper[:, -1] = 0.0
    diagonal = 1.5 + torch.rand(5, n, dtype=torch.float64, generator=generator)
    matrix = torch.diag_embed(diagonal) + torch.diag_embed(lower[:, 1:], -1) + torch.diag_embed(upper[:, :-1], 1)
    factors = Tridiagonal.factor(lower, diagonal, upper)
    # Diagonal at least 1.5 against neighbours of at most 1 together: the condition number is below 7, so rounding of
    # some 10 operations a sweep stays far below this.
    assert torch.allclose(factors.solve(right), torch.linalg.solve(matrix, right), atol=1e-13, rtol=0)
    assert torch.allclose(factors.solve(2 * right), 2 * factors.solve(right), atol=1e-13, rtol=0)
