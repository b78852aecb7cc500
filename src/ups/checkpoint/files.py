"""Checkpoints: whole or absent, verified before use, and free of pickles.

    checkpoints/
      step_00001200/                 written as step_00001200.tmp, synced, renamed
        shard-*.safetensors          torch.distributed.checkpoint's safetensors files, one a rank
        manifest.json                format, step, size and CRC-32 of each file, and what the caller adds (sealed)
      latest, best                   small text files that name a checkpoint
      step_00001100.bad/             one that failed its checksums, set aside

A checkpoint that has its final name is complete. Loading reads the newest complete one whose checksums hold; the last
good one is never touched by saving. The format is that of any number of ranks, so a later run on more of them reads it.
Here they are found and read; `saver` writes them.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError
from torch import Tensor

from ups.checkpoint.shards import whole_tensors
from ups.durable import crc32_of, unseal, write
from ups.errors import UserError

if TYPE_CHECKING:  # torch's own reader is imported where it is used: that takes most of a second
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

FORMAT = 6
MANIFEST = "manifest.json"
WEIGHTS, CARD = "model.safetensors", "README.md"
"""Of a model that is handed over. The card is for people: it may be edited, and other files that nobody loads added."""
_NAME = re.compile(r"step_(\d{8,})")


class _Damaged(Exception):
    """A checkpoint whose bytes are not those that were written."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says about itself: `content` is what the caller gave to `save`.

    `best`: it was the best so far when it was saved. `warnings` tells of newer ones that were damaged and set aside.
    """

    step: int
    content: dict[str, Any]
    path: Path
    best: bool = False
    warnings: tuple[str, ...] = ()


def load(path: Path, prefixes: tuple[str, ...] = ("",)) -> tuple[dict[str, Tensor], Manifest]:
    """The tensors (on the CPU) and the manifest of the newest good checkpoint in a directory, or of the one named.

    Of the tensors, those whose names begin with one of the prefixes. A damaged checkpoint that was asked for by name is
    an error, because another would not be what was asked for.
    """
    if _NAME.fullmatch(path.name) or is_one(path):
        try:
            manifest = _verified(path)
        except _Damaged as error:
            raise UserError(f"checkpoint {path} is damaged: {error}; load another one") from error
    elif (manifest := newest(path)) is None:
        raise UserError(f"{path} holds no usable checkpoint; start the run anew or name another directory")
    with _understood(manifest.path):
        return whole_tensors(manifest.path, prefixes), manifest


def is_one(path: Path) -> bool:
    """Whether a directory is itself a checkpoint, as an exported model is."""
    return (path / MANIFEST).is_file()


def newest(directory: Path) -> Manifest | None:
    """The newest good checkpoint in a directory, its sizes and checksums verified; None where there is none at all.

    A damaged one is renamed `*.bad` with a warning, and the one before it is used. When all are damaged, now or when
    they were last looked for: UserError, until the user removes them.
    """
    if not directory.is_dir():
        return None
    recover(directory)
    notes: list[str] = []
    for step in reversed(steps(directory)):
        try:
            manifest = _verified(directory / name_of(step))
        except _Damaged as error:
            notes.append(_set_aside(directory / name_of(step), str(error)))
            continue
        return replace(manifest, warnings=tuple(notes))
    if bad := sorted(entry.name for entry in directory.glob("step_*.bad")):
        raise UserError(
            f"{directory} holds no usable checkpoint: {', '.join(bad)} {'is' if len(bad) == 1 else 'are'} damaged"
            f"{''.join(f' ({note})' for note in notes)}; to train from the first step on, remove them"
        )
    return None


def peek(directory: Path) -> Manifest | None:
    """What the newest checkpoint says of itself, without a look at its tensors; None where there is none, or a damaged
    manifest: whoever loads it will say so.
    """
    for step in reversed(steps(directory)):
        path = directory / name_of(step)
        try:
            content = unseal((path / MANIFEST).read_bytes())
        except (OSError, ValueError):
            return None
        with _understood(path):
            return Manifest(content["step"], content["content"], path, content.get("best", False))
    return None


def fill(manifest: Manifest, into: Mapping[str, Shaped[Tensor, "..."]]) -> None:
    """Copy a verified checkpoint into tensors in place; of a DTensor only this rank's part is read.

    Names, shapes and dtypes must be the checkpoint's own.
    """
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(manifest.path))
    metadata = reader.read_metadata()
    wanted = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in into.items()}
    _check(_kinds(metadata.state_dict_metadata), wanted, manifest.path)
    planner = DefaultLoadPlanner()
    planner.set_up_planner({name: tensor.detach() for name, tensor in into.items()}, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    reader.read_data(planner.create_local_plan(), planner).wait()


def entries_of(path: Path) -> dict[str, TensorStorageMetadata]:
    """What the headers of a checkpoint's files say of each tensor."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    stored = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    return {name: entry for name, entry in stored.items() if isinstance(entry, TensorStorageMetadata)}


def steps(directory: Path) -> list[int]:
    """The steps of the complete checkpoints in a directory, oldest first."""
    if not directory.is_dir():
        return []
    found = (_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    return sorted(int(match[1]) for match in found if match)


def find(directory: Path, pointer: str) -> Path | None:
    """The checkpoint that `latest` or `best` names, None where there is none."""
    try:
        name = (directory / pointer).read_text(errors="replace").strip()
    except FileNotFoundError:
        return None
    return directory / name if _NAME.fullmatch(name) and (directory / name).is_dir() else None


def prune(directory: Path, keep: int = 2) -> list[int]:
    """Remove all but the last `keep` checkpoints and the one `best` names; what was removed. What cannot be stays."""
    if keep < 1:
        raise ValueError("the last checkpoint is never pruned: keep at least 1")
    marked = find(directory, "best")
    present = steps(directory)
    removed = []
    for step in [step for step in present[:-keep] if directory / name_of(step) != marked]:
        try:
            # Renamed first: a half-removed directory must not have a checkpoint's name.
            shutil.rmtree((directory / name_of(step)).rename(directory / f"{name_of(step)}.tmp"))
            removed.append(step)
        except OSError as error:
            warnings.warn(f"an old checkpoint cannot be removed ({error}); remove it yourself", stacklevel=2)
    return removed


def name_of(step: int) -> str:
    """The directory of a step's checkpoint."""
    return f"step_{step:08d}"


def point(directory: Path, pointer: str, step: int) -> None:
    """Let `latest` or `best` name the checkpoint of `step`; pruning keeps the best."""
    write(directory / pointer, f"{name_of(step)}\n".encode())


def recover(directory: Path) -> None:
    """Undo a replacement of a checkpoint by another of the same step that was killed half-way."""
    for old in directory.glob("step_*.old"):
        final = old.with_suffix("")
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(final)


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """What has the right checksums and is no checkpoint all the same, as one from a stranger may be."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"checkpoint {path} is damaged or none ({type(error).__name__}: {str(error)[:200]}); load another one"
        ) from error


def _verified(path: Path) -> Manifest:
    """The manifest, after every file has the size and checksum it names, and no tensors are there that it does not."""
    with _understood(path):
        return _checked(path)


def _checked(path: Path) -> Manifest:
    try:
        content = unseal((path / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        if not path.is_dir():
            raise UserError(f"there is no checkpoint at {path}; name one of the steps in {path.parent}") from error
        raise _Damaged(f"{MANIFEST} is missing") from error
    except ValueError as error:
        raise _Damaged(f"{MANIFEST}: {error}") from error
    if content["format"] != FORMAT:
        raise UserError(
            f"checkpoint {path} has format {content['format']}, this program reads {FORMAT}; "
            "use the version of the program that wrote it"
        )
    present = {file.name for file in path.iterdir()}
    for name in sorted(set(content["files"]) - present):
        raise _Damaged(f"{name} is missing")
    for name in sorted(name for name in present - set(content["files"]) if name.endswith(".safetensors")):
        raise _Damaged(f"{name} is not in the manifest")
    for name, file in content["files"].items():
        size = (path / name).stat().st_size
        if size != file["bytes"]:
            raise _Damaged(f"{name} has {size} bytes, should have {file['bytes']}")
        crc = crc32_of(path / name)
        if crc != file["crc32"]:
            raise _Damaged(f"{name} has checksum {crc:08x}, should have {file['crc32']:08x}")
    return Manifest(content["step"], content["content"], path, content.get("best", False))


_Kind = tuple[tuple[int, ...], torch.dtype]


def _kinds(entries: Mapping[str, Any]) -> dict[str, _Kind]:
    return {name: (tuple(entry.size), entry.properties.dtype) for name, entry in entries.items()}


def _check(stored: Mapping[str, _Kind], expect: Mapping[str, _Kind], path: Path) -> None:
    """One error that names the first few differences between a checkpoint and the model it should fill."""
    differences = []
    for name in [*expect, *(name for name in stored if name not in expect)]:
        if name not in stored:
            differences.append(f"{name} is missing")
        elif name not in expect:
            differences.append(f"{name} is not part of the model")
        elif stored[name] != expect[name]:
            (shape, dtype), (wanted_shape, wanted_dtype) = stored[name], expect[name]
            differences.append(f"{name} is {dtype} {shape}, the model has {wanted_dtype} {wanted_shape}")
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise UserError(
            f"checkpoint {path} is of another model: {'; '.join(differences[:3])}{more}; "
            "use the config it was trained with, or another run directory"
        )


def _set_aside(path: Path, problem: str) -> str:
    """Rename a damaged checkpoint, warn, and return the warning."""
    aside, number = path.with_name(path.name + ".bad"), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.{number}.bad")
    try:
        path.rename(aside)
        note = f"checkpoint {path} is damaged ({problem}); set aside as {aside.name}, the one before is used"
    except OSError as error:
        note = f"checkpoint {path} is damaged ({problem}) and could not be renamed ({error}); the one before is used"
    warnings.warn(note, RuntimeWarning, stacklevel=3)
    return note
