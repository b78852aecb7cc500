"""The file layouts that ups reads and writes: what a layout is, and which there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from ups.data.hdf5 import is_hdf5, open_file
from ups.data.header import batch_of, header_of
from ups.data.pdebench.tensor import Tensor
from ups.errors import UserError
from ups.fields import Batch, Dataset, Header, Trajectory


class Writer(Protocol):
    """Writes a file piece by piece, in bounded memory, in the order of the trajectories.

        with TensorWriter(path, header, count) as writer:
            writer.write(batch)

    The file appears under its name when the block ends well, and then holds `count` trajectories; else nothing does.
    """

    def __init__(self, path: Path, header: Header, count: int) -> None:
        """Refuses with a UserError what the layout cannot hold at all."""
        ...

    def write(self, batch: Batch) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: Any) -> None: ...


class Layout(Protocol):
    """One kind of file. `name` is what people type, `extension` what published files end with.

    `open(path, task=None, **options)` gives a Dataset; `options` are the words it takes besides.
    """

    name: ClassVar[str]
    extension: ClassVar[str]
    options: ClassVar[tuple[str, ...]]
    writer: ClassVar[type[Writer]]
    open: ClassVar[Callable[..., Dataset]]

    @staticmethod
    def recognises(path: Path) -> bool:
        """Whether the file's content (never its name) is of this layout; the file is there, and whole if HDF5."""
        ...

    @staticmethod
    def loses(header: Header) -> list[str]:
        """What of such data a file of this layout does not keep, in words; empty if it keeps all."""
        ...


LAYOUTS: tuple[type[Layout], ...] = (Tensor,)
"""In the order in which a file's content is compared with them."""


def layout_of(path: Path) -> type[Layout]:
    """The layout of a file, recognised by its content."""
    if not path.is_file():
        raise UserError(f"{path} is not there; check the path or make the data with `ups data make`")
    held = ""
    if is_hdf5(path):
        with open_file(path) as file:
            held = ", ".join(sorted(file)[:8]) or "nothing"
    for layout in LAYOUTS:
        if layout.recognises(path):
            return layout
    if held:
        raise UserError(
            f"{path} holds {held}; that is none of the layouts ups reads (such as 'tensor' with 'x-coordinate'): "
            f"{', '.join(layout.name for layout in LAYOUTS)}; convert the file to one of them"
        )
    raise UserError(f"{path} is neither HDF5 nor .pt or .npz pairs, or it is damaged; check the file")


def named_layout(name: str) -> type[Layout]:
    """The layout that people call so."""
    for layout in LAYOUTS:
        if layout.name == name:
            return layout
    raise UserError(f"there is no layout {name!r}; known: {', '.join(layout.name for layout in LAYOUTS)}")


def write_trajectories(path: Path, trajectories: Sequence[Trajectory], layout: str) -> None:
    """Write trajectories of one kind as one file: `write_trajectories(Path("a.hdf5"), solved, "pdebench-tensor")`."""
    header = header_of(trajectories)
    with named_layout(layout).writer(path, header, len(trajectories)) as writer:
        writer.write(batch_of(header, trajectories))
