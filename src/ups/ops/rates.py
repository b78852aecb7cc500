"""What training steps take on a device: measured on real steps, kept for plans (`ups plan --measure`).

    seconds = o · n + f · F + b · M

n operations of F FLOP in all, which read and write M bytes, as counted on a step without numbers (`step_cost.py`). The
three rates of a kind of step (its architecture and precision) are fitted to steps of several sizes: least squares of
relative errors, none of them below zero. What holds for all devices alike is in the counts; all else is measured.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ups.durable import seal, unseal, write
from ups.errors import UserError
from ups.ops.step_cost import Cost


@dataclass(frozen=True)
class StepRates:
    """Seconds an operation, a FLOP and a byte; the smallest and the largest step they are of, in FLOP; how far off the
    worst of these is; the bytes that the device needs beyond what is counted, and for each byte of a model's state; the
    tasks and the time.
    """

    operation: float
    flop: float
    byte: float
    smallest: float
    largest: float
    error: float
    workspace: float
    workspace_share: float
    tasks: tuple[str, ...]
    measured: str

    def seconds(self, cost: Cost) -> float:
        return self.operation * cost.operations + self.flop * cost.flop + self.byte * cost.moved

    def peak(self, cost: Cost) -> float:
        """The most memory that a step takes."""
        return cost.peak + self.workspace + self.workspace_share * cost.state


@dataclass(frozen=True)
class Links:
    """What a rank sends in a second, to ranks of its machine and to others, and what a collective takes at least."""

    within: float | None = None
    beyond: float | None = None
    latency: float = 0.0

    def seconds(self, cost: Cost) -> float | None:
        """Of all that a step sends; None where it takes a way whose rate is not known."""
        if (cost.within and not self.within) or (cost.beyond and not self.beyond):
            return None
        within = cost.within / self.within if self.within else 0.0
        beyond = cost.beyond / self.beyond if self.beyond else 0.0
        return cost.collectives * self.latency + within + beyond


@dataclass(frozen=True)
class DeviceRates:
    """All that was measured on a kind of device: bytes of its memory, steps by their kind, links between its ranks."""

    device: str
    memory: float
    gpu: bool
    software: str
    steps: dict[str, StepRates]
    links: Links = Links()


def fitted(costs: Sequence[Cost], seconds: Sequence[float]) -> tuple[float, float, float, float]:
    """The three rates, and the largest relative error of a step that they are fitted to."""
    counted = np.array([[c.operations, c.flop, c.moved] for c in costs]) / np.array(seconds)[:, None]
    best, error = np.zeros(3), np.inf
    for size in (1, 2, 3):
        for chosen in map(list, itertools.combinations(range(3), size)):
            scale = counted[:, chosen].max(axis=0)  # seconds, FLOP and bytes differ by many orders
            found = np.linalg.lstsq(counted[:, chosen] / scale, np.ones(len(costs)), rcond=None)[0] / scale
            left = float(((counted[:, chosen] @ found - 1) ** 2).sum())
            if (found >= 0).all() and left < error:
                error, best = left, np.zeros(3)
                best[chosen] = found
    operation, flop, byte = best.tolist()
    return operation, flop, byte, float(np.abs(counted @ best - 1).max())


def workspaces(costs: Sequence[Cost], peaks: Sequence[float]) -> tuple[float, float]:
    """What steps took beyond what is counted: in any case, and for each byte of the model's state."""
    beyond = np.array(peaks) - [cost.peak for cost in costs]
    states = np.array([cost.state for cost in costs])
    if np.ptp(states) > 0:
        share, least = np.polyfit(states, beyond, 1).tolist()
        if share >= 0 and least >= 0:
            return least, share
    return max(0.0, float(beyond.max())), 0.0


def folder() -> Path:
    """Where measured rates are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ups" / "rates"


def kept(device: str) -> DeviceRates | None:
    """What is known of a device; None if nothing is."""
    path = _path(device)
    if not path.is_file():
        return None
    try:
        found = unseal(path.read_bytes())
        steps = {name: StepRates(**rates | {"tasks": tuple(rates["tasks"])}) for name, rates in found["steps"].items()}
        return DeviceRates(**found | {"steps": steps, "links": Links(**found["links"])})
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged or of another version; remove it and measure again") from error


def keep(rates: DeviceRates) -> Path:
    """Beside what is known of other devices."""
    path = _path(rates.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = json.loads(json.dumps(asdict(rates)))
    write(path, seal(content))
    return path


def known_devices() -> list[str]:
    found = (kept(path.stem) for path in sorted(folder().glob("*.json")))
    return [rates.device for rates in found if rates is not None]


def _path(device: str) -> Path:
    return folder() / f"{re.sub(r'[^A-Za-z0-9]+', '-', device).strip('-').lower()}.json"
