"""Curves, rollouts and configuration in TensorBoard: `tensorboard --logdir runs`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from ups.track.curves import curves
from ups.track.jsonl import Diary
from ups.track.rollouts import ROLLOUTS, draw


class TensorBoard:
    """Every number of the events that are drawn as a curve over the step, named by its place in the event; rollouts of
    validation data as pictures and films; the run's configuration and versions as text.

    It reads the events from the diary beside `directory`, and keeps up to which byte they are drawn: what a process
    that was killed did not come to draw, the next one draws.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory, self._drawn = directory, directory / "drawn"
        self._diary = Diary(directory.parent / "events.jsonl", _number(self._drawn))
        self._writer: SummaryWriter | None = None

    def write(self, kind: str, /, **fields: Any) -> None:
        """The event is in the diary by now."""
        for event in self._diary.news():
            self._writer = self._draw(event)
        if self._writer is not None:
            self._writer.flush()
            temporary = self._drawn.with_suffix(".tmp")
            temporary.write_text(f"{self._diary.place}")
            os.replace(temporary, self._drawn)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _draw(self, event: dict[str, Any]) -> SummaryWriter:
        """The writer that drew it. After a restart some steps are repeated: what was drawn of them before is hidden."""
        writer, kind = self._writer, event["kind"]
        if writer is None or kind == "resumed":
            self.close()
            writer = SummaryWriter(self._directory, purge_step=event["step"] + 1 if kind == "resumed" else None)
            self._tell_run(writer)
        for name, number in curves(kind, event).items():
            writer.add_scalar(name, number, event["step"])
        if kind == ROLLOUTS:
            for task, name in event["files"].items():
                self._show(writer, task, self._directory.parent / ROLLOUTS / name, event["step"])
        return writer

    def _tell_run(self, writer: SummaryWriter) -> None:
        """The configuration, versions and commit of the run whose training this is."""
        for name in ("config.yaml", "env.json"):
            path = next((path for parent in self._directory.parents if (path := parent / name).is_file()), None)
            if path is not None:
                writer.add_text(path.stem, "".join(f"    {line}\n" for line in path.read_text().splitlines()))

    def _show(self, writer: SummaryWriter, task: str, kept: Path, step: int) -> None:
        """A film is a picture that moves, in TensorBoard too."""
        if not kept.is_file():
            return
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportMissingImports]

        with tempfile.TemporaryDirectory() as folder:
            for path in draw(kept, "model", Path(folder)):
                name = f"{ROLLOUTS}/{task}/{'film' if path.suffix == '.gif' else 'picture'}"
                image = Summary.Image(encoded_image_string=path.read_bytes(), colorspace=3)
                assert writer.file_writer is not None, "it is until it is closed"
                writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)


def _number(path: Path) -> int:
    """What the file says; 0 where there is none, or a machine that lost its power left it empty."""
    text = path.read_text() if path.is_file() else ""
    return int(text) if text.isdigit() else 0
