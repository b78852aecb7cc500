"""The run's diary: one JSON object a line, appended and handed to the system at once.

    {"kind": "step", "time": "2025-01-01T12:00:00.000+00:00", "seconds": 3.2, "step": 100, "loss": 0.012}

A training run must not die because its diary cannot be written: on a full disk the lines wait in memory, one warning is
given, and every later write tries again.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from ups.errors import UserError


class Events:
    """Appends events to `path`; opening an existing file goes on after its last whole line."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._started = time.monotonic()
        self._waiting = b""
        self._warned = False
        try:
            _drop_torn_line(self.path)
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UserError(f"cannot write events to {self.path}: {error.strerror}") from error

    def write(self, kind: str, /, **fields: Any) -> None:
        """Adds one line: `kind`, the time of day, the seconds since the file was opened, and `fields`.

        Numbers that JSON has no word for (nan, inf) are written as null.
        """
        seconds = round(time.monotonic() - self._started, 6)
        event = {"kind": kind, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "seconds": seconds}
        if clash := event.keys() & fields.keys():
            raise TypeError(f"events already have the field {', '.join(sorted(clash))}; name yours otherwise")
        self._waiting += json.dumps(plain({**event, **fields}), allow_nan=False).encode() + b"\n"
        self._flush()

    def close(self) -> None:
        """Tries once more to write what waits, and says so if it is lost."""
        self._flush()
        if self._waiting:
            lost = self._waiting.count(b"\n")
            warnings.warn(f"{lost} events could not be written to {self.path} and are lost", stacklevel=2)
        os.close(self._descriptor)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _flush(self) -> None:
        """Writes what waits; a full disk may take only part of a line, so exactly the written bytes are dropped."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # the supervisors of several nodes write to one file
            try:
                while self._waiting:
                    self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError as error:
            if not self._warned:
                warnings.warn(
                    f"cannot write events to {self.path} ({error.strerror}); they wait in memory and are tried again",
                    stacklevel=3,
                )
                self._warned = True


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """All events of a file, with a warning of damaged ones; a last line that a crash left without its end is none."""
    *lines, _ = Path(path).read_bytes().split(b"\n")
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            events.append({"kind": event["kind"], **event})
        except (ValueError, TypeError, LookupError, RecursionError):
            warnings.warn(f"{path}, line {number} is damaged and left out", stacklevel=2)
    return events


class Diary:
    """The events that a file got since it was last asked, from byte `place` on."""

    def __init__(self, path: Path, place: int = 0) -> None:
        self.path, self.place = path, place

    def news(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            file.seek(self.place)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.place += len(whole)
        for line in whole.splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # damaged: `ups explain` and the report say so
                continue
            if isinstance(event, dict) and "kind" in event:
                yield event


def _drop_torn_line(path: Path) -> None:
    """Cuts a last line without an end, so that the next event does not continue it."""
    if path.is_file() and path.stat().st_size:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            size = path.stat().st_size
            kept = file.read().rfind(b"\n") + 1
            if kept < size:
                file.truncate(kept)


def plain(value: Any) -> Any:
    """Tensors and arrays as numbers and lists, paths as text, nan and inf as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
