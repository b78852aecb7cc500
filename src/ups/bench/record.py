"""What a benchmark has found so far, as JSON: written whole after every result, so a killed one loses little."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ups.distributed.launch.claim import claimed
from ups.durable import write
from ups.errors import UserError
from ups.track.environment import cpu_model, environment


class Record:
    """One task's results. `content` is what the file holds; `save` after every change.

    With `again`, a file of other settings, or that is none, is forgotten; rows of the same settings stay until
    `renewed`.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], again: bool) -> None:
        self.path = path
        self.content: dict[str, Any] = {"settings": dict(settings), "contestants": {}}
        if not path.exists():
            return
        try:
            found = read(path)
        except UserError as error:
            if again:
                return
            raise UserError(f"{error} or use --again") from error
        if found.get("settings") == json.loads(json.dumps(settings)):
            self.content = found
        elif not again:
            raise UserError(f"{path} holds results of other settings; choose another --out, or --again to replace them")

    def row(self, key: str) -> dict[str, Any]:
        return self.content["contestants"].setdefault(key, {})

    def renewed(self, key: str) -> dict[str, Any]:
        """An empty row in the place of the one there was."""
        self.content["contestants"][key] = {}
        return self.content["contestants"][key]

    def save(self) -> None:
        write(self.path, (json.dumps(self.content, indent=1) + "\n").encode())


@contextmanager
def owned(out: Path) -> Iterator[None]:
    """The folder of results, made if need be, ours alone while we work in it."""
    with ExitStack() as held:
        try:
            held.enter_context(claimed(out))
        except UserError as error:
            raise UserError(f"{str(error).rpartition(';')[0]}; choose another --out") from error
        yield


def read(path: Path) -> dict[str, Any]:
    """A file of results; one that is something else is refused."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not the JSON of a benchmark ({error}); remove it") from error
    contestants = found.get("contestants") if isinstance(found, dict) else None
    if not isinstance(contestants, dict) or not all(isinstance(row, dict) for row in contestants.values()):
        raise UserError(f"{path} is not the JSON of a benchmark (it has no contestants); remove it")
    return found


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers were measured on."""
    found = environment()
    return {
        "device": device_name(device),
        "kind": device.type,
        "cores": found["cpu"]["usable"],
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": found["torch"]["cuda"] if device.type == "cuda" else None,
        "python": found["python"],
        "git": found["git"],
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }
