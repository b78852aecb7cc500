"""Which axis of an array is what: B trajectories, T time, X Y Z space, C channels.

Names decide where axes have them, then numbers that fit (lengths, times, parameters), then the fields themselves:
along space and time neighbours are alike, from channel to channel they are not, and a periodic axis closes on itself,
which time does not. What stays open is what most people write: trajectories, time, space, channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ups.errors import UserError
from ups.fields import AXES

LETTERS = "BTXYZC"
WORDS = {
    "B": "sample samples batch b n run runs trajectory trajectories traj member members ensemble realization case "
    "cases simulation sim instance index trial",
    "T": "time times t step steps timestep frame frames",
    "C": "channel channels c component components variable variables var field fields",
    "X": "x lon longitude",
    "Y": "y lat latitude",
    "Z": "z lev level height depth altitude",
}
_NAMES = {word: letter for letter, words in WORDS.items() for word in words.split()}
CLOSES, OPEN = 2.5, 5.0
"""A periodic axis: over its seam, differences are at most so many times those between neighbours; one that is certainly
not has more than the second. They are about 1 on a periodic axis, and its number of points over π between walls."""
MOST_CHANNELS = 16
PROBED, PROBED_NUMBERS = 16, 2**25
"""Trajectories that are looked at, and numbers of these: of large trajectories there are fewer."""


@dataclass(frozen=True)
class Known:
    """What is known of the data beside their fields: numbers of trajectories, times, channels and dimensions."""

    trajectories: int | None = None
    times: int | None = None
    channels: int | None = None
    dimension: int | None = None


def told_axes(axes: str, shape: Sequence[int], what: str) -> str:
    """`axes="BTXC"`, checked."""
    axes = axes.upper().replace(" ", "").replace(",", "")
    space = [letter for letter in "XYZ" if letter in axes]
    wrong = set(axes) - set(LETTERS) or len(set(axes)) != len(axes) or "T" not in axes
    if wrong or len(axes) != len(shape) or space != list("XYZ"[: len(space)]) or not space:
        raise UserError(
            f"axes is {axes!r}, and {what} has the shape {tuple(shape)}; give one letter an axis: B trajectories, "
            "T time, X Y Z space, C channels, such as BTXC"
        )
    return axes


def named_axes(dims: Sequence[str], what: str) -> str:
    """From the names that the axes have; a name that says nothing is the next axis of space, or the trajectories if
    those have no other.
    """
    letters = [_NAMES.get(name.lower().split("_")[0], "") for name in dims]
    open_ = [place for place, letter in enumerate(letters) if not letter]
    if "B" not in letters and open_ and open_[0] == 0:
        letters[open_.pop(0)] = "B"
    for place in open_:
        letters[place] = next((letter for letter in "XYZ" if letter not in letters), "")
    space = sorted({letter for letter in letters if letter in "XYZ"})
    renamed = dict(zip(space, "XYZ", strict=False))  # (y, z) alone are X and Y
    axes = "".join(renamed.get(letter, letter) for letter in letters)
    if len(set(axes)) != len(dims):
        raise UserError(
            f"{what} has the axes {', '.join(dims)}, which do not say what each is; give axes=, such as BTXC"
        )
    return axes


def found_axes(probe: Float[np.ndarray, "..."], shape: Sequence[int], known: Known, what: str) -> tuple[str, list[str]]:
    """From numbers that fit and from the fields; what is worth saying of it. `probe` are some trajectories, in full,
    along the first axis.
    """
    notes: list[str] = []
    count = len(shape)
    if count < 3:
        raise UserError(
            f"{what} has the shape {tuple(shape)}; trajectories of fields have at least three axes: trajectories, "
            "time, space. One trajectory is too few to learn from and to test on"
        )
    batch = 0
    if known.trajectories not in (None, shape[0]):
        fitting = [place for place, n in enumerate(shape) if n == known.trajectories]
        if len(fitting) != 1:
            raise UserError(f"{what} has the shape {tuple(shape)}, and parameters are given for {known.trajectories}")
        batch = fitting[0]
        notes.append(f"axis {batch} holds the trajectories, as there are {known.trajectories} of each parameter")
    rest = [place for place in range(count) if place != batch]
    rough = {place: roughness(probe, place) for place in rest}
    channel = _channel_axis(shape, rest, rough, known, what)
    if channel is not None:
        rest.remove(channel)
        if channel != count - 1:
            notes.append(f"channels are axis {channel} of {count}: they will be last")
    if not 2 <= len(rest) <= 1 + len(AXES):
        raise UserError(
            f"{what} has the shape {tuple(shape)}: what its axes are is not clear; give axes=, such as BTXC"
        )
    time = _time_axis(shape, rest, probe, known)
    if time != rest[0]:
        notes.append(f"time is axis {time}: it will be the second")
    rest.remove(time)
    letters = [""] * count
    letters[batch], letters[time] = "B", "T"
    if channel is not None:
        letters[channel] = "C"
    for place, letter in zip(rest, "XYZ", strict=False):
        letters[place] = letter
    return "".join(letters), notes


def _channel_axis(
    shape: Sequence[int], rest: Sequence[int], rough: dict[int, float], known: Known, what: str
) -> int | None:
    wanted = None if known.dimension is None else len(rest) - 1 - known.dimension
    if wanted not in (None, 0, 1):
        raise UserError(
            f"{what} has the shape {tuple(shape)}, which does not go with {known.dimension} axes of space; give axes=, "
            "such as BTXC"
        )
    if wanted == 0 or len(rest) < 3:
        return None
    few = [place for place in rest if shape[place] <= MOST_CHANNELS and known.channels in (None, shape[place])]
    unlike = [place for place in few if shape[place] <= 3 or rough[place] > 0.5]
    chosen = sorted(few if wanted == 1 else unlike, key=lambda place: (rough[place] <= 0.5, shape[place], -place))
    if not chosen and (wanted == 1 or len(rest) == 2 + len(AXES)):
        raise UserError(f"{what} has the shape {tuple(shape)}, of which no axis can be the channels; give axes=")
    return chosen[0] if chosen else None


def _time_axis(shape: Sequence[int], rest: Sequence[int], probe: np.ndarray, known: Known) -> int:
    if known.times is not None:
        fitting = [place for place in rest if shape[place] == known.times]
        if rest[0] in fitting or len(fitting) != 1:
            return rest[0]
        return fitting[0]
    gaps = {place: seam(probe, place) for place in rest}
    candidates = [place for place in rest[1:] if gaps[place] > OPEN and not _still_ends(probe, place)]
    if (gaps[rest[0]] < CLOSES or _still_ends(probe, rest[0])) and len(candidates) == 1:
        return candidates[0]
    return rest[0]


def roughness(values: Float[np.ndarray, "..."], axis: int) -> float:
    """How unlike neighbours along an axis are: 1 where they have nothing to do with each other, or there are none."""
    if values.shape[axis] == 1:
        return 1.0
    spread = float(values.std())
    return float(np.sqrt(np.square(np.diff(values, axis=axis)).mean())) / (2**0.5 * spread) if spread else 0.0


def seam(values: Float[np.ndarray, "..."], axis: int) -> float:
    """How much larger first and second differences are over the seam, from the last point to the first, than between
    neighbours: about 1 on a periodic axis.
    """
    along = np.moveaxis(values, axis, 0)
    if len(along) < 4:
        return np.inf
    around, worst = np.concatenate([along, along[:2]]), 0.0
    for differences, over in ((np.diff(around[:-1], axis=0), 1), (np.diff(around, 2, axis=0), 2)):
        inside, beyond = _rms(differences[:-over]), _rms(differences[-over:])
        worst = max(worst, beyond / inside if inside else (np.inf if beyond else 0.0))
    return worst


def _still_ends(values: Float[np.ndarray, "..."], axis: int) -> bool:
    """Whether both ends of an axis keep one value, as walls do."""
    ends = (np.take(values, end, axis=axis) for end in (0, -1))
    return all(float(end.std()) <= 1e-6 * float(np.abs(values).max()) for end in ends)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))
