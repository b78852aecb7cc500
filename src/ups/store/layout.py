"""What a store looks like on disk.

    path/
      index.json                    key, and for each array its dtype, shape and shards (sealed, written last)
      <array>.<number>.<crc32>.bin  consecutive rows of one array: plain little-endian numbers, nothing else

An array is N rows of equal shape (a row is a trajectory, or its parameters). A shard's name carries the checksum of its
bytes, so a finished shard can be trusted before there is an index, by whichever process finds it. Without an index
there is no store: `partial.json` then says whose unfinished build it is, and `build.lock` is held by who works on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ups.durable import crc32_of, seal, unseal
from ups.errors import UserError

VERSION = 1
INDEX = "index.json"
PARTIAL = "partial.json"
LOCK = "build.lock"
SHARDS = "*.[0-9][0-9][0-9][0-9][0-9].*.bin"
SHARD_BYTES = 64 * 2**20


class StoreDamaged(UserError):
    """A file of the store is not what was written: the problem, and the remedy.

    `file` names the shard that can be written again alone, None where the damage is another.
    """

    def __init__(self, problem: str, remedy: str, file: str | None = None) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.file = problem, file


REWRITE = "run the same command again, which writes this file anew and no other"


def anew(path: Path) -> str:
    """The remedy for a store that cannot be used: nothing in it is more than a copy of the data."""
    return f"remove {path} and run the same command again, which builds it anew from the data"


@dataclass(frozen=True)
class Shard:
    """Rows `first` … `first + rows − 1` of an array, in one file."""

    file: str
    first: int
    rows: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class ArrayLayout:
    """One array: `shape` is (N, ...), the shards are in the order of their rows."""

    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Index:
    """A complete store: `key` says what the numbers were made from."""

    key: str
    arrays: Mapping[str, ArrayLayout]

    def sealed(self) -> bytes:
        return seal({"version": VERSION, "key": self.key, "arrays": {n: asdict(a) for n, a in self.arrays.items()}})


def little_endian(dtype: str) -> np.dtype:
    """The dtype as it lies on disk, the same on every machine."""
    return np.dtype(dtype).newbyteorder("<")


def row_bytes(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape[1:]) * np.dtype(dtype).itemsize


def plan(shape: Sequence[int], dtype: str) -> list[tuple[int, int]]:
    """The (first, rows) of each shard: as many whole rows as fit into about 64 MB, at least one."""
    rows = max(1, SHARD_BYTES // row_bytes(shape, dtype))
    return [(first, min(rows, shape[0] - first)) for first in range(0, shape[0], rows)]


def read_index(path: Path) -> Index | None:
    """The store's index, None where there is none yet; StoreDamaged when it cannot be trusted."""
    file = path / INDEX
    content = read_sealed(file)
    if content is None:
        return None
    if content.get("version") != VERSION:
        raise UserError(
            f"{file} has format version {content.get('version')}, this program reads {VERSION}; {anew(path)}"
        )
    with understood(file):
        key, arrays = content["key"], {name: _array(array) for name, array in content["arrays"].items()}
        for name, array in arrays.items():
            width, ends = row_bytes(array.shape, array.dtype), [0]
            for shard in array.shards:
                whole = shard.first == ends[-1] and shard.rows > 0 and shard.bytes == shard.rows * width
                ends.append(shard.first + shard.rows if whole and Path(shard.file).name == shard.file else -1)
            if min(ends) < 0 or ends[-1] != array.shape[0]:
                raise StoreDamaged(f"{file}: the shards of {name!r} do not make up its rows", anew(path))
        return Index(key, arrays)


def read_sealed(file: Path) -> dict[str, Any] | None:
    """A sealed JSON file of the store, None where there is none."""
    try:
        return unseal(file.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise UserError(f"{file.parent} is a file; name a directory for the store") from error
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror or error}); mend its permissions or its disk"
        ) from error
    except ValueError as error:
        raise StoreDamaged(f"{file} is damaged ({error})", anew(file.parent)) from error


@contextmanager
def understood(file: Path) -> Iterator[None]:
    """A sealed file that lacks what is looked for within, or holds something else in its place, is damaged."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise StoreDamaged(f"{file} is damaged ({what})", anew(file.parent)) from error


def size_problem(path: Path, shard: Shard) -> str | None:
    """What is wrong with a shard's file at first sight, or None."""
    file = path / shard.file
    try:
        size = file.stat().st_size
    except OSError as error:
        return f"{file} cannot be read ({error.strerror or error})"
    return None if size == shard.bytes else f"{file} has {size} bytes, should have {shard.bytes}"


def shard_problem(path: Path, shard: Shard) -> str | None:
    """What is wrong with a shard's file, of which every byte is read, or None."""
    if problem := size_problem(path, shard):
        return problem
    file = path / shard.file
    try:
        crc = crc32_of(file)
    except OSError as error:
        return f"{file} cannot be read ({error.strerror or error})"
    return None if crc == shard.crc32 else f"{file} has checksum {crc:08x}, should have {shard.crc32:08x}"


def _array(content: dict[str, Any]) -> ArrayLayout:
    dtype = np.dtype(content["dtype"]).name
    return ArrayLayout(dtype, tuple(content["shape"]), tuple(Shard(**shard) for shard in content["shards"]))
