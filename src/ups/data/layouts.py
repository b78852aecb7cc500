"""The file layouts that ups reads and writes: what a layout is, and which there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from ups.data.header import Header
from ups.fields import Batch, Dataset


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
    """One kind of file. `name` is what people type, `extension` what published files end with."""

    name: ClassVar[str]
    extension: ClassVar[str]
    writer: ClassVar[type[Writer]]
    open: ClassVar[Callable[..., Dataset]]

    @staticmethod
    def recognises(path: Path) -> bool:
        """Whether the file's content (never its name) is of this layout."""
        ...

    @staticmethod
    def loses(header: Header) -> list[str]:
        """What of such data a file of this layout does not keep, in words; empty if it keeps all."""
        ...
