"""Which data files are published, where, and what they must be.

PDEBench's files have their published names; names, addresses and checksums are facts, in `published.csv`. The Well's
and PDEGym's are `well/DATASET/PATH` and `pdegym/DATASET/PATH`: they lie on Hugging Face, which is asked for their sizes
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
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import urlopen

from ups.errors import UserError

_DARUS = "https://darus.uni-stuttgart.de/api/access/datafile/"
_ORGANISATION = {"well": "polymathic-ai", "pdegym": "camlab-ethz"}
_PATIENCE = 60.0


@dataclass(frozen=True)
class Published:
    """A file that can be fetched. `path` is where it goes below the user's folder: The Well's readers want its tree.

    `checksum` is `md5:…` or `sha256:…`.
    """

    name: str
    url: str
    path: PurePosixPath
    checksum: str | None = None
    size: int | None = None


@cache
def published_files() -> dict[str, Published]:
    """The files of the packaged table, by name."""
    text = files("ups.data").joinpath("published.csv").read_text(encoding="utf-8")
    return {
        row["name"]: Published(
            name=row["name"],
            url=_DARUS + row["place"].removeprefix("darus:"),
            path=PurePosixPath(row["name"]),
            checksum=f"md5:{row['md5']}",
            size=int(row["bytes"]) if row["bytes"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    }


def find_published(name: str) -> list[Published]:
    """The files a name means: one, or all that a pattern such as `1D_Burgers_*` or `well/active_matter/*` matches."""
    known = published_files()
    if name in known:
        return [known[name]]
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
        listed = known
    matching = [file for other, file in listed.items() if fnmatch.fnmatchcase(other, name)]
    if not matching:
        close = difflib.get_close_matches(name, listed, n=3, cutoff=0.5)
        hint = f" did you mean {' or '.join(close)}?" if close else ""
        raise UserError(f"no published file is called {name!r};{hint} see `ups data fetch --list`")
    return matching


def _on_hugging_face(collection: str, dataset: str) -> list[Published]:
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
        Published(
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
    try:
        with urlopen(url, timeout=_PATIENCE) as answer:
            found = json.load(answer)
            following = _next_page(answer.headers.get("Link", ""))
    except HTTPError as error:
        if error.code in (401, 404):
            raise UserError(f"there is no data set {name} at {urlsplit(url).netloc}; check its name") from error
        raise UserError(f"{url} answers {error.code} {error.reason}; try again later") from error
    except (URLError, OSError) as error:
        raise UserError(f"{urlsplit(url).netloc} cannot be reached ({error}); check the network") from error
    except ValueError as error:
        raise UserError(f"{url} does not answer with a list of files ({error}); try again later") from error
    return found + (_listing(following, name) if following else [])


def _next_page(link: str) -> str | None:
    """Long lists come in pages: `<address>; rel="next"`."""
    address, _, relation = link.partition(";")
    return address.strip().strip("<>") if 'rel="next"' in relation else None


def _at_address(url: str) -> Published:
    last = unquote(urlsplit(url).path).rsplit("/", 1)[-1]
    if last in ("", ".", "..") or "\0" in last:
        raise UserError(f"{url} names no file; give the whole address of one")
    return Published(url, url, PurePosixPath(last))
