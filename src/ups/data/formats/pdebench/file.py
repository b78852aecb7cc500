"""What PDEBench's files share: a file of ours says what it holds, of another's its layout and its task do.

Tensor and CFD files have coordinates: `x-coordinate` … in float32, `t-coordinate` with one entry too many.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import h5py
import torch
from jaxtyping import Float
from torch import Tensor

from ups.data.formats.description import check_agrees, described
from ups.data.formats.hdf5 import centred_axis, coordinate, even_times, open_file, rounded
from ups.data.formats.pdebench.published import as_task
from ups.data.formats.reading import LazyFile
from ups.errors import UserError
from ups.fields import AXES, Grid, Header, TaskSpec


class PDEBenchFile(LazyFile):
    """`shape` is that of the trajectories' array: samples, times, space. `stored` are the names of channels and static
    fields in the file, which a task may call otherwise.
    """

    shape: tuple[int, ...]
    stored: tuple[tuple[str, ...], tuple[str, ...]]

    def __init__(self, path: str | Path, task: str | TaskSpec | None = None) -> None:
        self.path = Path(path)
        with open_file(self.path) as file:
            key, self.shape = self.look(file)
            self.count = int(self.shape[0])
            ours = described(file, self.path)
            if ours is None:
                self.header = self.understood(file, task)
            else:
                self.stored = (ours.channels, ours.static)
                check_agrees(key, self.shape[1:], self.expected(ours), self.path)
                self.header = as_task(ours, task, self.path)

    @abstractmethod
    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        """The array that says the shape, and the shape; arrays that do not fit together are refused."""

    @abstractmethod
    def understood(self, file: h5py.File, task: str | TaskSpec | None) -> Header:
        """The header of a file that others wrote."""

    def expected(self, header: Header) -> tuple[int, ...]:
        """The shape that a description says one trajectory has."""
        return (len(header.times), *header.grid.shape)


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
