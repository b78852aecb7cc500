"""What sensors read, and what is known without them, as a user gives both to an assimilation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ups.errors import UserError
from ups.fields import AXES
from ups.models.saved import TrainedTask
from ups.rollout.places import query_points
from ups.rollout.question import Question
from ups.store.read import ArrayStore

NOISE = 0.05
"""Of sensors, in standard deviations of their channel, where nobody says it."""
STATES = 2048
"""Of the training data, at most, that say what a system is like."""
NUMBERS = 2**20
"""That these may have together, unless they are few."""
FEWEST = 128


def seen_channels(learned: TrainedTask, channels: Sequence[str] | None) -> tuple[int, ...]:
    """Their places among the task's."""
    own = learned.spec.channel_names
    named = own if channels is None else tuple(channels)
    if unknown := [name for name in named if name not in own]:
        raise UserError(f"task {learned.spec.name!r} has no channel {unknown[0]!r}; it has {', '.join(own)}")
    if not named or len(set(named)) < len(named):
        raise UserError(f"channels is {list(named)}; name each channel that sensors see once")
    return tuple(own.index(name) for name in named)


def read_sensors(
    learned: TrainedTask,
    observations: Any,
    points: Any,
    times: Any,
    seen: Sequence[int],
    like: Tensor,
) -> tuple[Float[Tensor, "B T P C"], bool]:
    """What was read, and whether it came as a batch."""
    if learned.spec.steady:
        raise UserError(f"task {learned.spec.name!r} is steady: it has no frames that sensors could see")
    try:
        read, where, when = (torch.as_tensor(given) for given in (observations, points, times))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"observations, points and times must be numbers ({error})") from None
    if where.numel() == 0 or when.numel() == 0:
        raise UserError("there are no sensors, or no times at which they read; give points (P, dim) and times (T,)")
    where = query_points(where, learned.grid, "points")
    names = [learned.spec.channel_names[place] for place in seen]
    shape = (when.numel(), len(where), len(names))
    if len(names) == 1 and tuple(read.shape[-2:]) == shape[:2] and read.dim() <= 3:
        read = read[..., None]
    if tuple(read.shape[-3:]) != shape or not 3 <= read.dim() <= 4 or len(read) == 0:
        raise UserError(
            f"observations have shape {tuple(read.shape)}; of {shape[0]} times, {shape[1]} points and the "
            f"channel{'s' * (len(names) > 1)} {', '.join(names)} give {shape}, or (batch, {', '.join(map(str, shape))})"
        )
    if not bool(read.isfinite().all()):
        raise UserError("observations have NaN or infinite values; leave out the sensors or the times that have them")
    batched = read.dim() == 4
    return (read if batched else read[None]).to(like), batched


def check_frames(question: Question) -> None:
    """A state is recovered from frames a whole number of steps after it."""
    schedule = question.schedule
    assert schedule is not None
    if schedule.places is None:
        dt = schedule.runs[0][0]
        off = (schedule.when / dt - (schedule.when / dt).round()).abs().argmax()
        raise UserError(
            f"time {float(schedule.when[off]):g} lies between frames; give multiples of dt = {dt:g}, counted from the "
            "state that is wanted"
        )


def sensor_noise(learned: TrainedTask, seen: Sequence[int], noise: Any, like: Tensor) -> Float[Tensor, " C"]:
    if noise is None:
        own = [learned.spec.channels[place] for place in seen]
        scales = [(channel, learned.statistics.channels[channel.name]) for channel in own]
        noise = [NOISE * s.std * (math.exp(s.mean) if c.transform == "log" else 1.0) for c, s in scales]
    try:
        sizes = torch.as_tensor(noise).to(like).reshape(-1).expand(len(seen))
    except (TypeError, ValueError, RuntimeError):
        sizes = like.new_zeros(1)
    if not bool((sizes.isfinite() & (sizes > 0)).all()):
        raise UserError(f"noise is {noise!r}; give the rms error of sensors, positive, one number or one a channel")
    return sizes


def known_states(learned: TrainedTask, states: Any, run: Path | None, like: Tensor) -> Float[Tensor, "N H *space C"]:
    """Normalised: those given, or else the run's training data."""
    if states is None:
        return _stored(learned, run).to(like)
    spec, space = learned.spec, learned.grid.shape
    given = torch.as_tensor(states).to(like)
    own = (spec.history, *space, len(spec.channels))
    if given.dim() == len(own) and spec.history == 1:
        given = given[:, None]
    if tuple(given.shape[1:]) != own or len(given) < 2:
        axes = (*(("H",) if spec.history > 1 else ()), *AXES[: len(space)], "C")
        wanted = f"(N, {', '.join(axes)}) = (N, {', '.join(map(str, own[spec.history == 1 :]))})"
        raise UserError(f"states have shape {tuple(torch.as_tensor(states).shape)}; give {wanted}, two at least")
    if not bool(given.isfinite().all()):
        raise UserError("states have NaN or infinite values; leave those out")
    return learned.normaliser.normalise(given)


def _stored(learned: TrainedTask, run: Path | None) -> Float[Tensor, "N H *space C"]:
    """Frames of the training data, spread evenly over trajectories and times; where nothing but the equation says where
    a place on a periodic axis is, each is shifted along it.
    """
    spec = learned.spec
    root = run if run is None or (run / "config.yaml").is_file() else run.parent.parent
    path = None if root is None else root / "store" / spec.name
    if path is None or not path.is_dir():
        raise UserError(
            f"there are no training data of task {spec.name!r} beside this model; say what its states are like: "
            "states=, (N, *space, C)"
        )
    stored, history = ArrayStore.open(path)["fields"], spec.history
    rows, starts = stored.shape[0], stored.shape[1] - history + 1
    size = history * torch.Size(stored.shape[2:]).numel()
    count = min(rows * starts, STATES, max(FEWEST, NUMBERS // size))
    places = torch.linspace(0, rows * starts - 1, count, dtype=torch.float64).round().long()
    states = stored.gather(places % rows, places // rows, history)
    if spec.static or spec.forcings:
        return states
    generator = torch.Generator().manual_seed(0)
    for axis, periodic in enumerate(spec.boundary.periodic):
        if periodic:
            shifts = torch.randint(learned.grid.shape[axis], (count,), generator=generator).tolist()
            states = torch.stack([state.roll(shift, 1 + axis) for state, shift in zip(states, shifts, strict=True)])
    return states
