"""The combinations of a sweep: `training.learning_rate=1e-3,3e-3 seed=0,1,2` are six runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from ups.errors import UserError

MOST = 256


def combinations(name: str, overrides: Sequence[str]) -> dict[str, list[str]]:
    """For each run its name, which says what differs, and its overrides. Commas within brackets separate nothing."""
    axes = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"{override!r} is not of the form key=value or key=value,value")
        axes.append([(key, value) for value in _values(text)])
        if key == "name":
            raise UserError("a sweep names its runs itself, after what differs; leave name= out")
    swept = {axis[0][0] for axis in axes if len(axis) > 1}
    if not swept:
        raise UserError("nothing is swept; give a key several values, such as seed=0,1,2")
    found: dict[str, list[str]] = {}
    for combination in itertools.product(*axes):
        words = [f"{key.rpartition('.')[2]}{value}" for key, value in combination if key in swept]
        label = re.sub(r"[^A-Za-z0-9._@-]+", "-", "_".join([name, *words])).strip("-")
        if label in found:
            raise UserError(f"two runs would be called {label}; give values that differ in letters or digits")
        found[label] = [f"{key}={value}" for key, value in combination]
    if len(found) > MOST:
        raise UserError(f"these are {len(found)} runs; a sweep has at most {MOST}")
    return found


def _values(text: str) -> list[str]:
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
