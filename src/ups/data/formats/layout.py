"""What a file layout is: how its files are told from others, opened and written. Which there are: `layouts.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Protocol, Self

from ups.data.formats.header import not_kept
from ups.fields import Batch, Dataset, Header


class Writer(Protocol):
    """Writes a file piece by piece, in bounded memory, in the order of the trajectories.

        with TensorWriter(path, header, count) as writer:
            writer.write(batch)

    The file appears under its name when the block ends well, and then holds `count` trajectories; else nothing does.
    """

    def __init__(self, path: Path, header: Header, count: int) -> None:
        """Refuses with a UserError what the layout cannot hold at all."""
        ...

    @staticmethod
    def kept(header: Header) -> Header:
        """The header of what a file of such data holds, and the one it carries: without what the layout drops."""
        ...

    def write(self, batch: Batch) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Layout(Protocol):
    """One kind of file. `name` is what people type, `extension` what published files end with.

    `open(path, task=None, **options)` gives a Dataset; `options` are the words it takes besides. `test_at` is the end
    of such files that publications test on, for data that do not say it themselves.
    """

    name: ClassVar[str]
    extension: ClassVar[str]
    options: ClassVar[tuple[str, ...]]
    writer: ClassVar[type[Writer]]
    open: ClassVar[Callable[..., Dataset]]
    test_at: ClassVar[Literal["first", "last"]] = "first"

    @staticmethod
    def recognises(path: Path) -> bool:
        """Whether the file's content (never its name) is of this layout; the file is there, and whole if HDF5."""
        ...

    @classmethod
    def loses(cls, header: Header) -> list[str]:
        """What of such data a file of this layout does not keep, in words; empty if it keeps all."""
        return not_kept(header, cls.writer.kept(header))
