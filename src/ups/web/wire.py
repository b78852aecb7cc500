"""Plain numbers over HTTP: a line of JSON and the arrays that it names, in float32, one message after another.

A message is two little-endian 32-bit lengths (of the JSON, padded to four bytes, and of the arrays), the JSON with the
shape of every array under "arrays", and the arrays in that order. JavaScript reads it without a library
(`page/remote.js`).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ups.errors import UserError

PREFIX = struct.Struct("<II")


def packed(told: Mapping[str, Any], arrays: Mapping[str, Float[np.ndarray, "..."]]) -> bytes:
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    text = json.dumps(_finite({**told, "arrays": shapes}), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    body = b"".join(np.ascontiguousarray(array, dtype="<f4").tobytes() for array in arrays.values())
    return PREFIX.pack(len(text), len(body)) + text + body


def unpacked(message: bytes) -> tuple[dict[str, Any], dict[str, Float[np.ndarray, "..."]]]:
    """What one message says, and its arrays."""
    try:
        size, rest = PREFIX.unpack_from(message)
        told = json.loads(message[PREFIX.size : PREFIX.size + size])
        shapes = {str(name): tuple(int(n) for n in shape) for name, shape in told.pop("arrays").items()}
        body = message[PREFIX.size + size :]
        if any(n < 0 for shape in shapes.values() for n in shape):
            raise ValueError("a negative length")
        if not len(body) == rest == 4 * sum(math.prod(shape) for shape in shapes.values()):
            raise ValueError("the arrays are not as long as their shapes say")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, struct.error) as error:
        raise UserError(f"the message cannot be read ({error}); reload the page") from None
    arrays, place = {}, 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        arrays[name] = np.frombuffer(body, "<f4", count, place).reshape(shape).copy()
        place += 4 * count
    return told, arrays


def _finite(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
