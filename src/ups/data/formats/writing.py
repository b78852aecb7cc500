"""What every writer does alike: check what it is given, append it, and leave a whole file or none."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import h5py
import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from ups.data.formats.description import ATTRIBUTE, to_json
from ups.data.formats.hdf5 import stored_type
from ups.data.formats.reading import check_finite, inside
from ups.durable import sync
from ups.errors import UserError
from ups.fields import Batch, Header


class Writer(ABC):
    """Writes `count` trajectories with this header, piece by piece, in bounded memory, in their order.

        with TensorWriter(path, header, count) as writer:
            writer.write(batch)

    The file appears under its name when the block ends well, and then holds `count` trajectories; else nothing does. An
    existing one is refused. A layout says what it `keeps` beside channels, and what it cannot hold (`refuse`).
    """

    keeps: ClassVar[tuple[str, ...]] = ("static", "forcings", "mask")

    def __init__(self, path: str | Path, header: Header, count: int) -> None:
        self.path = path = Path(path)
        if count < 1:
            raise UserError(f"{path}: there are no trajectories to write; give at least one")
        own_times = () if header.own_times is None else header.own_times
        for axis in (header.times, *own_times, *header.grid.positions):
            if not (torch.isfinite(axis).all() and (axis.diff() > 0).all()):
                raise UserError(f"{path}: times and grid positions must be finite and increasing")
        self.header, self.count, self._written = self.kept(header), count, 0
        self.refuse(path)
        if path.exists():
            raise UserError(f"{path} exists and is not overwritten; remove it or choose another path")
        if not path.parent.is_dir():
            raise UserError(f"{path}: the folder {path.parent} is not there; make it or choose another path")

    @classmethod
    def kept(cls, header: Header) -> Header:
        """The header of what the layout keeps of such data, and the one its file carries."""
        return replace(
            header,
            static=header.static if "static" in cls.keeps else (),
            forcings=header.forcings if "forcings" in cls.keeps else {},
            own_times=header.own_times if "own_times" in cls.keeps else None,
            masked=header.masked and "mask" in cls.keeps,
        )

    @abstractmethod
    def refuse(self, path: Path) -> None:
        """Raise a UserError if the layout cannot hold such data at all."""

    @abstractmethod
    def put(self, start: int, batch: Batch) -> None:
        """Write trajectories start, start + 1, …; the batch is checked, on the CPU, and holds what is kept alone."""

    @abstractmethod
    def finish(self) -> None:
        """All trajectories are written: let the file appear."""

    @abstractmethod
    def discard(self) -> None:
        """Leave nothing but a file that has appeared."""

    def write(self, batch: Batch) -> None:
        batch = batch.to("cpu")
        self._check(batch)
        batch = replace(
            batch,
            static={name: batch.static[name] for name in self.header.static},
            forcings={name: batch.forcings[name] for name in self.header.forcings},
        )
        rows = np.arange(self._written, self._written + len(batch))
        batch = inside(batch, rows, self.path)
        check_finite(batch, self.header.channels, rows, self.path)
        self.put(self._written, batch)
        self._written += len(batch)

    def _check(self, batch: Batch) -> None:
        header = self.header
        if self._written + len(batch) > self.count:
            raise UserError(f"{self.path}: more than the {self.count} trajectories announced were given")
        expected = (len(header.times), *header.grid.shape, len(header.channels))
        if tuple(batch.values.shape[1:]) != expected:
            raise UserError(
                f"{self.path}: trajectories have shape {tuple(batch.values.shape[1:])}, the file's is {expected} "
                "(time, space, channels)"
            )
        own = header.own_times
        if not (batch.times == (header.times if own is None else own[self._written :][: len(batch)])).all():
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._written != self.count:
                raise UserError(f"{self.path}: {self._written} of the {self.count} trajectories announced were given")
            if kind is None:
                self.finish()
        finally:
            self.discard()


class HDF5Writer(Writer):
    """Writes under a temporary name, synced and renamed at the end.

    A layout makes the empty arrays (`lay_out`) and fills them (`put`). The header goes into the root attribute `ups`;
    its plain notes are root attributes too, for people who look with other tools.
    """

    def __init__(self, path: str | Path, header: Header, count: int) -> None:
        super().__init__(path, header, count)
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        self.file = h5py.File(self._temporary, "w")
        try:
            for name, value in header.notes.items():
                if isinstance(value, str | int | float):
                    self.file.attrs[name] = value
            self.file.attrs[ATTRIBUTE] = to_json(self.header)
            self.lay_out()
        except BaseException:
            self.discard()
            raise

    @abstractmethod
    def lay_out(self) -> None:
        """Make the file's arrays and attributes."""

    def array(self, name: str, shape: tuple[int, ...]) -> None:
        """An empty array, contiguous as published, in the header's precision; disk space is taken when it is filled."""
        self.file.create_dataset(name, shape, dtype=stored_type(self.header.dtype))

    def fill(self, name: str, start: int, values: Shaped[Tensor, "B ..."]) -> None:
        """Rows start, start + 1, … of an array."""
        self.file[name][start : start + len(values)] = values.numpy()  # pyright: ignore[reportIndexIssue]

    def finish(self) -> None:
        self.file.flush()
        self.file.close()
        sync(self._temporary)
        self._temporary.rename(self.path)
        sync(self.path.parent)

    def discard(self) -> None:
        with suppress(OSError, RuntimeError):  # on a full disk closing fails too, which would hide the first failure
            self.file.close()
        self._temporary.unlink(missing_ok=True)


def _mask(there: bool) -> str:
    return "a mask" if there else "no mask"
