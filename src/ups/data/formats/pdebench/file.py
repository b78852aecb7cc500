"""What PDEBench's files share: a file of ours says what it holds, of another's its layout and its task do."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import h5py

from ups.data.formats.description import check_agrees, described
from ups.data.formats.hdf5 import array, open_file, precision
from ups.data.formats.pdebench.published import as_task, check_fits, known_task
from ups.data.formats.reading import LazyFile
from ups.errors import UserError
from ups.fields import AXES, Header, TaskSpec


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
                known = known_task(task or self.task_name(file))
                check_fits(known, len(self.stored[0]), self.dimension, self.stored[1], self.path)
                self.header = Header(
                    task=known.name,
                    channels=known.channel_names,
                    static=known.static,
                    dtype=precision(array(file, key, self.path)),
                    **{"boundary": known.boundary, **self.understood(file, known)},
                )
            else:
                self.stored = (ours.channels, ours.static)
                check_agrees(key, self.shape[1:], self.expected(ours), self.path)
                self.header = as_task(ours, task, self.path)

    @property
    def dimension(self) -> int:
        return len(self.shape) - 2

    @abstractmethod
    def look(self, file: h5py.File) -> tuple[str, tuple[int, ...]]:
        """The array that says the shape, and the shape; arrays that do not fit together are refused; sets `stored`."""

    @abstractmethod
    def task_name(self, file: h5py.File) -> str:
        """The task whose data such a file of others holds."""

    @abstractmethod
    def understood(self, file: h5py.File, known: TaskSpec) -> dict[str, Any]:
        """Grid, times, parameters, and what else the header of a file that others wrote has of its own."""

    def expected(self, header: Header) -> tuple[int, ...]:
        """The shape that a description says one trajectory has."""
        return (len(header.times), *header.grid.shape)


def check_axes(header: Header, path: Path) -> None:
    """A list of one position could not be told from a damaged one."""
    for axis, n in zip(AXES[: header.grid.dimension], header.grid.shape, strict=True):
        if n < 2:
            raise UserError(f"{path}: axis {axis} has {n} point; PDEBench's layouts need at least two")
