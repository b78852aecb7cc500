"""Checkpoints: whole or absent, verified before use, and free of pickles."""

from ups.checkpoint.files import (
    FORMAT,
    MANIFEST,
    Manifest,
    entries_of,
    fill,
    find,
    is_one,
    load,
    name_of,
    newest,
    peek,
    point,
    prune,
    recover,
    steps,
)

__all__ = [
    "FORMAT",
    "MANIFEST",
    "Manifest",
    "entries_of",
    "fill",
    "find",
    "is_one",
    "load",
    "name_of",
    "newest",
    "peek",
    "point",
    "prune",
    "recover",
    "steps",
]
