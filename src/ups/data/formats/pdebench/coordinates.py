"""The coordinates of tensor and CFD files: `x-coordinate` … in float32, `t-coordinate` with one entry too many."""

from __future__ import annotations

from pathlib import Path

import h5py
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.formats.hdf5 import centred_axis, coordinate, even_times, rounded
from ups.errors import UserError
from ups.fields import AXES, Grid, Header


def stored_grid(file: h5py.File, key: str, shape: tuple[int, ...], path: Path) -> Grid:
    """The grid of the array `key`, whose spatial shape is given."""
    positions, extent = [], []
    for axis, n in zip(AXES[: len(shape)], shape, strict=True):
        stored = coordinate(file, f"{axis}-coordinate", path)
        if len(stored) != n:
            raise UserError(f"{path}: '{axis}-coordinate' has {len(stored)} entries, {key!r} has {n} along {axis}")
        centres, ends = centred_axis(stored)
        positions.append(centres)
        extent.append(ends)
    return Grid(tuple(positions), tuple(extent))


def stored_times(file: h5py.File, frames: int, path: Path) -> Float[Tensor, " T"]:
    """The first T entries of one too many."""
    stored = coordinate(file, "t-coordinate", path)
    if len(stored) not in (frames, frames + 1):
        raise UserError(f"{path}: 't-coordinate' has {len(stored)} entries for {frames} frames; give one a frame")
    return even_times(stored[:frames])


def write_coordinates(file: h5py.File, header: Header, times: bool) -> None:
    """As published; the exact values are in the attribute `ups`."""
    for axis, positions in zip(AXES[: header.grid.dimension], header.grid.positions, strict=True):
        file.create_dataset(f"{axis}-coordinate", data=rounded(positions))
    if times:
        extra = 2 * header.times[-1:] - header.times[-2:-1] if len(header.times) > 1 else header.times + 1
        file.create_dataset("t-coordinate", data=rounded(torch.cat((header.times, extra))))


def check_axes(header: Header, path: Path) -> None:
    """A list of one position could not be told from a damaged one."""
    for axis, n in zip(AXES[: header.grid.dimension], header.grid.shape, strict=True):
        if n < 2:
            raise UserError(f"{path}: axis {axis} has {n} point; PDEBench's layouts need at least two")
