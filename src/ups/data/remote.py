"""Files elsewhere: `s3://…`, `https://…`, `memory://…`, read through fsspec and only in the parts that are asked for.

Datasets keep their file's place as a `Path`, which writes `https://host/a` as `https:/host/a`; both are understood.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from ups.errors import UserError

BLOCK = 2**18
"""Bytes fetched at a time. HDF5 reads its index in small pieces; the trajectories it asks for in whole ones."""
_KEPT = 8
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)  # one letter is a Windows drive


def is_remote(path: str | Path) -> bool:
    return _SCHEME.match(str(path)) is not None


def url_of(path: str | Path) -> str:
    """The address, whether or not it went through a Path."""
    found = _SCHEME.match(str(path))
    if found is None:
        raise UserError(f"{path} is no address such as https://host/file; check it")
    scheme, rest = found.groups()
    return f"{scheme}:///{rest}" if scheme in ("file", "local") else f"{scheme}://{rest}"


def is_there(path: Path) -> bool:
    """Whether there is such a file, here or elsewhere."""
    if not is_remote(path):
        return path.is_file()
    system, place = _system(path)
    try:
        return bool(system.isfile(place))
    except (OSError, ValueError) as error:
        raise _unreachable(path, error) from error


def open_remote(path: Path) -> IO[bytes]:
    """A file to read from: bytes come when they are read, in blocks that are kept while they are of use."""
    try:
        return _opened(url_of(path), os.getpid())
    except (OSError, ValueError) as error:
        raise _unreachable(path, error) from error


def read_bytes(path: Path, count: int = -1) -> bytes:
    """The first `count` bytes of a file, here or elsewhere; all of them unless told."""
    if not is_remote(path):
        with path.open("rb") as file:
            return file.read(count)
    remote = open_remote(path)
    remote.seek(0)
    return remote.read(count)


@lru_cache(maxsize=_KEPT)
def _opened(url: str, process: int) -> Any:
    """Kept open, so that a dataset's reads do not fetch the index of its file again; never shared with a fork."""
    system, place = _system(Path(url))
    return system.open(place, "rb", block_size=BLOCK, cache_type="blockcache", cache_options={"maxblocks": 64})


def _system(path: Path) -> tuple[Any, str]:
    try:
        import fsspec

        return fsspec.core.url_to_fs(url_of(path))
    except ImportError as error:
        raise UserError(
            f"{url_of(path)}: reading remote files needs a package that is not installed ({error}); "
            "install universal-physics-stack[remote] and what it names"
        ) from error
    except ValueError as error:
        raise UserError(f"{url_of(path)}: {error}; use an address such as https://host/file") from error


def _unreachable(path: Path, error: Exception) -> UserError:
    return UserError(f"{url_of(path)} cannot be read ({error}); check the address and the connection")
