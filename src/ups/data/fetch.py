"""Fetch a published file: resumable, checked, and under its name only when it is whole.

Bytes go to a hidden `.NAME.part` beside the final name. A broken connection is taken up again where it broke, a second
call goes on where the first was stopped, and a server that cannot do that sends the file from its start. What the
server calls this version of the file (its ETag) is kept beside the part, so that two versions are never mixed.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
import time
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ups.data.published import PublishedFile
from ups.durable import check_space, room_for, sync
from ups.errors import UserError
from ups.locks import held
from ups.track.tick import Tick

_BLOCK = 1 << 20
_PATIENCE = 60.0  # seconds without a byte
_PAUSES = (1.0, 2.0, 4.0, 8.0)  # before each new try without progress


class _Broken(Exception):
    """The connection failed in a way that another try may mend."""


class _Unreachable(_Broken):
    """There was no connection at all."""


def fetch(file: PublishedFile, folder: str | Path, progress: Tick | None = None) -> Path:
    """Bring a published file into `folder`. `progress(done, total)` counts bytes; total is 0 while it is not known.

    A file that is already there is kept if its checksum is right, and refused if not.
    """
    final = Path(folder) / file.path
    if final.exists():
        return _kept(file, final)
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(f".{final.name}.part")
    with room_for(final, "and start again, what has arrived is kept"), part.open("ab") as bytes_:
        if not held(bytes_, part):
            raise UserError(f"{final} is being fetched by another process; wait for it")
        bytes_.seek(0, os.SEEK_END)  # the holder before may have added to it since it was opened
        try:
            if final.exists():  # another process has brought it in the meantime
                return _kept(file, final)
            _receive(file, part, bytes_, progress or (lambda done, total: None))
            bytes_.flush()
            if (found := _other_checksum(file, part)) is not None:
                _forget(part)
                raise UserError(
                    f"{file.url}: what arrived is not the published file ({found}, not {file.checksum}); it was "
                    "removed, fetch it again"
                )
        finally:
            if part.exists() and part.stat().st_size == 0:
                _forget(part)
        sync(part)
        part.rename(final)
        _version_file(part).unlink(missing_ok=True)
    sync(final.parent)
    return final


def _kept(file: PublishedFile, final: Path) -> Path:
    if (found := _other_checksum(file, final)) is not None:
        raise UserError(f"{final} exists and is not the published file ({found}, not {file.checksum}); remove it")
    return final


def _receive(file: PublishedFile, part: Path, bytes_: IO[bytes], progress: Tick) -> None:
    """Try until the part is whole; give up when tries bring nothing new."""
    failures, best = 0, bytes_.tell()
    start = best
    while True:
        try:
            _ask(file, part, bytes_, progress)
            return
        except _Broken as broken:
            bytes_.flush()
            failures = 1 if bytes_.tell() > best else failures + 1
            best = max(best, bytes_.tell())
            if isinstance(broken, _Unreachable) and best == start:
                raise UserError(f"{broken}; check the network and start again") from broken
            if failures > len(_PAUSES):
                raise UserError(
                    f"{file.url}: {broken} after {bytes_.tell():,} bytes; what has arrived is kept, start again later"
                ) from broken
        time.sleep(_PAUSES[failures - 1])


def _ask(file: PublishedFile, part: Path, bytes_: IO[bytes], progress: Tick) -> None:
    have, version = bytes_.tell(), _version_file(part)
    request = Request(file.url, headers={"User-Agent": "ups", "Accept-Encoding": "identity"})
    if have and not version.exists() and file.checksum is None:
        _empty(bytes_)  # nothing would say whether the rest belongs to these bytes
        have = 0
    if have:
        request.add_header("Range", f"bytes={have}-")
        if version.exists():
            request.add_header("If-Range", version.read_text())
    try:
        with urlopen(request, timeout=_PATIENCE) as answer:
            if answer.status != 206:
                _empty(bytes_)
                have = 0
            elif not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                raise _Broken("the server sends another part than was asked for")
            name = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            if name and not name.startswith("W/"):
                version.write_text(name)
            else:
                version.unlink(missing_ok=True)
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length is not None else file.size or 0
            if total and file.size is not None and total != file.size:
                raise UserError(f"{file.url} has {total:,} bytes, the published file {file.size:,}; it is another file")
            check_space(part.with_name(file.path.name), total - have)
            progress(have, total)
            while block := answer.read(_BLOCK):
                bytes_.write(block)
                have += len(block)
                progress(have, total)
    except HTTPError as error:
        if error.code == 416:  # nothing is missing, or the part is longer than the file
            total = error.headers.get("Content-Range", "").rpartition("/")[2]
            if total == str(have):
                return
            _empty(bytes_)
            raise _Broken("the server has a shorter file than the part that was kept") from error
        if error.code == 429 or error.code >= 500:
            raise _Broken(f"the server answers {error.code} {error.reason}") from error
        raise UserError(
            f"{file.url} answers {error.code} {error.reason}; the file may have moved or need permission"
        ) from error
    except http.client.IncompleteRead as error:
        bytes_.write(error.partial)
        raise _Broken("the connection broke") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        raise _Broken(f"the connection broke ({error or type(error).__name__})") from error
    except URLError as error:
        raise _Unreachable(f"{urlsplit(file.url).netloc} cannot be reached ({error.reason})") from error
    if total and have < total:
        raise _Broken("the connection broke")


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _empty(bytes_: IO[bytes]) -> None:
    if bytes_.tell():
        bytes_.seek(0)
        bytes_.truncate()


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


def _other_checksum(file: PublishedFile, path: Path) -> str | None:
    """The checksum of what lies at `path` if it is not that of the published file."""
    if file.checksum is None:
        return None
    kind = file.checksum.partition(":")[0]
    with path.open("rb") as content:
        found = f"{kind}:{hashlib.file_digest(content, kind).hexdigest()}"
    return None if found == file.checksum else found
