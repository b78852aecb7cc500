"""Write PDEGym's files: HDF5 that netCDF4 reads, with named dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np

from ups.data.formats.pdegym.reader import AIRFOIL, HELMHOLTZ, fitting, sample_shape
from ups.data.formats.writing import HDF5Writer
from ups.errors import UserError
from ups.fields import Batch


class GymWriter(HDF5Writer):
    """Writes the family of files that such data are published in; see `reader.py` for which that is.

    Every axis is a dimension that netCDF4 knows by name: member, time, channel, x, y; time, x and y have their
    values. Helmholtz's file has a group a sample instead, as published.
    """

    keeps: ClassVar[tuple[str, ...]] = ("static", "mask")

    def refuse(self, path: Path) -> None:
        self.family = fitting(self.header, path)
        for name, value in self.header.parameters.items():
            if value is None and not (self.family == HELMHOLTZ and name == "bc"):
                raise UserError(f"{path}: PDEGym's files have no place for {name}, which differs between trajectories")

    def lay_out(self) -> None:
        if self.family == HELMHOLTZ:
            return
        header, family = self.header, self.family
        sizes = {"member": self.count, "time": len(header.times), "channel": len(header.channels)}
        sizes |= {"x": header.grid.shape[0], "y": header.grid.shape[1]}
        if family == AIRFOIL:
            sizes["channel"] = 2
        self.array(family.variable, (self.count, *sample_shape(family, header)))
        axes = ["member", *([] if family.end is None else ["time"]), *(["channel"] if family.axis else []), "x", "y"]
        if family == AIRFOIL:
            axes = ["member", "channel", "x", "y"]
        self._name_axes(family.variable, axes, sizes)
        if family.static and family != AIRFOIL:
            self.array(family.static, (self.count, *header.grid.shape))
            self._name_axes(family.static, ["member", "x", "y"], sizes)

    def _name_axes(self, name: str, axes: list[str], sizes: dict[str, int]) -> None:
        item = self.file[name]
        assert isinstance(item, h5py.Dataset)
        values = {"time": self.header.times, "x": self.header.grid.positions[0], "y": self.header.grid.positions[1]}
        for number, axis in enumerate(axes):
            if axis not in self.file:
                if axis in values:
                    scale = self.file.create_dataset(axis, data=values[axis].cpu().numpy())
                    scale.make_scale(axis)
                else:
                    scale = self.file.create_dataset(axis, data=np.zeros(sizes[axis], dtype=">f4"))
                    # The words by which netCDF4 knows a dimension that has no variable of its own.
                    scale.make_scale(f"This is a netCDF dimension but not a netCDF variable.{sizes[axis]:10d}")
            item.dims[number].attach_scale(self.file[axis])

    def put(self, start: int, batch: Batch) -> None:
        family, values = self.family, batch.values
        if family == HELMHOLTZ:
            for row in range(len(batch)):
                group = self.file.create_group(f"Sample_{start + row}")
                group["a"] = batch.static[self.header.static[0]][row].numpy()
                group["u"] = values[row, 0, ..., 0].numpy()
                group["bc"] = float(batch.parameters["bc"][row])
            return
        if family == AIRFOIL:
            shape = batch.static[self.header.static[0]]
            if batch.mask is None or not bool((batch.mask == (shape < 0.5)).all()):
                raise UserError(f"{self.path}: the mask must be where {self.header.static[0]!r} is below one half")
            self.file[family.variable][start : start + len(batch), 0] = shape.numpy()  # pyright: ignore[reportIndexIssue]
            self.file[family.variable][start : start + len(batch), 1] = values[:, 0, ..., 0].numpy()  # pyright: ignore[reportIndexIssue]
            return
        if family.end is None:
            values = values[:, 0]
        self.fill(family.variable, start, values.movedim(-1, 2) if family.axis else values[..., 0])
        if family.static:
            self.fill(family.static, start, batch.static[self.header.static[0]])
