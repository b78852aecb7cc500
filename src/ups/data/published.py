"""Which data files are published, where, and what they must be.

PDEBench's files have their published names; its repository's list gives their addresses and checksums. The Well's and
PDEGym's are `well/DATASET/PATH` and `pdegym/DATASET/PATH`: they lie on Hugging Face, which is asked for their sizes
and checksums, and for what a pattern matches. An address is a name too.
"""

from __future__ import annotations

import csv
import difflib
import fnmatch
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import urlopen

from ups.errors import UserError

_LIST = "https://raw.githubusercontent.com/pdebench/PDEBench/main/pdebench/data_download/pdebench_data_urls.csv"
_ORGANISATION = {"well": "polymathic-ai", "pdegym": "camlab-ethz"}
_PATIENCE = 60.0


@dataclass(frozen=True)
class PublishedFile:
    """A file that can be fetched. `path` is where it goes below the user's folder: The Well's readers want its tree.

    `checksum` is `md5:…` or `sha256:…`.
    """

    name: str
    url: str
    path: PurePosixPath
    checksum: str | None = None
    size: int | None = None


def published_files() -> dict[str, PublishedFile]:
    """PDEBench's files by name, as its repository lists them (UPS_PDEBENCH_LIST names a copy of the list)."""
    return _listed(os.environ.get("UPS_PDEBENCH_LIST", _LIST))


@cache
def _listed(url: str) -> dict[str, PublishedFile]:
    remote = "://" in url
    text = _text(url, "the list of PDEBench's files") if remote else Path(url).expanduser().read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    if not rows or not {"Filename", "URL", "MD5"} <= rows[0].keys():
        raise UserError(f"{url} is not the list of PDEBench's files; set UPS_PDEBENCH_LIST to where it is")
    return {
        row["Filename"]: PublishedFile(
            name=row["Filename"],
            url=row["URL"],
            path=PurePosixPath(PurePosixPath(row["Filename"]).name),
            checksum=f"md5:{row['MD5'].strip()}" if row["MD5"].strip() else None,
        )
        for row in rows
    }


def find_published(name: str) -> list[PublishedFile]:
    """The files a name means: one, or all that a pattern such as `1D_Burgers_*` or `well/active_matter/*` matches."""
    if name.startswith(("http://", "https://")):
        return [_at_address(name)]
    collection = name.split("/")[0]
    if collection in _ORGANISATION:
        parts = name.split("/")
        if len(parts) < 3 or "" in parts or ".." in parts:
            raise UserError(
                f"{name!r} names no file; give {collection}/DATASET/PATH, such as "
                f"'{collection}/{parts[1] if len(parts) > 1 and parts[1] else 'DATASET'}/*' for all of a data set"
            )
        listed = {file.name: file for file in _on_hugging_face(collection, parts[1])}
    else:
        listed = published_files()
    matching = [file for other, file in listed.items() if fnmatch.fnmatchcase(other, name)]
    if not matching:
        close = difflib.get_close_matches(name, listed, n=3, cutoff=0.5)
        hint = f" did you mean {' or '.join(close)}?" if close else ""
        raise UserError(f"no published file is called {name!r};{hint} see `ups data fetch --list`")
    return matching


def _on_hugging_face(collection: str, dataset: str) -> list[PublishedFile]:
    """The files of a data set, as the site lists them. HF_ENDPOINT is the usual name for a mirror's address."""
    site = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    repository = f"datasets/{_ORGANISATION[collection]}/{quote(dataset)}"
    entries = _listing(f"{site}/api/{repository}/tree/main?recursive=true", f"{collection}/{dataset}")
    for entry in entries:
        place = PurePosixPath(entry["path"])
        if place.is_absolute() or ".." in place.parts:
            raise UserError(
                f"{site} lists {entry['path']!r} in {dataset}, which lies outside it; fetch from another site"
            )
    return [
        PublishedFile(
            name=f"{collection}/{dataset}/{entry['path']}",
            url=f"{site}/{repository}/resolve/main/{quote(entry['path'])}",
            path=PurePosixPath(dataset, entry["path"]),
            checksum=f"sha256:{entry['lfs']['oid']}" if entry.get("lfs") else None,
            size=entry.get("size"),
        )
        for entry in entries
        if entry["type"] == "file"
    ]


def _listing(url: str, name: str) -> list[dict[str, Any]]:
    headers: dict[str, str] = {}
    try:
        found = json.loads(_text(url, f"data set {name}", headers))
    except ValueError as error:
        raise UserError(f"{url} does not answer with a list of files ({error}); try again later") from error
    address, _, relation = headers.get("Link", "").partition(";")  # long lists come in pages
    return found + (_listing(address.strip().strip("<>"), name) if 'rel="next"' in relation else [])


def _text(url: str, what: str, headers: dict[str, str] | None = None) -> str:
    """What lies at an address; `headers` takes those of the answer."""
    try:
        with urlopen(url, timeout=_PATIENCE) as answer:
            if headers is not None:
                headers.update(answer.headers.items())
            return answer.read().decode(errors="replace")
    except HTTPError as error:
        if error.code in (401, 404):
            raise UserError(f"there is no {what} at {urlsplit(url).netloc}; check its name") from error
        raise UserError(f"{url} answers {error.code} {error.reason}; try again later") from error
    except (URLError, OSError) as error:
        raise UserError(f"{urlsplit(url).netloc} cannot be reached ({error}); check the network") from error


def _at_address(url: str) -> PublishedFile:
    last = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
    if last in ("", ".", "..") or "\0" in last:
        raise UserError(f"{url} names no file; give the whole address of one")
    return PublishedFile(url, url, PurePosixPath(last))
