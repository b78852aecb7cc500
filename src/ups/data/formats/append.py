"""What every HDF5 writer does alike: check what it is given, append it, and leave a whole file or none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from ups.data.formats.description import ATTRIBUTE, to_json
from ups.data.formats.hdf5 import WholeFile, check_finite
from ups.errors import UserError
from ups.fields import Batch, Header


class HDF5Writer(WholeFile, ABC):
    """Writes `count` trajectories with this header, batch after batch.

    A layout says what it cannot hold (`refuse`), makes the empty arrays (`lay_out`) and fills them (`put`). The header
    goes into the root attribute `ups`; its plain notes are root attributes too, for people who look with other tools.
    """

    def __init__(self, path: str | Path, header: Header, count: int) -> None:
        path = Path(path)
        if count < 1:
            raise UserError(f"{path}: there are no trajectories to write; give at least one")
        for axis in (header.times, *header.grid.positions):
            if not (torch.isfinite(axis).all() and (axis.diff() > 0).all()):
                raise UserError(f"{path}: times and grid positions must be finite and increasing")
        self.header, self.count, self._written = self.kept(header), count, 0
        self.refuse(path)
        super().__init__(path)
        try:
            for name, value in header.notes.items():
                if isinstance(value, str | int | float):
                    self.file.attrs[name] = value
            self.file.attrs[ATTRIBUTE] = to_json(self.header)
            self.lay_out()
        except BaseException:
            self.discard()
            raise

    @staticmethod
    def kept(header: Header) -> Header:
        """The header of what the layout keeps of such data: all, unless it says otherwise."""
        return header

    def refuse(self, path: Path) -> None:
        """Raise a UserError if the layout cannot hold such data at all."""

    @abstractmethod
    def lay_out(self) -> None:
        """Make the file's arrays and attributes."""

    @abstractmethod
    def put(self, start: int, batch: Batch) -> None:
        """Write trajectories start, start + 1, …; the batch is checked and on the CPU."""

    def write(self, batch: Batch) -> None:
        """The next trajectories."""
        batch = batch.to("cpu")
        self._check(batch)
        self.put(self._written, batch)
        self._written += len(batch)

    def _check(self, batch: Batch) -> None:
        header, start = self.header, self._written
        if start + len(batch) > self.count:
            raise UserError(f"{self.path}: more than the {self.count} trajectories announced were given")
        expected = (len(header.times), *header.grid.shape, len(header.channels))
        if tuple(batch.values.shape[1:]) != expected:
            raise UserError(
                f"{self.path}: trajectories have shape {tuple(batch.values.shape[1:])}, the file's is {expected} "
                "(time, space, channels)"
            )
        if not (batch.times == header.times).all():
            raise UserError(f"{self.path}: trajectories have other times than the file; write them to another file")
        if set(batch.parameters) != set(header.parameters) or not set(header.static) <= set(batch.static):
            raise UserError(
                f"{self.path}: trajectories have parameters {sorted(batch.parameters)} and static fields "
                f"{sorted(batch.static)}, the file's are {sorted(header.parameters)} and {sorted(header.static)}"
            )
        if not set(header.forcings) <= set(batch.forcings) or (header.masked and batch.mask is None):
            raise UserError(
                f"{self.path}: trajectories have forcings {sorted(batch.forcings)} and "
                f"{_mask(batch.mask is not None)}, "
                f"the file's are {sorted(header.forcings)} and {_mask(header.masked)}; write all that its header names"
            )
        for name, value in header.parameters.items():
            if value is not None and not (batch.parameters[name] == value).all():
                raise UserError(
                    f"{self.path}: {name} is {value} in this file and not in every trajectory given; "
                    "write one file a value, or a layout that keeps one a trajectory"
                )
        rows = np.arange(start, start + len(batch))
        for channel, name in enumerate(header.channels):
            check_finite(batch.values[..., channel].numpy(), rows, f"channel {name!r}", self.path)
        for name in header.static:
            check_finite(batch.static[name].numpy(), rows, f"static field {name!r}", self.path)

    def array(self, name: str, shape: tuple[int, ...]) -> None:
        """An empty array, contiguous as published, in the header's precision; disk space is taken when it is filled."""
        self.file.create_dataset(name, shape, dtype="<f8" if self.header.dtype == torch.float64 else "<f4")

    def fill(self, name: str, start: int, values: Shaped[Tensor, "B ..."]) -> None:
        """Rows start, start + 1, … of an array."""
        self.file[name][start : start + len(values)] = values.numpy()  # pyright: ignore[reportIndexIssue]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._written != self.count:
            self.discard()
            raise UserError(f"{self.path}: {self._written} of the {self.count} trajectories announced were given")
        super().__exit__(kind, error, trace)


def _mask(there: bool) -> str:
    return "a mask" if there else "no mask"
