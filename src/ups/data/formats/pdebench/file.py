"""What PDEBench's readers share: a file of ours says what it holds, of another's its layout and its task do."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import h5py

from ups.data.formats.description import check_agrees, described
from ups.data.formats.hdf5 import open_file
from ups.data.formats.pdebench.published import as_task
from ups.data.formats.reading import LazyFile
from ups.fields import Header, TaskSpec


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
