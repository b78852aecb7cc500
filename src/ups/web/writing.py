"""A rollout as the bytes of an answer."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from jaxtyping import Shaped
from torch import Tensor

from ups.fields import AXES, Grid
from ups.rollout.result import Rollout
from ups.web.arrow import to_arrow
from ups.web.reading import ARROW, JSON, NPZ


def written(rollout: Rollout, kind: str) -> bytes:
    return {JSON: _as_json, NPZ: _as_npz, ARROW: _as_arrow}[kind](rollout)


def _as_json(rollout: Rollout) -> bytes:
    """NaN and infinite values are null, which JSON has no numbers for."""
    where = rollout.where
    said: dict[str, Any] = {
        "task": rollout.task,
        "channels": list(rollout.channels),
        "units": dict(rollout.units),
        "warnings": list(rollout.warnings),
        "members": rollout.count,
        "times": _plain(rollout.times.numpy()),
    }
    if isinstance(where, Grid):
        said["grid"] = {axis: p.tolist() for axis, p in zip(AXES, where.positions, strict=False)}
        said["grid"]["extent"] = [list(span) for span in where.extent]
    elif isinstance(where, Tensor):
        said["at"] = where.tolist()
    said["values"] = _plain(rollout.values.cpu().numpy())
    return json.dumps(said, allow_nan=False, separators=(",", ":")).encode()


def _plain(array: Shaped[np.ndarray, "..."]) -> list[Any]:
    finite = np.isfinite(array)
    if not finite.all():
        array = array.astype(object)
        array[~finite] = None
    return array.tolist()


def _named(rollout: Rollout) -> dict[str, Any]:
    """Arrays by name, and as text what is none."""
    told: dict[str, Any] = {"task": rollout.task, "units": dict(rollout.units), "members": rollout.count}
    arrays = rollout.arrays()
    if isinstance(rollout.where, Grid):
        arrays["extent"] = np.array(rollout.where.extent)
    return {"told": np.array(json.dumps(told)), **arrays}


def _as_npz(rollout: Rollout) -> bytes:
    content = io.BytesIO()
    np.savez(content, **_named(rollout))
    return content.getvalue()


def _as_arrow(rollout: Rollout) -> bytes:
    return to_arrow(_named(rollout))
