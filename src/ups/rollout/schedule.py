"""Which steps lead to the times that are wanted of a rollout.

Steps are the task's own, or of the `dt` that a user gives; times between them are interpolated. A model that was
trained on a range of lead times needs no interpolation: its steps end at every time that is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ups.models.interpolation import axis_matrix

SAME = 1e-6
"""Times closer than this share of a step are one."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """`runs`: a lead time and a number of its steps, one after another. `when`: the times wanted, and `places` their
    states' places among all, the start being 0; None where they lie between steps, which are all alike then.
    """

    runs: tuple[tuple[float, int], ...]
    when: Float[Tensor, " T"]
    places: Int[Tensor, " T"] | None

    def leads(self, like: Float[Tensor, "B *any"]) -> Iterator[Float[Tensor, " B"]]:
        """The lead time of every step. Steps alike share one tensor: what is bound to it is kept."""
        made: dict[float, Tensor] = {}
        for lead, count in self.runs:
            tensor = made.setdefault(lead, like.new_full((len(like),), lead))
            for _ in range(count):
                yield tensor

    @cached_property
    def needed(self) -> Int[Tensor, " N"]:
        """The places of the states that `read` is made of."""
        return self._cubic.any(0).nonzero()[:, 0] if self.places is None else self.places.unique()

    def read(self, states: Float[Tensor, "B N *points C"]) -> Float[Tensor, "B T *points C"]:
        """The states at the times wanted, from those needed; a cubic between steps."""
        if self.places is not None:
            return states[:, torch.searchsorted(self.needed, self.places)]
        return torch.einsum("qn,bn...->bq...", self._cubic[:, self.needed].to(states), states)

    @cached_property
    def _cubic(self) -> Float[Tensor, "T S"]:
        ((dt, count),) = self.runs
        steps = torch.arange(count + 1, dtype=torch.float64) * dt
        return axis_matrix(steps, (0.0, float(steps[-1])), False, self.when, 3)


def regular(dt: float, when: Float[Tensor, " T"]) -> Schedule:
    """Steps of `dt`, to the last time or beyond it."""
    places = (when / dt).round().long()
    if bool((when / dt - places).abs().max() < SAME):
        return Schedule(((dt, int(places[-1])),), when, places)
    return Schedule(((dt, math.ceil(float(when[-1]) / dt - SAME) + 1),), when, None)


def exact(dt: float, leads: Sequence[float], when: Float[Tensor, " T"]) -> Schedule | None:
    """Steps that end at every time: equal ones from each to the next, of `dt` or as little more as may be. None where
    that would take a lead time outside the range of the trained ones.
    """
    shortest, longest = max(dt, min(leads)), max(leads)
    runs, places, last = [], [], 0.0
    for time in when.tolist():
        gap, last = time - last, time
        count = math.floor(gap / shortest + SAME)
        if gap > 0 and not (count and gap / count <= longest * (1 + SAME)):
            return None
        runs.append((gap / max(count, 1), count))
        places.append(count + (places[-1] if places else 0))
    return Schedule(tuple(runs), when, torch.tensor(places))


def uneven(leads: Sequence[float], when: Float[Tensor, " T"]) -> Schedule:
    """A step from each time to the next, or as many equal ones as keep each within the longest of the trained leads."""
    longest, last, runs, places = max(leads), 0.0, [], []
    for time in when.tolist():
        gap, last = time - last, time
        count = math.ceil(gap / longest - SAME) if gap > 0 else 0
        runs.append((gap / max(count, 1), count))
        places.append(count + (places[-1] if places else 0))
    return Schedule(tuple(runs), when, torch.tensor(places))
