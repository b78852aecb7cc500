"""Checkpoints: whole or absent, verified before use, and free of pickles.

    checkpoints/
      step_00001200/                 written as step_00001200.tmp, synced, renamed
        shard-*.safetensors          torch.distributed.checkpoint's safetensors files, one a rank
        manifest.json                format, step, size and CRC-32 of each file, and what the caller adds (sealed)
      latest, best                   small text files that name a checkpoint
      step_00001100.bad/             one that failed its checksums, set aside

A checkpoint that has its final name is complete. Loading reads the newest complete one whose checksums hold; the last
good one is never touched by saving. The format is that of any number of ranks, so a later run on more of them reads it.
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ups.durable import crc32_of, seal, sync, unseal, write
from ups.errors import UserError

FORMAT = 1
_MANIFEST = "manifest.json"
_NAME = re.compile(r"step_(\d{8,})")


class NotSaved(UserError):
    """The disk refused a checkpoint; the ones before it are untouched."""


class _Damaged(Exception):
    """A checkpoint whose bytes are not those that were written."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says about itself: `content` is what the caller gave to `save`.

    `warnings` tells of newer checkpoints that were damaged and set aside.
    """

    step: int
    content: dict[str, Any]
    path: Path
    warnings: tuple[str, ...] = ()


def save(directory: Path, step: int, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> Path:
    """Write a checkpoint of `step` and let `latest` name it; `manifest` is anything JSON can hold.

    Raises NotSaved when the disk refuses; every earlier checkpoint is then as it was.
    """
    final = directory / _name(step)
    temporary = final.with_name(final.name + ".tmp")
    json.dumps(manifest)  # what JSON cannot hold fails here, before anything is written
    # A copy: tied tensors share memory, which safetensors refuses, and training may go on while a write is under way.
    staged = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    try:
        with _io_errors():
            directory.mkdir(parents=True, exist_ok=True)
            _recover(directory)
            for leftover in directory.glob("step_*.tmp"):
                shutil.rmtree(leftover)
            temporary.mkdir()
            with _single_process():
                writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
                state_dict_saver.save(staged, storage_writer=writer, no_dist=True)
            files = {}
            for file in sorted(temporary.iterdir()):
                sync(file)
                files[file.name] = {"bytes": file.stat().st_size, "crc32": crc32_of(file)}
            content = {"format": FORMAT, "step": step, "files": files, "content": dict(manifest)}
            write(temporary / _MANIFEST, seal(content))
            if final.exists():
                final.rename(final.with_name(final.name + ".old"))
            temporary.rename(final)
            sync(directory)
            _point(directory, "latest", step)
            shutil.rmtree(final.with_name(final.name + ".old"), ignore_errors=True)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise NotSaved(
            f"the checkpoint of step {step} could not be written to {directory} ({error.strerror or error}); "
            "make room or mend the directory's permissions; earlier checkpoints are untouched"
        ) from error
    return final


def load(
    path: Path, expect: Mapping[str, tuple[Sequence[int], torch.dtype]] | None = None
) -> tuple[dict[str, Tensor], Manifest]:
    """The tensors (on the CPU) and the manifest of the newest good checkpoint in a directory, or of the one named.

    Sizes and checksums are verified before any byte is used. A damaged checkpoint in a directory is renamed `*.bad`
    with a warning, and the one before it is used; a damaged one that was asked for by name is an error, because another
    would not be what was asked for. `expect` gives the names, shapes and dtypes the model has.
    """
    if _NAME.fullmatch(path.name):
        try:
            manifest = _verified(path)
        except _Damaged as error:
            raise UserError(f"checkpoint {path} is damaged: {error}; load another one") from error
        return _read(manifest, expect), manifest
    notes: list[str] = []
    if path.is_dir():
        _recover(path)
    for step in reversed(steps(path)):
        try:
            manifest = _verified(path / _name(step))
        except _Damaged as error:
            notes.append(_set_aside(path / _name(step), str(error)))
            continue
        if notes:
            manifest = Manifest(manifest.step, manifest.content, manifest.path, tuple(notes))
        return _read(manifest, expect), manifest
    damaged = f" ({'; '.join(notes)})" if notes else ""
    raise UserError(f"{path} holds no usable checkpoint{damaged}; start the run anew or name another directory")


def steps(directory: Path) -> list[int]:
    """The steps of the complete checkpoints in a directory, oldest first."""
    if not directory.is_dir():
        return []
    found = (_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    return sorted(int(match[1]) for match in found if match)


def mark_best(directory: Path, step: int) -> None:
    """Let `best` name the checkpoint of `step`, which pruning then keeps."""
    if step not in steps(directory):
        raise ValueError(f"{directory} has no checkpoint of step {step} to call the best")
    _point(directory, "best", step)


def find(directory: Path, pointer: str) -> Path | None:
    """The checkpoint that `latest` or `best` names, None where there is none."""
    try:
        target = directory / (directory / pointer).read_text().strip()
    except FileNotFoundError:
        return None
    return target if _NAME.fullmatch(target.name) and target.is_dir() else None


def prune(directory: Path, keep: int = 2) -> list[int]:
    """Remove all but the last `keep` checkpoints and the one `best` names; what was removed."""
    if keep < 1:
        raise ValueError("the last checkpoint is never pruned: keep at least 1")
    marked = find(directory, "best")
    present = steps(directory)
    removed = [step for step in present[:-keep] if directory / _name(step) != marked]
    for step in removed:
        # Renamed first: a half-removed directory must not have a checkpoint's name.
        doomed = (directory / _name(step)).rename(directory / f"{_name(step)}.tmp")
        shutil.rmtree(doomed)
    return removed


def _name(step: int) -> str:
    return f"step_{step:08d}"


def _point(directory: Path, pointer: str, step: int) -> None:
    write(directory / pointer, f"{_name(step)}\n".encode())


def _recover(directory: Path) -> None:
    """Undo a replacement of a checkpoint by another of the same step that was killed half-way."""
    for old in directory.glob("step_*.old"):
        final = old.with_suffix("")
        if final.exists():
            shutil.rmtree(old)
        else:
            old.rename(final)


def _verified(path: Path) -> Manifest:
    """The manifest, after every file has the size and checksum it names and no file is there that it does not name."""
    try:
        content = unseal((path / _MANIFEST).read_bytes())
    except FileNotFoundError as error:
        if not path.is_dir():
            raise UserError(f"there is no checkpoint at {path}; name one of the steps in {path.parent}") from error
        raise _Damaged(f"{_MANIFEST} is missing") from error
    except ValueError as error:
        raise _Damaged(f"{_MANIFEST}: {error}") from error
    if content["format"] != FORMAT:
        raise UserError(
            f"checkpoint {path} has format {content['format']}, this program reads {FORMAT}; "
            "use the version of the program that wrote it"
        )
    present = {file.name for file in path.iterdir()} - {_MANIFEST}
    for name in sorted(present ^ set(content["files"])):
        raise _Damaged(f"{name} is {'not in the manifest' if name in present else 'missing'}")
    for name, file in content["files"].items():
        size = (path / name).stat().st_size
        if size != file["bytes"]:
            raise _Damaged(f"{name} has {size} bytes, should have {file['bytes']}")
        crc = crc32_of(path / name)
        if crc != file["crc32"]:
            raise _Damaged(f"{name} has checksum {crc:08x}, should have {file['crc32']:08x}")
    return Manifest(content["step"], content["content"], path)


def _read(manifest: Manifest, expect: Mapping[str, tuple[Sequence[int], torch.dtype]] | None) -> dict[str, Tensor]:
    reader = HuggingFaceStorageReader(str(manifest.path))
    stored = reader.read_metadata().state_dict_metadata
    kinds = {
        name: (tuple(entry.size), entry.properties.dtype)
        for name, entry in stored.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    if expect is not None:
        _check(kinds, {name: (tuple(shape), dtype) for name, (shape, dtype) in expect.items()}, manifest.path)
    tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in kinds.items()}
    with _single_process():
        state_dict_loader.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


_Kind = tuple[tuple[int, ...], torch.dtype]


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


@contextmanager
def _single_process() -> Iterator[None]:
    """Silence torch's remark that there is no process group: here that is so on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


@contextmanager
def _io_errors() -> Iterator[None]:
    """Unwrap a disk's refusal from the BaseException in which torch.distributed.checkpoint hides it."""
    try:
        yield
    except CheckpointException as error:
        for failure, _ in error.failures.values():
            raise failure from error
        raise
