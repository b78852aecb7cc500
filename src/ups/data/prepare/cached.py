"""What a whole pass over some data has shown, kept so that the next start need not read all of them again.

Beside what was found lies the data's fingerprint: the names, sizes and times of last change of their files, and what is
taken from them. Data elsewhere have no such times: they are read again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ups.data.formats.description import to_json
from ups.data.joined import Joined, Subset
from ups.data.partial import Partial
from ups.data.remote import is_remote
from ups.data.resampled import Resampled
from ups.data.views import View
from ups.data.without import Without
from ups.durable import seal, unseal, write
from ups.fields import Dataset, Header

VERSION = 2
"""Counts the changes to what is checked and how statistics are computed."""


def cached(path: Path, data: Sequence[Dataset], asked: Any, find: Callable[[], Any]) -> Any:
    """What `find` gives (numbers, texts, lists and mappings of them), or what it gave before for the same data and the
    same question; `path` keeps it.
    """
    key = _key(data, asked)
    if key is not None and path.exists():
        try:
            kept = unseal(path.read_bytes())
        except ValueError:  # damaged: nothing is lost but time
            kept = {}
        if kept.get("key") == key:
            return kept["found"]
    found = find()
    if key is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, seal({"key": key, "found": found}))
    return found


def _key(data: Sequence[Dataset], asked: Any) -> str | None:
    prints = [_fingerprint(dataset) for dataset in data]
    if None in prints:
        return None
    return hashlib.sha256(json.dumps([VERSION, prints, asked]).encode()).hexdigest()


def _fingerprint(dataset: Dataset) -> list[Any] | None:
    """What a dataset reads and takes, as plain values; None where that cannot be known without reading it."""
    if isinstance(dataset, Joined):
        parts = [_fingerprint(part) for part in dataset.parts]
        return None if None in parts else ["joined", parts]
    if isinstance(dataset, Subset | View | Without | Resampled):
        inner = _fingerprint(dataset.dataset)
        taken = list(dataset.indices) if isinstance(dataset, Subset) else _told(dataset.header)
        return None if inner is None else [type(dataset).__name__, taken, inner]
    if isinstance(dataset, Partial):
        inner = _fingerprint(dataset.dataset)
        return None if inner is None else ["Partial", dataset.share, inner]
    path = getattr(dataset, "path", None)
    if path is None or is_remote(path):
        return None
    return [_told(dataset.header), len(dataset), list(_files(path))]


def _told(header: Header) -> str:
    """The header as text, without the frames that a test gives: they change nothing that reading the data shows."""
    return to_json(replace(header, given=1))


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        found = file.stat()
        yield str(file.absolute()), found.st_size, found.st_mtime_ns
