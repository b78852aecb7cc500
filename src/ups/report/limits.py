"""Colour and axis limits: one pair for all fields of a picture, one for all errors, so that panels can be compared."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float
from numpy import ndarray

ERROR_QUANTILE = 0.995


def field_limits(truths: Iterable[Float[ndarray, "..."]]) -> tuple[float, float]:
    """The smallest and largest finite value of the truths alone: a model that explodes must not blank the others."""
    finite = _finite(truths)
    if finite.size == 0:
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if low == high:  # a constant field still needs a scale
        margin = abs(low) or 1.0
        return low - margin, high + margin
    return low, high


def error_limit(errors: Iterable[Float[ndarray, "..."]], field_span: float) -> float:
    """The m of the shared limits ±m: 99.5 % of all models' finite |errors| lie within; at most the field's span.

    The quantile keeps one shock point from blanking the rest, the span keeps one exploded model from doing so.
    """
    finite = np.abs(_finite(errors))
    if finite.size == 0:
        return field_span
    return min(float(np.quantile(finite, ERROR_QUANTILE)) or float(finite.max()), field_span) or field_span


def _finite(arrays: Iterable[Float[ndarray, "..."]]) -> Float[ndarray, " n"]:
    flat = np.concatenate([np.ravel(np.asarray(a, dtype=np.float64)) for a in arrays] or [np.empty(0)])
    return flat[np.isfinite(flat)]
