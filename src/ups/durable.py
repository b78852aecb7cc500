"""Files that are either whole or absent, and say so.

Everything a run relies on later (shards, indices, manifests, pointers) is written to a temporary name, synced, and
renamed, so a crash leaves the old file or the new one, never half of it. JSON files carry their own checksum, because
one flipped byte in a number still parses.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ups.errors import UserError

_CHUNK = 1 << 22


def check_space(path: Path, needed: int) -> None:
    """Refuse work whose result the disk of `path`, which need not exist yet, has no room for."""
    place = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise UserError(
            f"{path} needs {needed / 2**20:,.1f} MiB more and {place} has {free / 2**20:,.1f} MiB free; "
            "free some space or choose another place"
        )


@contextmanager
def room_for(path: Path, remedy: str) -> Iterator[None]:
    """Say what to do when the disk of `path` becomes full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(f"{path}: the disk is full; free some space {remedy}") from error


def refusal(directory: Path) -> str:
    """Why a directory takes no megabyte more, or "": asked by writing, as quotas do not show otherwise."""
    probe = directory / f".room.{uuid.uuid4().hex[:12]}"
    try:
        try:
            probe.write_bytes(b" " * 2**20)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def crc32_of(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc


def sync(path: Path) -> None:
    """Bring a file, or the names inside a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes | memoryview, *, temporary: Path | None = None) -> None:
    """Replace `path` by `content` in one act: a reader sees the old bytes or the new ones."""
    # Not the process's number: ranks in containers have the same ones.
    temporary = temporary or path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """What a file of a run holds; one that is torn is refused. A FileNotFoundError where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise damaged(path)
    return content


def damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged; bring it back from a copy, or remove it")


def seal(content: Mapping[str, Any]) -> bytes:
    """JSON of `content` with the CRC-32 of its canonical form beside it."""
    body = json.loads(json.dumps(content))
    return (json.dumps({"crc32": _canonical_crc(body), "content": body}, indent=1) + "\n").encode()


def unseal(text: bytes) -> dict[str, Any]:
    """The content of a sealed JSON file; a ValueError when it is not what was sealed."""
    try:
        sealed = json.loads(text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(sealed, dict) or set(sealed) != {"crc32", "content"} or not isinstance(sealed["content"], dict):
        raise ValueError("not a sealed JSON file")
    if sealed["crc32"] != _canonical_crc(sealed["content"]):
        raise ValueError("its checksum does not match its content")
    return sealed["content"]


def _canonical_crc(body: Any) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
