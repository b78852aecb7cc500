"""The tracker of a rank.

    events = open_tracker(directory, config.runtime.tracking, rank, attempt)

Rank 0 writes `events.jsonl`, always and first, then hands each event to the trackers the config names. What those do
(raise, hang, lose their network) costs training nothing: each has a thread of its own and an ordered backlog. Weights &
Biases is none of them: one process for the whole job reads the events of all trainings (`tracked.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ups.errors import UserError
from ups.track.background import BackgroundTracker
from ups.track.jsonl import Events
from ups.track.tracker import Tracker, Tracks


def open_tracker(directory: Path, names: Sequence[str], rank: int, attempt: int) -> Tracker:
    """The tracker of rank `rank` in its attempt number `attempt`; on rank 0 everything it writes is in `directory`."""
    if rank != 0:
        return Tracks((), attempt)
    check_tensorboard(names)
    others = (
        [BackgroundTracker("tensorboard", lambda: _tensorboard(directory / "tensorboard"))]
        if "tensorboard" in names
        else []
    )
    return Tracks([Events(directory / "events.jsonl"), *others], attempt)


def check_tensorboard(names: Sequence[str]) -> None:
    """Refuse TensorBoard where it is not installed."""
    if "tensorboard" in names and find_spec("tensorboard") is None:
        raise UserError(
            "runtime.tracking names tensorboard, which is not installed here; "
            "pip install 'universal-physics-stack[tensorboard]', or leave it out"
        )


def _tensorboard(directory: Path) -> Tracker:
    from ups.track.tensorboard import TensorBoard  # its import takes a second, which the background has

    return TensorBoard(directory)
