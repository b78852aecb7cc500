"""Cells of a latent grid in equal tiles: windows of attention, and what a cell of a coarser grid holds.

A grid need not divide into tiles. Beyond the end of a periodic axis its beginning follows: the last tile holds cells of
the first, whose own results come from there. Beyond a wall there is nothing: cells of zeros, which no other cell hears.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

WALL = 2
"""Marks the cells that lie beyond a wall; 0 and 1 are what a shift brought to either side of it."""


def window_size(cells: int, most: int) -> int:
    """Cells of a window along an axis: all, if `most` allows; else the most that divide it, but not below half of
    `most`: then windows are as even as can be, and the last is filled up.
    """
    if cells <= most:
        return cells
    dividing = [size for size in range(most // 2 + 1, most + 1) if cells % size == 0]
    return max(dividing) if dividing else math.ceil(cells / math.ceil(cells / most))


@dataclass(frozen=True, eq=False)
class Tiling:
    """Tiles of `size` cells along each axis, moved up by `shift` cells. What a shift moves over the end of an axis
    comes back at its beginning: where there is a wall, `apart` says which cells of a tile lie at opposite ends.
    """

    shape: tuple[int, ...]
    size: tuple[int, ...]
    shift: tuple[int, ...]
    periodic: tuple[bool, ...]

    @property
    def tiles(self) -> tuple[int, ...]:
        return tuple(math.ceil(cells / size) for cells, size in zip(self.shape, self.size, strict=True))

    def divide(self, x: Float[Tensor, "B *cells D"]) -> Float[Tensor, "B *tiles W D"]:
        """The cells of each tile side by side."""
        for dim, (cells, tiles, size, shift, wraps) in enumerate(self._axes(), 1):
            beyond = tiles * size - cells
            if wraps:
                x = x.roll(-shift, dim) if shift else x
                x = torch.cat([x, x.narrow(dim, 0, beyond)], dim) if beyond else x
            else:
                x = F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, beyond)) if beyond else x
                x = x.roll(-shift, dim) if shift else x
        dimension = len(self.shape)
        parts = [part for pair in zip(self.tiles, self.size, strict=True) for part in pair]
        order = [0, *range(1, 2 * dimension, 2), *range(2, 2 * dimension + 1, 2), 2 * dimension + 1]
        together = x.reshape(x.shape[0], *parts, x.shape[-1]).permute(order)
        return together.reshape(x.shape[0], *self.tiles, math.prod(self.size), x.shape[-1])

    def join(self, x: Float[Tensor, "B *tiles W D"]) -> Float[Tensor, "B *cells D"]:
        """Every cell back at its place."""
        dimension = len(self.shape)
        apart = x.reshape(x.shape[0], *self.tiles, *self.size, x.shape[-1])
        order = [0, *(1 + part * dimension + axis for axis in range(dimension) for part in (0, 1)), 2 * dimension + 1]
        lengths = [tiles * size for tiles, size in zip(self.tiles, self.size, strict=True)]
        x = apart.permute(order).reshape(x.shape[0], *lengths, x.shape[-1])
        for dim, (cells, _, _, shift, wraps) in enumerate(self._axes(), 1):
            if wraps:
                x = x.narrow(dim, 0, cells)
                x = x.roll(shift, dim) if shift else x
            else:
                x = x.roll(shift, dim) if shift else x
                x = x.narrow(dim, 0, cells)
        return x

    def apart(self) -> Bool[Tensor, "tiles W W"] | None:
        """Which cells of a tile must not hear each other; None where all may."""
        marks = [self._marks(*axis) for axis in self._axes()]
        if not any(mark.any() for mark in marks):
            return None
        every = torch.stack(torch.meshgrid(*marks, indexing="ij"), -1).double()
        alone = Tiling(every.shape[:-1], self.size, (0,) * len(self.size), self.periodic)
        inside = alone.divide(every[None])[0].flatten(0, -3)
        return (inside[:, :, None] != inside[:, None]).any(-1)

    def distances(self) -> Float[Tensor, "*twice d"]:
        """Signed logarithms of the distances in cells between two cells of a tile, all there are: from 1 − w to w − 1.

        Where a tile holds the whole of a periodic axis, they are the shorter way round.
        """
        axes = []
        for cells, _, size, _, wraps in self._axes():
            distance = torch.arange(1 - size, size, dtype=torch.float64)
            if wraps and size == cells:
                distance = (distance + cells // 2) % cells - cells // 2
            axes.append(distance.sign() * distance.abs().log1p())
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)

    def _axes(self) -> list[tuple[int, int, int, int, bool]]:
        return list(zip(self.shape, self.tiles, self.size, self.shift, self.periodic, strict=True))

    def _marks(self, cells: int, tiles: int, size: int, shift: int, wraps: bool) -> Tensor:
        """Of each place along an axis: cells of different marks are strangers."""
        place = torch.arange(tiles * size) + shift
        cell = place % (tiles * size)
        strangers = torch.where(cell >= cells, WALL, (place >= tiles * size).long())
        return torch.zeros_like(strangers) if wraps else strangers
