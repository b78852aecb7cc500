"""Tables that the operator is made of, against functions known in closed form."""

from __future__ import annotations

import math

import pytest
import torch

from ups.fields import Grid
from ups.models.bases import cell_widths, transforms
from ups.models.interpolation import axis_matrix, bringing_matrix, reader

SPAN = (0.0, 2.0)


def test_a_band_limited_periodic_field_survives_analysis_and_synthesis() -> None:
    x = Grid.cell_centred((24,), (SPAN,)).positions[0]
    theta = math.pi * x
    u = 0.7 + torch.cos(2 * theta) - 0.4 * torch.sin(5 * theta)
    analysis, synthesis = transforms(x, SPAN, True, 8)
    assert torch.allclose(synthesis @ (analysis @ u), u, rtol=0, atol=1e-13)
    coefficients = analysis @ u
    assert coefficients[[0, 4, 11]].tolist() == pytest.approx([0.7, 1.0, -0.4])


def test_half_waves_on_a_bounded_axis_have_the_coefficients_of_their_series() -> None:
    x = Grid.cell_centred((64,), (SPAN,)).positions[0]
    theta = math.pi * x / 2
    analysis, _ = transforms(x, SPAN, False, 8)
    assert (analysis @ torch.cos(3 * theta))[::2].tolist() == pytest.approx([0, 0, 0, 1, 0, 0, 0, 0], abs=1e-12)
    assert (analysis @ torch.sin(2 * theta))[1::2].tolist() == pytest.approx([0, 1, 0, 0, 0, 0, 0, 0], abs=1e-12)


@pytest.mark.parametrize("periodic", [True, False])
def test_quadrature_weights_fill_the_axis(periodic: bool) -> None:
    for grid in (Grid.cell_centred((10,), (SPAN,)), Grid.nodal((10,), (SPAN,))):
        widths = cell_widths(grid.positions[0], SPAN, periodic)
        assert float(widths.sum()) == pytest.approx(2.0)
        assert bool((widths > 0).all())


def test_cubics_are_interpolated_exactly_also_towards_the_walls() -> None:
    x = Grid.cell_centred((12,), (SPAN,)).positions[0]
    q = torch.tensor([0.0, 0.03, 0.9, 1.7, 2.0], dtype=torch.float64)

    def cubic(v: torch.Tensor) -> torch.Tensor:
        return 1 - v + 0.5 * v**2 - 0.3 * v**3

    assert torch.allclose(axis_matrix(x, SPAN, False, q, 3) @ cubic(x), cubic(q), rtol=0, atol=1e-12)


def test_periodic_interpolation_wraps_and_converges_with_fourth_order() -> None:
    def error(n: int) -> float:
        x = Grid.cell_centred((n,)).positions[0]
        q = torch.linspace(0, 1, 97, dtype=torch.float64)
        u = torch.sin(2 * math.pi * x)
        return float((axis_matrix(x, (0.0, 1.0), True, q, 3) @ u - torch.sin(2 * math.pi * q)).abs().max())

    assert math.log2(error(16) / error(32)) == pytest.approx(4.0, abs=0.2)


def test_scattered_points_give_what_matrices_along_the_axes_give() -> None:
    grid = Grid.cell_centred((8, 6))
    values = torch.randn(2, 8, 6, 3, dtype=torch.float64)
    target = Grid.nodal((5, 7))
    walls = {(1, 0): torch.tensor([2.0, torch.nan, 0.0]), (1, 1): torch.tensor([torch.nan, 1.0, 0.0])}
    for prescribed in ({}, walls):
        whole = reader(grid, (True, False), target, prescribed, values)(values)
        points = reader(grid, (True, False), target.points(), prescribed, values)(values)
        assert torch.allclose(points, whole.flatten(1, 2), rtol=0, atol=1e-13)
    on_wall = torch.tensor([2.0, 0.0], dtype=torch.float64).expand(2, 5, 2)  # y = 0
    assert torch.allclose(whole[:, :, 0, [0, 2]], on_wall, rtol=0, atol=1e-13)


def test_a_channel_that_is_free_at_a_wall_is_read_as_if_there_were_none() -> None:
    grid, points = Grid.cell_centred((9,)), torch.rand(40, 1, dtype=torch.float64)
    values = torch.randn(2, 9, 1, dtype=torch.float64)
    free = {(0, side): torch.tensor([torch.nan]) for side in (0, 1)}
    read, plain = (reader(grid, (False,), points, walls, values)(values) for walls in (free, {}))
    assert torch.allclose(read, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("points", [24, 31, 48, 100])
@pytest.mark.parametrize("periodic", [True, False])
def test_a_field_that_both_grids_resolve_is_brought_to_the_other(points: int, periodic: bool) -> None:
    """Waves are exact; cubics err by 3/128 (kh)⁴ between points, and by at most 20 times that beyond the outermost."""
    own = Grid.cell_centred((32,)).positions[0]
    given = (torch.arange(points, dtype=torch.float64) + 0.3) / points
    wave = 2 * math.pi * torch.tensor(2.0, dtype=torch.float64)
    there = bringing_matrix(given, (0.0, 1.0), periodic, own) @ torch.cos(wave * given)
    bound = 1e-12 if periodic else 20 * 3 / 128 * float(wave / min(points, 32)) ** 4
    assert float((there - torch.cos(wave * own)).abs().max()) < bound


@pytest.mark.parametrize("points", [33, 48, 64, 100, 256])
@pytest.mark.parametrize("periodic", [True, False])
def test_what_a_coarser_grid_cannot_hold_is_left_out_and_not_made_large(points: int, periodic: bool) -> None:
    """A smooth field has √(32/n) of its size on 32 of n points; nothing becomes more than 1/0.3 times as large."""
    own, given = Grid.cell_centred((32,)).positions[0], Grid.nodal((points,)).positions[0]
    matrix = bringing_matrix(given, (0.0, 1.0), periodic, own)
    assert float(torch.linalg.matrix_norm(matrix, 2)) <= math.sqrt(32 / points) / 0.3 + 1e-12
